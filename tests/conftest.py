"""What holds for all tests."""

from hypothesis import settings

# The tiers run beside each other on two cores: how long one example takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
