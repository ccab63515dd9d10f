"""Write metrics.csv, which has the speed, loss and test scores of each pass of a run."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping
from pathlib import Path

from launcher.io import files
from launcher.log import log
from launcher.metrics import COLUMNS, TEST, is_row, split_fields
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
    """Add one row for each rank with the results of one pass to metrics.csv.

    The file is replaced atomically. Existing rows of the same pass and attempt are replaced, so a repeated call adds no
    duplicates. `tests` may have more or fewer metrics than earlier passes; the missing scores are empty. If metrics.csv
    is damaged, this function saves a copy of it next to it, and keeps the intact rows.

    Args:
        output_dir: the run's output folder.
        number: the pass, counted from 0.
        attempt: the attempt that trained this pass, counted from 0.
        ranks: (samples, seconds, mean training loss) of each rank, in rank order.
        tests: rank 0's scores on the test set, by metric name without the prefix test_.
        may_rename: whether `tests` may lack earlier metrics and at the same time have new ones, for example because
            the user has changed the script. If False, such a difference counts as damage of the header line.
    """
    path = OutputPaths(output_dir).metrics_csv
    content = files.read_bytes(path) or b""
    scores = {TEST + name: f"{score:.6g}" for name, score in tests.items()}
    header = [*COLUMNS, *scores]
    old_header, *lines = split_fields(content.decode(errors="replace"))
    width = len(header)
    before = old_header[len(COLUMNS) :]
    is_intact = tuple(old_header[: len(COLUMNS)]) == COLUMNS and all(name.startswith(TEST) for name in before)
    if not may_rename:
        is_intact = is_intact and (scores.keys() <= set(before) or scores.keys() >= set(before))
    if is_intact:  # a script may test only some epochs, or add a metric: all columns stay
        header, width = list(dict.fromkeys([*old_header, *scores])), len(old_header)
    intact = [line for line in lines if len(line) == width and is_row(line)]
    if content and (not is_intact or len(intact) != len(lines)):
        names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
        copy = next(name for name in names if not name.exists())
        files.write_atomically(copy, content)
        log.warning(
            "%s was damaged: %d of its %d rows are kept, and the damaged file is now %s. The training is not affected. "
            "Fix: if you need the other rows, look for them in that file",
            path, len(intact), len(lines), copy.name,
        )  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in intact:
        if (row[0], row[2]) != (str(number), str(attempt)):
            writer.writerow([*row, *[""] * (len(header) - width)])
    for rank, (samples, seconds, loss) in enumerate(ranks):
        values = [number, rank, attempt, int(samples), f"{seconds:.3f}"]
        values += [f"{samples / seconds if seconds else 0:.1f}", f"{loss:.6g}"]
        own = scores if rank == 0 else {}
        writer.writerow([*values, *(own.get(name, "") for name in header[len(COLUMNS) :])])
    files.write_atomically(path, text.getvalue())
