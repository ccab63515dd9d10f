"""Suggest the right spelling of an unknown chart value or program option, for error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

AT = re.compile(r"at '/?([^']*)': (.*)")
"""Matches helm's line about a value that the chart's schema rejects: (path of the value, problem)."""
_UNKNOWN = re.compile(r"additional properties '([^']+)'.* not allowed")


def find_unknown_name(problem: str) -> str | None:
    """Return the unknown name in a schema's problem `additional properties 'NAME' not allowed`; else None.

    `problem` is group 2 of a match of the pattern AT.
    """
    found = _UNKNOWN.fullmatch(problem)
    return found and found[1]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean KNOWN?` with the known name that is most similar to `name`; empty if none is."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""
