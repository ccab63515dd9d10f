"""Which of run.json and its copy is an output's run record: the first that is intact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from launcher import files
from launcher.layout import Output
from launcher.schema import RunRecord

Found = tuple[dict[str, Any] | None, files.UnreadableError | None]


def intact(contents: Iterable[tuple[object, bytes | None]]) -> Found:
    """Return the run record, and what is wrong with a file that comes before it; None each for none.

    Args:
        contents: name and bytes of run.json, then of its copy; None for one that is absent. The copy is
            taken from an iterator only when run.json is not intact.
    """
    damage = None
    for name, content in contents:
        try:
            if content is not None:
                return files.parse_object(name, content, RunRecord), damage
        except files.UnreadableError as error:
            damage = damage or error
    return None, damage


def read(output: Output, pause: Callable[[float], None] = time.sleep) -> Found:
    """Return `intact` of an output folder. Raises as `files.read_bytes`."""
    return intact((path, files.read_bytes(path, pause)) for path in (output.run_json, output.run_copy))
