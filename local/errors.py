"""The one exception that `python -m local` turns into a message and exit code 1."""

from __future__ import annotations


class LocalError(Exception):
    """Something that the person can mend; the text says what was seen, what was expected and how to mend
    it."""
