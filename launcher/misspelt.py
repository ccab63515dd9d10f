"""What a misspelt name was meant to be. The Pulumi program, `run` and the programs' options all ask here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

AT = re.compile(r"at '/?([^']*)': (.*)")
"""Where a chart's schema refuses a value, and what it says there: a line of helm's."""
_UNKNOWN = re.compile(r"additional properties '([^']+)'.* not allowed")


def unknown(said: str) -> str | None:
    """The name that a chart does not know, by what its schema says at a place."""
    found = _UNKNOWN.fullmatch(said)
    return found and found[1]


def meant(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME?`, of the known name that is most like it; empty when none is."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""
