"""Write metrics.csv, the speed, loss and test scores of each pass of a run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from launcher import metrics
from launcher.io import files
from launcher.log import log
from launcher.paths import OutputPaths


def write_metrics(
    output_dir: Path,
    number: int,
    attempt: int,
    ranks: list[tuple[int, float, float]],
    tests: Mapping[str, float],
    *,
    may_rename: bool = False,
) -> None:
    """Add one row for each rank to metrics.csv with `metrics.add_pass`, which explains the arguments.

    The file is replaced atomically. A damaged one is copied aside, and its intact rows are kept.
    """
    path = OutputPaths(output_dir).metrics_csv
    content = files.read_bytes(path) or b""
    update = metrics.add_pass(
        content.decode(errors="replace"), number, attempt, ranks, tests, may_rename=may_rename
    )
    if update.is_damaged:
        names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
        copy = next(name for name in names if not name.exists())
        files.write_atomically(copy, content)
        log.warning(
            "%s was damaged: %d of its %d rows are kept, and the damaged file is now %s. The training is not affected. "
            "Fix: if you need the other rows, look for them in that file",
            path, update.intact, update.rows, copy.name,
        )  # fmt: skip
    files.write_atomically(path, update.text)
