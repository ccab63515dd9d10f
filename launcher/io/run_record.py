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


def first_intact(contents: Iterable[tuple[object, bytes | None]], shape: Any = RunFile) -> RecordAndDamage:
    """Parse a JSON file, or its copy if the file is absent or damaged. The file is a run record by default.

    Args:
        contents: (name, bytes) of the file, then of its copies; the bytes of an absent file are None. With an iterator
            that reads the files, a copy is read only when it is needed.
        shape: the type of the JSON object (`schema.mismatch`).

    Returns:
        (the object of the first intact file, the error of the first damaged file before that file). None stands for an
        object or an error that does not exist.
    """
    damage = None
    for name, content in contents:
        try:
            if content is not None:
                return files.parse_json_object(name, content, shape), damage
        except files.UnreadableError as error:
            damage = damage or error
    return None, damage


def read(output: OutputPaths, pause: Callable[[float], None] = time.sleep) -> RecordAndDamage:
    """Return what `first_intact` returns for run.json of an output folder and its copy.

    `pause` waits for the given number of seconds between retries of a failing storage.
    """
    return first_intact((path, files.read_bytes(path, pause)) for path in (output.run_json, output.run_copy))


def write(output: OutputPaths, record: RunFile, check: Callable[[], None] = lambda: None) -> None:
    """Write run.json and its copy.

    `check` is called right before each file is replaced. It raises if this pod has lost the output lease, because then
    another pod writes these files.
    """
    value = files.with_checksum(to_json(record))
    for path in (output.run_json, output.run_copy):
        files.retry_storage(path, functools.partial(files.write_json, path, value, check))
