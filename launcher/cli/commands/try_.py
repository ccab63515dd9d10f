"""`try`: train a program or script on this machine, without a cluster, and write its model."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import script_main
from launcher.cli.errors import CliError, UsageError
from launcher.cli.launch_training import Values, apply_settings, complete_values, read_values
from launcher.cli.packages import PythonEnvironment, find_requirements, install_packages
from launcher.cli.program_files import SCRIPT_OUTPUT, find_main, list_files
from launcher.cli.shared_options import Format, ProgramOptions, with_options
from launcher.cli.terminal import print_json, print_line, report
from launcher.cli.uploads import row_format
from launcher.errors import DataError
from launcher.io import files
from launcher.io.helper_protocol import python_environ
from launcher.io.program_folders import BUILT_IN, CONFIG, find_program_file
from launcher.metrics import TEST, parse_metrics, pass_table
from launcher.paths import OutputPaths
from launcher.runtimes.collective import script_command
from launcher.runtimes.ps import SERVER_ROLE, TRAINER_ROLE, describe_world
from launcher.supervisor.timings import Timings

if TYPE_CHECKING:
    from launcher.trainer.trial_data import RowFormat

HELD_OUT = 0.1
"""Share of the rows to test on, without --test."""
MODEL_MARKS = ("model.json", "score.json")
"""Files of which a model has at least one."""
SEED = 1  # seed of the random choice of the rows to test on
STDERR = 2  # file descriptor


@dataclass(frozen=True, kw_only=True)
class TryOptions(ProgramOptions):
    """The options of `try`."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Rows to train on, also compressed (.gz, .bz2, .xz), or for a script a folder of files. A script may "
            "read its own data instead.",
        ),
    ] = None
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to test on; default: a tenth of --data.")
    ] = None
    table: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A side table: a file that the program reads next to the rows."),
    ] = None
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Read only the first N rows of each file.")
    ] = None
    passes: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 3
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model.")] = Path("tried-model")

    @functools.cached_property
    def chart_values(self) -> Values:
        """The chart's defaults, overridden by the values of -f and --set. Raises UsageError if a value is invalid."""
        return complete_values(apply_settings(read_values(self.values or ()), self.settings or ()))

    @property
    def row_format(self) -> RowFormat:
        """The format of the files with rows."""
        return row_format(self.chart_values["data"])

    @property
    def argument_list(self) -> tuple[str, ...]:
        """The options of the program or script as command-line arguments, such as `--width=4`."""
        return tuple(self.arguments or self.chart_values["training"]["args"])

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of this process, and those of `extraEnv` that have a plain value.

        A value of `extraEnv` has precedence, but PYTHONPATH contains the folders of both.
        """
        found = {one["name"]: str(one["value"]) for one in self.chart_values["extraEnv"] if "value" in one}
        search = filter(None, (found.get("PYTHONPATH"), os.environ.get("PYTHONPATH")))
        return {**os.environ, **found, "PYTHONPATH": os.pathsep.join(search)}

    @property
    def batch_size(self) -> int:
        """Number of rows in a batch."""
        return int(self.chart_values["training"]["batchSize"])

    def copy_tables(self, folder: Path) -> None:
        """Create `folder`, and copy the side tables into it."""
        folder.mkdir()
        for table in self.table or ():
            files.copy_file(table, folder / table.name)


@with_options(options=TryOptions)
def try_program(options: TryOptions, output: Format = "text") -> None:
    """Train a program or script on this machine, and write its model; no cluster.

    A program of runtime fleet also predicts one row.
    """
    report_to = report if output == "json" else print_line
    check_target(options.to)
    script = find_script(options)
    is_folder = options.data is not None and options.data.is_dir()
    if script is None and (options.data is None or is_folder):
        raise UsageError("there are no rows to train on", "give --data FILE")
    if is_folder and (options.test or options.table):
        raise UsageError(
            "--data is a folder, and --test or --table a file next to rows", "put the file into it"
        )
    with tempfile.TemporaryDirectory(prefix="paddle-training-packages.") as temporary:
        packages = install_own_packages(options, Path(temporary, "packages"), report_to)
        if script is not None:
            answer = train_script(script, options, packages, report_to)
        else:
            if packages:
                site.addsitedir(str(packages))
            assert options.data is not None  # noqa: S101 - checked above
            answer = train_locally(options, options.data, report_to)
    if output == "json":
        print_json(answer)


def install_own_packages(options: TryOptions, folder: Path, report: Callable[[str], None]) -> Path | None:
    """Install the packages that the program needs and this Python lacks into `folder`, and return `folder`.

    Return None if nothing has to be installed. Raises the errors of `install_packages`.
    """
    program = options.program if options.program.is_dir() else options.program.parent
    requirements = find_requirements(program, options.requirements)
    if requirements is None:
        return None
    names = install_packages(requirements, PythonEnvironment.of_this_machine(), folder)
    report(f"packages of {requirements}: {', '.join(names) or 'this Python has all of them'}")
    return folder if names else None


def check_target(to: Path) -> None:
    """Raise UsageError if the folder for the model contains files, but no model or output of an earlier `try`."""
    is_ours = any((to / name).is_file() for name in MODEL_MARKS)
    if to.exists() and not is_ours and any(entry.name != SCRIPT_OUTPUT for entry in to.iterdir()):
        raise UsageError(
            f"--to {to} contains files, but no {' or '.join(MODEL_MARKS)}: `try` replaces only a model",
            "give a new folder",
        )


def train_locally(options: TryOptions, data: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Train on the rows of the file `data`, write the model to `options.to`, and predict one row.

    The row is the first usable row of `--test`, or without `--test` of `data`.

    A model of an earlier `try` in this folder is replaced. `report` receives the progress. Return what `try -o json`
    prints.

    Raises:
        CliError: Paddle is not installed.
        LauncherError: the program, a row or an option is invalid, training diverged, or the model cannot be written.
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
    from launcher.trainer import export, network, program_loader, record_files, single_process, trial_data
    from launcher.trainer.evaluation import score_model

    form = options.row_format
    config = find_program_file(options.program)
    with tempfile.TemporaryDirectory(prefix="paddle-training-try.") as temporary:
        work = Path(temporary)
        options.copy_tables(work / "tables")
        program = program_loader.load_program(config, work / "tables", options.argument_list)
        places = RowPlaces(str(data))
        checked = trial_data.CHECKED_ROWS
        first_rows = trial_data.read_rows(data, form, places, min(checked, options.rows or checked))
        found, _ = record_files.parse_records(first_rows, program, places)
        trial_data.check_parse_columns(program, data, form)
        batch = record_files.split_inputs(found[: network.ROWS]) if len(found) else None
        single_process.check_program(program, batch, "async", options.batch_size)
        limits: dict[str, Any] = {"limit": options.rows, "report": report}
        share = 0.0 if options.test else HELD_OUT
        written = trial_data.write_records(program, data, form, work / "data", share, **limits)
        if options.test:
            written |= trial_data.write_records(program, options.test, form, work / "data", 1.0, **limits)
        train, test = written["train"], written["test"]
        report(f"{train.rows:,} rows to train on, {test.rows:,} to test on ({train.skipped:,} skipped)")
        trainer = single_process.SingleProcessTrainer(program)
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
        tables = {name: table.rows() for name, table in trainer.tables.items()}
        calculate_score = functools.partial(score_model, program, test)
        score = export.export_from_memory(options.to, program, trainer.parameters(), tables, calculate_score)
        shown = ", ".join(f"{name}: {len(rows.ids):,} ids" for name, rows in tables.items())
        report(f"model written to {options.to} ({shown or 'no tables'})")
        row = trial_data.first_usable_row(program, options.test or data, form)
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


@dataclass(frozen=True)
class Script:
    """A script to try."""

    folder: Path
    """The working directory of the script."""
    main: str
    """The path of the script's file below `folder`, or the name of its module."""
    uses_servers: bool
    """Whether the script needs a parameter server (runtime ps)."""


def find_script(options: TryOptions) -> Script | None:
    """Return the user's script: the program itself if it is a file, else the script in the program's folder.

    Return None for a program of runtime fleet, which is not a script.

    Raises:
        UsageError: the folder has no single script and `--script` does not choose one.
        SettingsError: there is no such program.
    """
    program = next((path for path in (options.program, BUILT_IN / options.program) if path.exists()), None)
    if program is None or (not options.script and (program / CONFIG).is_file()):
        find_program_file(options.program)
        return None
    folder, chosen = (program, options.script or "") if program.is_dir() else (program.parent, program.name)
    names = [chosen] if program.is_file() else [name for name, _ in list_files(program)]
    main, found = find_main(folder, names, chosen)
    if found == "fleet":
        return None
    return Script(folder.resolve(), main, "ps" in (found, options.chart_values["runtime"]))


def run_script(script: Script, options: TryOptions, env: dict[str, str]) -> int:
    """Run a script to its end, with a parameter server next to it if it needs one; return the script's exit code.

    If the server fails before the script exits, or exits with 0 and the script still runs after `early_pserver_exit`
    seconds, kill the script, and return the exit code of the server, or 1 instead of 0.
    """
    words = script_command(script.main, options.argument_list, env)
    argv = [sys.executable, script_main.__file__, *words]
    if not script.uses_servers:
        return subprocess.run(argv, cwd=script.folder, env=env, stdout=STDERR, check=False).returncode
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        server, trainer, gloo = (f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    world = describe_world([server], [trainer], gloo, Path(env["PADDLE_LAUNCHER_OUTPUT_DIR"]) / "gloo")
    env = env | world | {"POD_IP": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            argv,
            cwd=script.folder,
            env=env | role | {"PADDLE_PORT": end.rpartition(":")[2]},
            stdout=STDERR,
            start_new_session=True,
        )
        for end, role in ((server, SERVER_ROLE), (trainer, TRAINER_ROLE))
    ]
    served, trained = processes
    try:
        # A script may stop its servers, and then work on for a while.
        seconds = Timings().early_pserver_exit
        while trained.poll() is None and not served.poll() and seconds > 0:
            time.sleep(0.1)
            seconds -= 0.1 if served.returncode == 0 else 0
        if trained.returncode is None:
            report(f"the parameter server exited with code {served.returncode} before the trainer")
        return int(served.returncode or 1) if trained.returncode is None else trained.returncode
    finally:
        for process in processes:  # with their own children, such as gloo's store
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def split_rows(rows: Iterable[Any], held_out: float, train: Path, test: Path) -> tuple[int, int]:
    """Write each row to the file `test` with the probability `held_out`, else to the file `train`.

    Return (number of rows in `train`, number of rows in `test`).
    """
    draw, counts = random.Random(SEED), [0, 0]  # noqa: S311 - no secret
    with train.open("wb") as first, test.open("wb") as second:
        for row in rows:
            is_test = draw.random() < held_out
            (second if is_test else first).write(f"{row}\n".encode("utf-8", "surrogateescape"))
            counts[is_test] += 1
    return counts[0], counts[1]


def train_script(
    script: Script, options: TryOptions, packages: Path | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run the script as the only trainer of a run without launchers, and copy its model to the folder `options.to`.

    If the script saved no model, what it wrote below {output_dir} is copied to the folder SCRIPT_OUTPUT in
    `options.to`. `packages` is the folder of the program's own packages. What the script prints goes to stderr.

    Returns:
        A dict with `passes` (a dict for each pass in metrics.csv), `score` (the test scores) and `model` (the folder of
        the model, or None if the script saved no model).

    Raises:
        CliError: the script failed.
        DataError: there is no row to train on.
    """
    from launcher.trainer import trial_data

    form = options.row_format
    is_parquet = form.format == "parquet"

    def split(file: Path, share: float, train: Path, test: Path) -> tuple[int, int]:
        if is_parquet:
            return trial_data.split_parquet(file, form, share, options.rows, (train, test))
        return split_rows(trial_data.read_rows(file, form, limit=options.rows), share, train, test)

    with tempfile.TemporaryDirectory(prefix="paddle-training-try.") as temporary:
        work = Path(temporary)
        output, suffix = OutputPaths(work / "output"), "parquet" if is_parquet else "txt"
        train, test = work / f"train.{suffix}", work / f"test.{suffix}"
        share = 0.0 if options.test else HELD_OUT
        is_folder = options.data and options.data.is_dir() and not is_parquet
        folder = options.data if is_folder else None
        rows = None if folder else options.data
        counts = split(rows, share, train, test) if rows else (0, 0)
        if options.test:
            counts = counts[0], split(options.test, 1.0, work / "unused", test)[1]
        if rows and not counts[0]:
            raise DataError(
                "there is no row to train on. Fix: use more rows, or give the test rows with --test"
            )
        if rows:
            report(f"{counts[0]:,} rows to train on, {counts[1]:,} to test on")
        options.copy_tables(work / "tables")
        ranks = dict.fromkeys(("PADDLE_TRAINER_ID", "PADDLE_LOCAL_RANK", "RANK", "LOCAL_RANK"), 0)
        sizes = ("PADDLE_TRAINERS_NUM", "PADDLE_LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        launcher = {
            "PADDLE_LAUNCHER_PASSES": options.passes,
            "PADDLE_LAUNCHER_BATCH_SIZE": options.batch_size,
            "PADDLE_LAUNCHER_TRAIN_FILE": train if counts[0] else "",
            "PADDLE_LAUNCHER_TEST_FILE": test if counts[1] else "",
            "PADDLE_LAUNCHER_TABLES_DIR": work / "tables",
            "PADDLE_LAUNCHER_DATA_DIR": folder.absolute() if folder else "",
            "PADDLE_LAUNCHER_OUTPUT_DIR": output.root,
            "PADDLE_LAUNCHER_CHECKPOINT_DIR": output.script_checkpoints,
            "PADDLE_LAUNCHER_PACKAGES_FIRST": 1,
            "PYTHONDONTWRITEBYTECODE": 1,
        }
        own = {name: str(value) for name, value in (ranks | dict.fromkeys(sizes, 1) | launcher).items()}
        env = python_environ(options.environment, packages) | own
        output.script_checkpoints.mkdir(parents=True)
        if code := run_script(script, options, env):
            raise CliError(
                f"{script.main} in {script.folder} exited with code {code}",
                "read its messages above, and correct the script",
            )
        text = files.read_bytes(output.metrics_csv) or b""
        passes = pass_table(parse_metrics(text.decode(errors="replace")))
        for row in passes:
            scores = {name.removeprefix(TEST): score for name, score in row.items() if name.startswith(TEST)}
            shown = {"train_loss": row["train_loss"], **scores}
            described = " ".join(f"{name}={score:.4f}" for name, score in shown.items())
            report(f"pass {row['pass'] + 1}: {row['seconds']:.1f} s, {described}")
        score = files.read_json(output.model / "score.json") or {}
        # A script may also write a folder `model` of its own.
        if is_model := any((output.model / name).is_file() for name in MODEL_MARKS):
            files.copy_folder(output.model, options.to)
            report(f"model written to {options.to}")
        elif written := files.folder_files(output.root):
            files.copy_folder(output.root, options.to / SCRIPT_OUTPUT)
            report(f"written below {{output_dir}}: {len(written)} files, now in {options.to / SCRIPT_OUTPUT}")
        return {"passes": passes, "score": score, "model": str(options.to) if is_model else None}
