"""Write and read the run record of an output folder: run.json, and its copy run.copy.json."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

from launcher.io import files
from launcher.paths import OutputPaths
from launcher.schema import RunFile, to_json

RecordAndDamage = tuple[dict[str, Any] | None, files.UnreadableError | None]


def first_intact(contents: Iterable[tuple[object, bytes | None]]) -> RecordAndDamage:
    """Parse run.json, or its copy if run.json is absent or damaged.

    Args:
        contents: (name, bytes) of run.json, then of its copy; the bytes of an absent file are None. If this is
            an iterator, the copy is read only when it is needed.

    Returns:
        (the first intact run record or None, the error of the first damaged file before it or None).
    """
    damage = None
    for name, content in contents:
        try:
            if content is not None:
                return files.parse_json_object(name, content, RunFile), damage
        except files.UnreadableError as error:
            damage = damage or error
    return None, damage


def read(output: OutputPaths, pause: Callable[[float], None] = time.sleep) -> RecordAndDamage:
    """Return run.json of an output folder, or its copy if that is damaged, and what is damaged (`first_intact`).

    `pause` waits between retries of a failing storage.
    """
    return first_intact((path, files.read_bytes(path, pause)) for path in (output.run_json, output.run_copy))


def write(output: OutputPaths, record: RunFile, check: Callable[[], None] = lambda: None) -> None:
    """Write run.json and its copy. `check` raises if the output lease was lost: they then belong to another pod."""
    value = files.with_checksum(to_json(record))
    for path in (output.run_json, output.run_copy):
        files.retry_storage(path, functools.partial(files.write_json, path, value, check))
