"""The commands a person types. Exit codes: 0 done, 1 the training failed, 2 the deadline of `wait` passed,
3 the cluster or storage could not be asked, 64 wrong usage."""

# ruff: noqa: PLR0917 - a command's options are its parameters
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.live import Live

from launcher.cli import leftovers, predicting, render, trying, waiting
from launcher.cli import logs as logs_of
from launcher.cli import push as pushing
from launcher.cli import results as results_of
from launcher.cli import runs as runs_of
from launcher.cli.cluster import connect
from launcher.cli.options import Context, Kubeconfig, Namespace, Release, on_a_session, say
from launcher.cli.problems import EXIT_USAGE, CliError, UsageError
from launcher.cli.session import COPY_SECONDS, OUTPUT, ClusterSession, Session
from launcher.cli.view import View
from launcher.errors import LauncherError
from launcher.layout import Output as LayoutOutput
from launcher.tarstream import ReaderError


class Output(StrEnum):
    """How answers are printed."""

    text = "text"
    json = "json"


class Role(StrEnum):
    """Whose log."""

    trainer = "trainer"
    pserver = "pserver"
    data = "data"


Format = Annotated[Output, typer.Option("--output", "-o", help="json for scripts.")]

PARSER_USAGE = 2

typer_app = typer.Typer(
    name="python -m launcher",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look at and fetch the results of a PaddlePaddle training on Kubernetes. Exit codes: 0 done, "
    "1 the training failed, 2 --timeout passed, 3 cluster or storage could not be asked, 64 wrong usage.",
)


@typer_app.command()
@on_a_session
def status(
    session: Session,
    output: Format = Output.text,
) -> None:
    """State of the data Job and the training, rank by rank, its restarts, and why what waits does not run."""
    view = session.look()
    if output is Output.json:
        render.print_json(view.as_json())
    else:
        render.consoles()[0].print(render.screen(view))


@typer_app.command()
@on_a_session
def logs(
    session: Session,
    rank: Annotated[int, typer.Option(min=0, help="Which rank.")] = 0,
    role: Annotated[
        Role | None, typer.Option(help="trainer or pserver: that process's log. Default: the pod's own log.")
    ] = None,
    server: Annotated[int, typer.Option(min=0, help="Which pserver of the rank.")] = 0,
    attempt: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="That attempt's log. They count from 0, as their folders node_<rank>/attempt-<K>/ do; "
            "default: the newest.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run is over, restarts included.")
    ] = False,
) -> None:
    """Print a log: of the pod while it exists, else from output/node_<rank>/ on the shared storage."""
    for block in logs_of.read(
        session,
        rank=rank,
        role=role.value if role else None,
        server=server,
        attempt=attempt,
        following=follow,
        say=say,
    ):
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


@contextmanager
def _shower(output: Output) -> Iterator[Callable[[View], None]]:
    out, _ = render.consoles()
    if output is Output.text and out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            yield lambda view: live.update(render.screen(view), refresh=True)
    else:
        said = say if output is Output.json else lambda text: print(text, flush=True)
        yield waiting.Teller(said).tell


@typer_app.command()
@on_a_session
def wait(
    session: Session,
    timeout: Annotated[
        float, typer.Option(min=0, help="Give up after so many seconds (exit code 2).")
    ] = 7200.0,
    output: Format = Output.text,
) -> None:
    """Follow the run through its restarts: exit 0 when complete, 1 when failed, 2 when --timeout passed."""
    with _shower(output) as show:
        view = waiting.follow(session.glance, show, say, timeout)
        if not view.score:  # a glance reads no file once the pods are gone
            view = session.look()
            show(view)
    if output is Output.json:
        render.print_json(view.as_json())


@typer_app.command()
@on_a_session
def results(
    session: Session,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Copy model, curve, metrics and logs there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="One that was moved aside, as `runs` shows it."),
    ] = None,
    output: Format = Output.text,
) -> None:
    """Score and table of passes; with --to a verified copy of model, curve.png, metrics.csv and logs."""
    with session.storage(seconds=COPY_SECONDS, fresh=to is not None) as storage:
        folder = OUTPUT
        if run is not None:
            folder = LayoutOutput(Path(runs_of.find(runs_of.load(storage), run).folder))
        found = results_of.load(storage, storage.where, folder)
        if to is not None and not found.has_model:
            say(f"the run is {found.state} and has no {folder.model} yet; copying what there is")
        copied = results_of.copy(storage, to, force, say, folder) if to is not None else {}
    if output is Output.json:
        render.print_json({**found.__dict__, "copied": {"to": str(to), "files": copied} if to else None})
        return
    out, _ = render.consoles()
    restarts = f" (restarts: {len(found.restarts)}; `status` tells why)" if found.restarts else ""
    out.print(f"run {found.run_id}: {found.state}{restarts}")
    out.print(f"score on the test set: {render.scores(found.score) or 'none yet'}")
    if found.passes:
        out.print(results_of.pass_table(found.passes))
    if found.exported:
        out.print(f"exported to {found.exported}")
    if to is None:
        out.print(
            f"on the storage: {found.where}/{folder.root} (model/, curve.png, metrics.csv, node_*/); "
            "--to DIR copies it"
        )
    else:
        out.print(f"copied to {to}: " + ", ".join(sorted({name.split("/", 1)[0] for name in copied})))


@typer_app.command()
@on_a_session
def runs(
    session: Session,
    output: Format = Output.text,
) -> None:
    """List the job's runs, also those that were moved aside: settings, score, time and pod hours."""
    with session.storage() as storage:
        found = runs_of.load(storage)
    if output is Output.json:
        render.print_json([past.as_json() for past in found])
    else:
        render.consoles()[0].print(runs_of.runs_table(found) if found else "no run has written there yet")


@typer_app.command()
@on_a_session
def compare(
    session: Session,
    one: Annotated[
        str, typer.Argument(metavar="A", help="A run's name as `runs` shows it, or its beginning.")
    ],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one; `output` is the present run.")],
    output: Format = Output.text,
) -> None:
    """Show the settings in which two runs differ, and their losses and scores pass by pass."""
    with session.storage() as storage:
        found = runs_of.load(storage)
    both = [runs_of.find(found, name) for name in (one, other)]
    if output is Output.json:
        render.print_json({"differing": runs_of.differing(both), "runs": [past.as_json() for past in both]})
    else:
        render.consoles()[0].print(runs_of.comparison(*both))


@typer_app.command()
@on_a_session
def clean(
    session: Session,
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N of them.")] = 5,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Keep those that ended within so many days.")
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs that were moved aside; never one that a pod uses, nor the present output."""
    with session.storage(seconds=COPY_SECONDS, writable=True) as storage:
        found = runs_of.load(storage)
        going, staying = runs_of.unused(found, keep, older_than, runs_of.read_by_pods(session, found))
        for past, why in staying:
            say(f"keeps {past.name}: {why}")
        if not going:
            say("nothing to remove")
            return
        names = ", ".join(past.name for past in going)
        if not yes and not (sys.stdin.isatty() and typer.confirm(f"Remove for good: {names}?", err=True)):
            raise UsageError(
                f"{names} would be removed for good; nothing was. Say --yes where nobody can be asked."
            )
        freed = runs_of.remove(storage, going)
    print(f"removed {names}: {freed:,} bytes are free")


typer_app.command("leftovers")(on_a_session(leftovers.command))


@typer_app.command()
@on_a_session
def push(
    session: Session,
    src: Annotated[
        Path, typer.Argument(metavar="SRC", help="A program's folder, or a data file with --source.")
    ],
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Its name on the storage.")] = None,
    source: Annotated[bool, typer.Option("--source", help="SRC is a data file for file:// sources.")] = False,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="For that jobName; default: the release's present one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what has that name already.")] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="See first whether the program has all its parts.")
    ] = True,
    output: Format = Output.text,
) -> None:
    """Bring a program or a data file onto the shared storage, and say which values name it."""
    parcel = pushing.source(src, name) if source else pushing.program(src, name, check)
    with session.storage(seconds=COPY_SECONDS, writable=True) as storage:
        if job is not None:
            storage.job = storage.job.parent / pushing.checked(job, "--job")
        where = pushing.send(storage, parcel, force, say)
    if output is Output.json:
        render.print_json({"path": where, "values": parcel.values})
        return
    values = [f"--set-string {key}={value}" for key, value in parcel.values.items()]
    if isinstance(session, ClusterSession) and job is None:
        print(f"{where} is there. Train with it:")
        command = f"helm upgrade {session.release} charts/paddle-training -n {session.cluster.namespace}"
        print(" \\\n    ".join([f"  {command} --reset-then-reuse-values", *values]))
    else:
        print("\n  ".join([f"{where} is there. Use it with these values:", *values]))


@typer_app.command()
def base(
    release: Release = "paddle-training",
    namespace: Namespace = "paddle",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the values that are the cluster's, not one training's: image, storage, scheduling, network.

    With `--reset-values -f base.yaml -f MINE.yaml` a training is one whole file, and nothing of the last
    one stays in it.
    """
    cluster = connect(kubeconfig, context, namespace)
    sys.stdout.write(ClusterSession(cluster, release, say).base())


@typer_app.command("try")
def try_out(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="A program's folder or file, or one of ours: ctr, …")
    ],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Rows to train with; .gz is unpacked.")],
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to test with; else some of --data are held out.")
    ] = None,
    held_out: Annotated[float, typer.Option(min=0.001, max=0.5, help="Share of rows to test with.")] = 0.1,
    table: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A side table of the program (data.tables).")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the program.")
    ] = None,
    passes: Annotated[int, typer.Option(min=1)] = 3,
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    csv: Annotated[bool, typer.Option("--csv", help="The files are csv (data.format); else lines.")] = False,
    delimiter: Annotated[str, typer.Option(help="Between fields of csv.")] = ",",
    header: Annotated[bool, typer.Option(help="Whether the first csv record names the columns.")] = True,
    columns: Annotated[str, typer.Option(help="csv columns to keep: a,b or 0,3; empty: all.")] = "",
    encoding: Annotated[str, typer.Option(help="Of the files.")] = "utf-8",
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the model goes.")] = Path("tried-model"),
    output: Format = Output.text,
) -> None:
    """Train a program in this one process, write its model, predict a row with it; no cluster."""
    asked = trying.Request(
        program=program,
        data=data,
        test=test,
        held_out=held_out,
        tables=table or [],
        options=option or [],
        passes=passes,
        batch_size=batch_size,
        csv=csv,
        delimiter=delimiter,
        header=header,
        columns=trying.columns(columns),
        encoding=encoding,
        to=to,
    )
    done = trying.run(asked, say if output is Output.json else lambda text: print(text, flush=True))
    if output is Output.json:
        render.print_json(done)


@typer_app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What `results --to` copied; or a model/.")],
    cells: Annotated[
        list[str] | None, typer.Argument(metavar="COLUMN=VALUE…", help="One row; the label may be left out.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More rows, a JSON object a line; -: stdin.")
    ] = None,
    output: Format = Output.text,
) -> None:
    """What a model says of rows: the program's own words, or the whole vector."""
    found = predicting.run(model, cells or [], rows)
    if output is Output.json:
        render.print_json(found)
        return
    for one in found:
        print(predicting.text(one))
    unknown = [f"{count} of {table}" for table, count in found[0]["unknownIds"].items() if count]
    if unknown:
        say(f"ids that the model does not know, read as zeros: {', '.join(unknown)}")


def app(args: list[str] | None = None, prog_name: str = "python -m launcher") -> NoReturn:
    """Run one command and end the process with its exit code."""
    sys.exit(run(args, prog_name))


def run(args: list[str] | None = None, prog_name: str = "python -m launcher") -> int:
    """Run one command and return its exit code; every foreseeable trouble is one message on stderr."""
    signal.signal(signal.SIGINT, _interrupted)
    try:
        typer_app(args, prog_name=prog_name)
    except (
        SystemExit
    ) as end:  # 2 is the parser's own code for wrong usage, which is `wait`'s for its deadline here
        code = end.code if isinstance(end.code, int) else 0
        return EXIT_USAGE if code == PARSER_USAGE else code
    except LauncherError as error:
        say(f"error: {error}")
        return error.exit_code
    except ReaderError as error:
        say(f"error: {error}")
        return CliError.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        return 128 + signal.SIGPIPE
    except OSError as error:
        say(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return CliError.exit_code
    return 0


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # the parser would end with 1, which means that the training failed
