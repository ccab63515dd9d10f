"""The exception that `python -m local` prints as a message before it exits with code 1."""

from __future__ import annotations


class LocalError(Exception):
    """A failure that the user can fix; the message says what failed, why, and how to fix it."""
