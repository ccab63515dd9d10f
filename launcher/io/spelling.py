"""Suggest the right spelling of an unknown chart value or program option, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean KNOWN?` with the known name that is most similar to `name`; empty if none is similar."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""
