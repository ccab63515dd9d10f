"""`try`: train a program in this process, write its model, and predict a row with it; no cluster."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.cli.problems import CliError, UsageError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for."""

    program: Path
    data: Path
    test: Path | None
    held_out: float
    """Share of the rows that are tested with, where there is no `test`."""
    tables: Sequence[Path]
    options: Sequence[str]
    """`key=value`, as training.extraArgs."""
    rows: int | None
    """At most so many rows of each file; None: all."""
    passes: int
    batch_size: int
    csv: bool
    delimiter: str
    header: bool
    columns: tuple[str | int, ...]
    encoding: str
    to: Path
    """Where the model goes."""


def columns(given: str) -> tuple[str | int, ...]:
    """`--columns a,b` or `--columns 0,3`."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    return tuple(int(name) for name in names) if all(n.isdecimal() for n in names) else tuple(names)


CHECKED_ROWS = 1000


def check(
    config: Path,
    training: Mapping[str, Any],
    source: Path | None,
    data: Mapping[str, Any],
    by: str | None = None,
) -> str:
    """Load a program, parse the first rows of a local source, and train on some, before anything is sent.

    Args:
        config: the program's file.
        training: the chart's values below `training`.
        source: the data on this machine; None: they are elsewhere.
        data: the chart's values below `data`.
        by: a score that metrics() must give, as far as it can be called here.

    Returns:
        What was checked, in one sentence.

    Raises:
        LauncherError: what is wrong with the program or a row.
    """
    if absent := [name for name in ("paddle", "numpy") if importlib.util.find_spec(name) is None]:
        return (
            f"its code was read, not run: {absent[0]} is not installed here (pip install '.[model]'). "
            "Trainer 0 checks its network on the cluster, before the first batch"
        )
    os.environ.setdefault("GLOG_minloglevel", "1")
    from launcher.data.places import Places
    from launcher.worker import check as checks
    from launcher.worker import program as programs
    from launcher.worker import samples, shapes, trial

    with tempfile.TemporaryDirectory(prefix="paddle-training-check.") as made:
        rows, places = [], Places("")
        if source is not None:
            form = trial.Form(
                data["format"] == "csv",
                "\t" if data["delimiter"] == "\\t" else data["delimiter"],
                data["header"],
                tuple(data["columns"]),
                data["encoding"],
            )
            rows = trial.begin(
                source,
                form,
                places,
                CHECKED_ROWS,
                member=data["member"],
                tables=data["tables"],
                into=Path(made),
            )
        elif data["tables"]:
            return "its code was read, not run: it needs tables, which are not on this machine"
        program = programs.load(config, Path(made), tuple(training["extraArgs"]))
        batch, seen = None, "its network can be built; its rows are not on this machine"
        if source is not None:
            found, skipped = samples.records(rows, source.name, program, place=places.place)
            if not len(found):
                raise samples.no_rows(source.name, program, skipped)
            batch = samples.split(found[: shapes.ROWS])
            tried = len(batch[program.label])
            seen = f"it parses the first {len(rows):,} rows ({skipped:,} skipped) and trains on {tried}"
        scores = checks.check(
            program,
            batch,
            mode=training["mode"],
            batch_size=training["batchSize"],
            delta_saves=training["deltaSaves"],
        )
    shapes.check_metric(program, training["keepBest"], scores)
    if by is not None and scores and by not in scores:
        raise UsageError(
            f"--by {by}: the program has no such score, but {', '.join(scores)}. Nothing was sent."
        )
    return seen


def run(asked: Request, say: Callable[[str], None]) -> dict[str, Any]:
    """Trains, exports, predicts; what happens is told line by line. Raises `LauncherError`.

    Returns {"passes": [{"pass", "samples", "seconds", "loss", metric…}], "model", "score", "row",
    "prediction", "words"}.
    """
    if asked.to.exists() and not (asked.to / "model.json").is_file() and any(asked.to.iterdir()):
        raise UsageError(f"--to {asked.to} is there and holds no model. Name a new folder.")
    os.environ.setdefault("GLOG_minloglevel", "1")  # Paddle's notes on its executors
    say("loading Paddle")
    try:
        import paddle  # noqa: F401
    except ImportError as error:
        raise CliError(
            f"try trains here, and Paddle cannot be loaded ({error}). Install it with "
            "pip install '.[model]' in the project's folder, or run this in the launcher's image."
        ) from error
    from launcher.data.places import Places
    from launcher.served import Model
    from launcher.worker import check as checks
    from launcher.worker import model, samples, shapes, trial
    from launcher.worker import program as programs
    from launcher.worker.single import Single

    form = trial.Form(asked.csv, asked.delimiter, asked.header, asked.columns, asked.encoding)
    config = trial.config(asked.program)
    with tempfile.TemporaryDirectory(prefix="paddle-training-try.") as made:
        work = Path(made)
        (work / "tables").mkdir()
        for table in asked.tables:
            files.copy_file(table, work / "tables" / table.name)
        program = programs.load(config, work / "tables", tuple(f"--{option}" for option in asked.options))
        places = Places(str(asked.data))
        first = trial.lines(asked.data, form, places, min(CHECKED_ROWS, asked.rows or CHECKED_ROWS))
        found, _ = samples.records(first, str(asked.data), program, place=places.place)
        batch = samples.split(found[: shapes.ROWS]) if len(found) else None
        checks.check(program, batch, mode="async", batch_size=asked.batch_size, delta_saves=0)
        limits: dict[str, Any] = {"limit": asked.rows, "say": say}
        share = 0.0 if asked.test else asked.held_out
        dealt = trial.records(program, asked.data, form, work / "data", share, **limits)
        if asked.test:
            dealt |= trial.records(program, asked.test, form, work / "data", 1.0, **limits)
        train, test = dealt["train"], dealt["test"]
        say(f"{train.rows:,} rows to train with, {test.rows:,} to test with ({train.skipped:,} skipped)")
        single = Single(program)
        passes = []
        for done in single.passes(train, test, asked.passes, asked.batch_size, say):
            passes.append(done)
            rate = done["samples"] / max(done["seconds"], 1e-9)
            shown = " ".join(
                f"{k}={v:.4f}" for k, v in done.items() if k not in ("pass", "samples", "seconds")
            )
            say(f"pass {len(passes)}: {done['seconds']:.1f} s, {rate:,.0f} samples/s, {shown}")
        score = model.export_single(asked.to, program, config, single, test)
        tables = ", ".join(f"{name}: {len(table):,} ids" for name, table in single.tables.items())
        say(f"model in {asked.to} ({tables or 'no tables'})")
        row = trial.first_row(program, asked.test or asked.data, form)
    answer = Model(asked.to).answer([row])
    words = answer.words[0] if answer.words else None
    said = words or " ".join(f"{value:.4f}" for value in answer.predictions[0].reshape(-1))
    say(f"its prediction of the first row: {said}")
    return {
        "passes": passes,
        "model": str(asked.to),
        "score": score,
        "row": row,
        "prediction": answer.predictions[0].tolist(),
        "words": words,
    }
