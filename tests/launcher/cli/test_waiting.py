"""wait: what it says, when it ends and with which code."""

import dataclasses

import pytest

from launcher.cli import live, waiting
from launcher.cli.cluster import UnreachableError
from launcher.cli.problems import CliError, RunFailed, WaitedTooLong
from launcher.cli.progress import Progress, Restart
from launcher.cli.view import JobView, View


class Time:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def a_view(state="training", batch=0, number=0, run_id="run-1", **more):
    progress = Progress(state, 0, number, 10, batch, 100, 1000.0, 0.5, 60.0, None)
    return View("here", run_id, state, progress=progress, **more)


def follow(views, timeout=1000.0):
    """Follow `views` one a look (the last for ever); an exception among them is raised."""
    left, said, time = list(views), [], Time()

    def look():
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    teller = waiting.Teller(said.append, time)
    try:
        waiting.follow(look, teller.tell, said.append, timeout, clock=time, sleep=time.sleep)
    except CliError as error:
        return said, error
    return said, None


def test_it_returns_when_the_run_is_complete():
    said, error = follow([a_view(), a_view("complete")])
    assert error is None
    assert said[-1].startswith("complete")


def test_a_failure_ends_with_code_1_and_its_cause():
    _, error = follow([a_view(), a_view("failed", cause="rank 1: SIGSEGV")])
    assert isinstance(error, RunFailed)
    assert (error.exit_code, str(error)) == (1, "the run failed: rank 1: SIGSEGV")


def test_the_deadline_ends_with_code_2_and_says_what_is_waited_for():
    data = JobView("quick-start-data", "running")
    _, error = follow([View("here", "run-1", "preparing", data=data)], timeout=60)
    assert isinstance(error, WaitedTooLong)
    assert error.exit_code == 2
    assert (
        str(error) == "gave up after 1 min 00 s; still waiting for: data job still running: quick-start-data"
    )


def test_a_run_replaced_by_an_upgrade_is_said_and_the_new_one_followed():
    said, error = follow([a_view(), a_view(run_id="run-2"), a_view("complete", run_id="run-2")])
    assert error is None
    assert "run run-1 was replaced by an upgrade; now following run-2" in said


def test_a_removed_release_ends_the_waiting():
    _, error = follow([a_view(), CliError("no release x of this chart in namespace y")])
    assert isinstance(error, RunFailed)
    assert "removed while waiting" in str(error)


def test_an_api_server_that_comes_back_is_waited_for():
    said, error = follow([a_view(), UnreachableError("cannot be reached."), a_view("complete")])
    assert error is None
    assert "cannot be reached. Trying again." in said


def test_an_api_server_that_stays_away_ends_the_waiting():
    _, error = follow([a_view(), UnreachableError("cannot be reached.")], timeout=10000)
    assert isinstance(error, UnreachableError)


def test_an_api_server_that_was_never_there_is_not_waited_for():
    _, error = follow([UnreachableError("cannot be reached.")])
    assert isinstance(error, UnreachableError)


@pytest.mark.parametrize(("seconds", "lines"), [(4.0, 1), (5.0, 2)])
def test_figures_are_told_at_most_every_five_seconds(seconds, lines):
    time, said = Time(), []
    teller = waiting.Teller(said.append, time)
    teller.tell(a_view(batch=1))
    time.now = seconds
    teller.tell(a_view(batch=2))
    assert len(said) == lines


def test_a_new_pass_is_told_at_once_and_the_same_figures_never_twice():
    time, said = Time(), []
    teller = waiting.Teller(said.append, time)
    for number in (0, 0, 1):
        teller.tell(a_view(number=number))
    time.now = 100
    teller.tell(dataclasses.replace(a_view(number=1)))
    assert len(said) == 2


def restarted(count, **more):
    """A view after that many restarts."""
    restarts = tuple(Restart(attempt, f"{attempt}\nlog line", 0.0) for attempt in range(count))
    view = a_view(**more)
    return dataclasses.replace(
        view, progress=dataclasses.replace(view.progress, attempt=count, restarts=restarts)
    )


def test_each_restart_is_one_line_with_its_cause_and_is_told_once():
    said, error = follow(
        [restarted(0), restarted(2), restarted(2), restarted(3), restarted(3, state="complete")]
    )
    assert error is None
    assert [line for line in said if line.startswith("restart ")] == [
        f"restart {k + 1}, at 1970-01-01 00:00:00Z: attempt {k} failed, attempt {k + 1} goes on; cause: {k}"
        for k in range(3)
    ]


def test_restarts_from_before_are_counted_and_not_told_again():
    said, _ = follow(
        [restarted(2), View("here", "run-1", "pending"), restarted(2), restarted(2, state="complete")]
    )
    assert not [line for line in said if line.startswith("restart ")]
    assert said[0].endswith("attempt 2, 2 restarts")


def test_another_runs_restarts_begin_anew():
    views = [restarted(2), restarted(0, run_id="run-2"), restarted(1, run_id="run-2")]
    said, _ = follow([*views, restarted(1, run_id="run-2", state="complete")])
    assert [line[:9] for line in said if line.startswith("restart ")] == ["restart 1"]


@pytest.mark.parametrize(
    "state", ["rendezvous", "starting", "restarting", "finishing", "stopped", "exporting"]
)
def test_a_run_that_does_not_train_just_now_is_waited_for(state):
    said, error = follow([a_view(state), a_view("complete")])
    assert error is None
    assert said[0].startswith(f"{state}: ")


def test_a_run_that_waits_for_a_rank_says_so_at_its_deadline():
    view = a_view("rendezvous")
    progress = dataclasses.replace(view.progress, number=None, waiting_for="rank 1 to come")
    said, error = follow([dataclasses.replace(view, progress=progress)], timeout=0)
    assert isinstance(error, WaitedTooLong)
    assert str(error).endswith("still waiting for: rank 1 to come")
    assert said == ["rendezvous: ETA 1 min 00 s, attempt 0, waits for rank 1 to come"]


def test_the_score_is_told_though_nothing_else_has_changed_since_the_last_line():
    said: list[str] = []
    teller = waiting.Teller(said.append, lambda: 0.0)
    teller.tell(a_view("complete"))
    teller.tell(a_view("complete", score={"error": 0.25}))
    assert "score error 0.2500" in said[-1]


def test_the_same_line_is_not_told_twice_when_more_of_the_run_is_known():
    said: list[str] = []
    teller = waiting.Teller(said.append, lambda: 0.0)
    failed = a_view("failed")
    teller.tell(dataclasses.replace(failed, progress=None))
    teller.tell(failed)
    assert said == ["failed"]


def test_what_is_to_be_said_of_a_complete_run_is_said_where_there_is_no_screen():
    class Session:
        def glance(self, log=False):
            return a_view("complete", score={"error": 0.25}, notes=("3 passes already",))

    said: list[str] = []
    live.to_the_end(Session(), 10, said.append)
    assert said[-1] == "3 passes already"
