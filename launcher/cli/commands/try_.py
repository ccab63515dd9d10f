"""`try`: train a program on this machine, without a cluster, write its model and predict a row."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.cli.errors import CliError, UsageError
from launcher.cli.launch.check_before_upload import CHECKED_ROWS
from launcher.cli.launch.try_options import TryOptions
from launcher.cli.launch.try_script import find_script, train_script
from launcher.cli.shared_options import Format, OutputFormat, with_options
from launcher.cli.terminal import print_json, print_line, report
from launcher.io.program_folders import find_program_file

MODEL_MARKS = ("model.json", "score.json")
"""Files of which a model has at least one."""


@with_options(options=TryOptions)
def try_program(options: TryOptions, output: Format = OutputFormat.text) -> None:
    """Train a program or script on this machine, and write its model; no cluster.

    A program of runtime fleet also predicts one row.
    """
    report_to = report if output is OutputFormat.json else print_line
    check_target(options.to)
    if (script := find_script(options.program)) is not None:
        answer = train_script(script, options, report_to)
    else:
        answer = train_locally(options, report_to)
    if output is OutputFormat.json:
        print_json(answer)


def check_target(to: Path) -> None:
    """Raise UsageError if the folder for the model has other content than a model of an earlier `try`."""
    if to.exists() and not any((to / name).is_file() for name in MODEL_MARKS) and any(to.iterdir()):
        raise UsageError(
            f"--to {to} contains files, but no {' or '.join(MODEL_MARKS)}: `try` replaces only a model",
            "give a new folder",
        )


def train_locally(options: TryOptions, report: Callable[[str], None]) -> dict[str, Any]:
    """Train, write the model, and predict the first row of the test data; `report` receives the progress.

    Return what `try -o json` prints. Raises LauncherError if the program, a row or an option is invalid.
    """
    os.environ.setdefault("GLOG_minloglevel", "1")  # without Paddle's messages about its executors
    report("loading Paddle")
    try:
        import paddle  # noqa: F401
    except ImportError as error:
        raise CliError(
            f"`try` trains on this machine, but Paddle cannot be loaded: {error}",
            "pip install '.[model]' in the project's folder, or run this in the launcher's image",
        ) from error
    from launcher.dataprep.csv_records import RowPlaces
    from launcher.serving.paddle_served import Model
    from launcher.trainer import program_loader
    from launcher.trainer.export import model_writer
    from launcher.trainer.graph import shape_checks
    from launcher.trainer.records import row_parsing
    from launcher.trainer.single_process import program_check, trial_data
    from launcher.trainer.single_process.single_process_trainer import SingleProcessTrainer

    form = options.row_format()
    config = find_program_file(options.program)
    with tempfile.TemporaryDirectory(prefix="paddle-training-try.") as temporary:
        work = Path(temporary)
        options.copy_tables(work / "tables")
        program = program_loader.load_program(config, work / "tables", options.arguments)
        places = RowPlaces(str(options.data))
        first_rows = trial_data.read_rows(
            options.data, form, places, min(CHECKED_ROWS, options.rows or CHECKED_ROWS)
        )
        found, _ = row_parsing.parse_records(first_rows, program, places)
        batch = row_parsing.split_inputs(found[: shape_checks.ROWS]) if len(found) else None
        program_check.check_program(
            program, batch, mode="async", batch_size=options.batch_size, incremental_checkpoints=0
        )
        limits: dict[str, Any] = {"limit": options.rows, "report": report}
        share = 0.0 if options.test else options.held_out
        records = trial_data.write_records(program, options.data, form, work / "data", share, **limits)
        if options.test:
            records |= trial_data.write_records(program, options.test, form, work / "data", 1.0, **limits)
        train, test = records["train"], records["test"]
        report(f"{train.rows:,} rows to train on, {test.rows:,} to test on ({train.skipped:,} skipped)")
        trainer = SingleProcessTrainer(program)
        passes = []
        for done in trainer.passes(train, test, options.passes, options.batch_size, report):
            passes.append(done)
            rate = done["samples"] / max(done["seconds"], 1e-9)
            shown = " ".join(
                f"{key}={value:.4f}"
                for key, value in done.items()
                if key not in ("pass", "samples", "seconds")
            )
            report(f"pass {len(passes)}: {done['seconds']:.1f} s, {rate:,.0f} samples/s, {shown}")
        score = model_writer.export_single_process(options.to, trainer, test)
        tables = ", ".join(f"{name}: {len(table):,} ids" for name, table in trainer.tables.items())
        report(f"model written to {options.to} ({tables or 'no tables'})")
        row = trial_data.first_usable_row(program, options.test or options.data, form)
    answer = Model(options.to).answer([row])
    words = answer.words[0] if answer.words else None
    values = " ".join(f"{value:.4f}" for value in answer.predictions[0].reshape(-1))
    report(f"prediction of the first row: {words or values}")
    return {
        "passes": passes,
        "model": str(options.to),
        "score": score,
        "row": row,
        "prediction": answer.predictions[0].tolist(),
        "words": words,
    }
