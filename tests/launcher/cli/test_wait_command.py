"""`wait`: what it prints, when it returns and with which exit code."""

import dataclasses
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from launcher.cli import run_display
from launcher.cli.cluster_api import UnreachableError
from launcher.cli.errors import CliError, RunFailedError, WaitTimeoutError
from launcher.cli.releases import ReleaseNotFoundError
from launcher.cli.run_view import RunProgress, RunView
from launcher.schema import RestartRecord

from .conftest import K8S_JOB, make_job, make_view
from .fake_cluster import FakeCluster


class Time:
    def __init__(self):
        self.now = 0.0

    def time(self):
        return self.now

    monotonic = time

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def time(monkeypatch):
    fake = Time()
    monkeypatch.setattr(run_display, "time", fake)
    return fake


def a_view(state="training", batch=0, number=0, run_id="run-1", **more):
    progress = RunProgress(
        state=state,
        number=number,
        passes=10,
        batch=batch,
        batches=100,
        samples_per_second=1000.0,
        loss=0.5,
        eta=60.0,
    )
    return RunView("here", run_id, state, progress=progress, **more)


def follow(views, timeout=1000.0):
    """Follow a run with one of `views` at each poll, the last one repeatedly; raise those that are errors."""
    left, printed = list(views), []

    def poll():
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    printer = run_display.LinePrinter(printed.append)
    try:
        run_display.poll_until_over(poll, printer.print_view, printed.append, timeout)
    except CliError as error:
        return printed, error
    return printed, None


def test_a_training_that_somebody_stops_is_reported_once_with_who_and_how_to_resume_it():
    job = make_job(K8S_JOB, suspended=True)
    owner = {"manager": "paddle-training:ann@desk", "time": "2026-11-21T04:00:00Z"}
    job["metadata"]["managedFields"] = [
        {"manager": "helm", "fieldsV1": {"f:spec": {"f:parallelism": {}}}},
        {**owner, "fieldsV1": {"f:spec": {"f:suspend": {}}}},
    ]
    stopped = make_view(job)
    running = dataclasses.replace(stopped, state="training")
    printed, error = follow(
        [running, stopped, stopped, running, stopped, dataclasses.replace(running, state="complete")]
    )
    assert error is None
    said = [line for line in printed if "was stopped" in line]
    assert len(said) == 2, "once for each stop"
    assert "(spec.suspend is true (set by paddle-training:ann@desk at 2026-11-21T04:00:00Z))" in said[0]
    assert "Resume it: python -m launcher resume" in said[0]
    queued = dataclasses.replace(stopped, training=dataclasses.replace(stopped.training, queue="research"))
    printed, _ = follow([queued, dataclasses.replace(running, state="complete")])
    assert not any("was stopped" in line for line in printed), "a queue starts it"


@pytest.mark.parametrize(
    ("second", "run_id", "line"),
    [
        (a_view(run_id="run-2"), "run-2", "run run-1 was replaced by an upgrade; now following run-2"),
        (UnreachableError("cannot be reached"), "run-1", "cannot be reached. Retrying."),
    ],
)
def test_an_upgrade_and_an_unreachable_api_server_are_reported_and_do_not_end_the_wait(second, run_id, line):
    printed, error = follow([a_view(), second, a_view("complete", run_id=run_id)])
    assert (error, line in printed) == (None, True)


@pytest.mark.parametrize(
    ("views", "raised", "message"),
    [
        ([a_view(), ReleaseNotFoundError(FakeCluster(), "x")], RunFailedError, "removed while waiting"),
        ([a_view(), UnreachableError("cannot be reached")], UnreachableError, "cannot be reached"),
        ([UnreachableError("never answered")], UnreachableError, "never answered"),
    ],
)
def test_a_removed_release_and_an_api_server_that_stays_unreachable_stop_the_wait(views, raised, message):
    _, error = follow(views, timeout=10000)
    assert isinstance(error, raised)
    assert message in str(error)


FAILED = a_view("failed")


@pytest.mark.parametrize(
    ("views", "lines"),
    [
        ([(0, a_view(batch=1)), (4, a_view(batch=2))], 1),
        ([(0, a_view(batch=1)), (5, a_view(batch=2))], 2),
        ([(0, a_view(number=0)), (0, a_view(number=0)), (0, a_view(number=1)), (100, a_view(number=1))], 2),
        ([(0, a_view("complete")), (0, a_view("complete", score={"error": 0.25}))], 2),
        ([(0, dataclasses.replace(FAILED, progress=None)), (0, FAILED)], 1),
    ],
    ids=["early figures", "late figures", "a new pass", "a new score", "an equal line"],
)
def test_figures_are_printed_at_most_every_five_seconds_news_at_once_and_equal_lines_once(time, views, lines):
    printed = []
    printer = run_display.LinePrinter(printed.append)
    for at, view in views:
        time.now = at
        printer.print_view(view)
    assert len(printed) == lines
    assert views[-1][1].score == {} or "score error 0.2500" in printed[-1]


def restarted(count, **more):
    """Return a view after that many restarts."""
    restarts = tuple(RestartRecord(attempt, f"{attempt}\nlog line", 0.0) for attempt in range(count))
    view = a_view(**more)
    return dataclasses.replace(
        view, progress=dataclasses.replace(view.progress, attempt=count, restarts=restarts)
    )


@pytest.mark.parametrize(
    ("views", "restarts"),
    [
        ([restarted(0), restarted(2), restarted(2), restarted(3)], [(1, 0), (2, 1), (3, 2)]),
        ([restarted(2), RunView("here", "run-1", "pending"), restarted(2)], []),
        ([restarted(2), restarted(0, run_id="run-2"), restarted(1, run_id="run-2")], [(1, 0)]),
    ],
    ids=["each once with its cause", "earlier ones are counted only", "another run's from 1"],
)
def test_restarts_are_printed(views, restarts):
    last = dataclasses.replace(views[-1], state="complete")
    printed, error = follow([*views, last])
    assert error is None
    assert [line for line in printed if line.startswith("restart ")] == [
        f"restart {count}, at 1970-01-01 00:00:00Z: attempt {k} failed, attempt {k + 1} starts; cause: {k}"
        for count, k in restarts
    ]
    shown = len(last.progress.restarts)
    assert printed[-1].endswith(f"attempt {shown}, {shown} restart{'s' if shown > 1 else ''}")


def session(view):
    """Return a session of a run in the state `view`."""
    return SimpleNamespace(options=lambda: ["--release", "mine"], read_view=lambda log_lines=0: view)


def test_notes_on_a_complete_run_are_printed_without_a_screen(capsys):
    complete = a_view("complete", score={"error": 0.25}, notes=("3 passes already",))
    run_display.follow_run(session(complete), 10)
    assert capsys.readouterr().out.endswith("3 passes already\n")


def test_a_failed_run_is_an_error_with_its_cause_and_the_command_for_its_log():
    fix = "find the reason in the log of rank 0: python -m launcher logs --release mine"
    with pytest.raises(RunFailedError, match=rf"^the run failed: rank 1: SIGSEGV\. Fix: {fix}$") as raised:
        run_display.follow_run(session(a_view("failed", cause="rank 1: SIGSEGV")), 10)
    assert raised.value.exit_code == 1


def test_the_cause_of_a_failure_is_once_on_the_screen(monkeypatch):
    drawn = io.StringIO()
    screen = Console(file=drawn, force_terminal=True, width=200)
    monkeypatch.setattr(run_display, "console", lambda: screen)
    with pytest.raises(RunFailedError, match=r"^the run failed\. Fix: correct the cause that is shown above"):
        run_display.follow_run(session(a_view("failed", cause="rank 1: SIGSEGV")), 10)
    assert "cause: rank 1: SIGSEGV" in drawn.getvalue()


def test_suggested_commands_select_the_followed_release():
    with pytest.raises(WaitTimeoutError, match=r"larger --timeout: python -m launcher wait --release mine$"):
        run_display.follow_run(session(a_view()), 0)
