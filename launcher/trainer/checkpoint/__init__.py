"""Checkpoints: when to save one, saving, restoring, their files; and starting with an earlier run's model."""
