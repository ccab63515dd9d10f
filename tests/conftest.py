"""What holds for all tests."""

import importlib.metadata
from typing import Any

from hypothesis import settings

# The tiers run beside each other on two cores: how long one example takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Which Paddle the tests ran on: a result of one version says nothing about another."""
    try:
        found = importlib.metadata.version("paddlepaddle")
    except importlib.metadata.PackageNotFoundError:
        found = "none; its tests were skipped"
    terminalreporter.write_line(f"PaddlePaddle: {found}")
