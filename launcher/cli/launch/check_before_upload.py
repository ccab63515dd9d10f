"""Check a program and the first rows of its data on this machine, before anything is sent to the cluster."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.errors import UsageError
from launcher.settings import parsers

if TYPE_CHECKING:
    from launcher.trainer.single_process.trial_data import RowFormat

CHECKED_ROWS = 1000


def row_format(data: Mapping[str, Any], key_text: str = "data.{}") -> RowFormat:
    """Return the format of a data file from the chart's values below `data`.

    `key_text` shows a key in messages. Raises UsageError if delimiter, quoting or encoding is unusable.
    """
    from launcher.trainer.single_process import trial_data

    parsed = {}
    for key in ("delimiter", "quoting", "encoding"):
        try:
            parsed[key] = getattr(parsers, key)(str(data[key]))
        except parsers.BadValueError as error:
            raise UsageError(
                f"{key_text.format(key)} is {data[key]!r}, but must be {error.limit}: {error.reason}",
                "correct this value",
            ) from error
    return trial_data.RowFormat(
        data["format"] == "csv", header=data["header"], columns=tuple(data["columns"]), **parsed
    )


def check_program(
    config: Path,
    training: Mapping[str, Any],
    source: Path | None,
    data: Mapping[str, Any],
    by: str | None = None,
) -> str:
    """Load a program, parse the first rows of a local data file, and train on some of them.

    Return what was checked, in one sentence. `training` and `data` are the chart's values below these keys. `source`
    None: the data is not on this machine. `by` is a score that metrics() must return; this is checked only if
    metrics() can be called on this machine. Raises LauncherError if the program or a row is invalid.
    """
    if absent := [name for name in ("paddle", "numpy") if importlib.util.find_spec(name) is None]:
        return (
            f"its code was parsed, not run: {absent[0]} is not installed here (pip install '.[model]'). "
            "Trainer 0 checks its network on the cluster, before the first batch"
        )
    os.environ.setdefault("GLOG_minloglevel", "1")
    from launcher.dataprep.csv_records import RowPlaces
    from launcher.trainer import program_loader
    from launcher.trainer.graph import network_builder, training_graph
    from launcher.trainer.records import row_parsing
    from launcher.trainer.single_process import single_process_trainer, trial_data

    with tempfile.TemporaryDirectory(prefix="paddle-training-check.") as temporary:
        rows, places = [], RowPlaces("")
        if source is not None:
            rows = trial_data.read_first_rows(
                source,
                row_format(data),
                places,
                CHECKED_ROWS,
                member=data["member"],
                tables=data["tables"],
                into=Path(temporary),
            )
        elif data["tables"]:
            return "its code was parsed, not run: it needs side tables, which are not on this machine"
        program = program_loader.load_program(config, Path(temporary), tuple(training["extraArgs"]))
        batch, checked = None, "its network can be built; its rows are not on this machine"
        if source is not None:
            found, skipped = row_parsing.parse_records(rows, program, places)
            if not len(found):
                raise row_parsing.no_usable_rows(source.name, program, skipped)
            batch = row_parsing.split_inputs(found[: network_builder.ROWS])
            count = len(batch[program.label])
            checked = f"it parses the first {len(rows):,} rows ({skipped:,} skipped) and trains on {count}"
        graph = (training["mode"], training["batchSize"], training["incrementalCheckpoints"])
        scores = single_process_trainer.check_program(program, batch, training_graph.GraphSettings(*graph))
    network_builder.check_metric(program, training["keepBest"], scores)
    if by is not None and scores and by not in scores:
        raise UsageError(
            f"--by {by}: the program has no such score; nothing was sent",
            f"choose one of: {', '.join(scores)}",
        )
    return checked
