"""One rank's children: starts that fail half way, lines that end an attempt, logs and full volumes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from launcher import children, memory
from launcher.children import Child, Follow, ForkServer
from launcher.errors import EXIT_GANG, GangError, ProcessError, StoppedError, StorageError, UnfitError
from launcher.gang.agent import Agent
from launcher.gang.crew import Crew
from launcher.gang.network import Network
from launcher.layout import Position
from launcher.runtimes.base import Gang, ProcessSpec
from launcher.settings import TrainSettings
from launcher.timings import Timings
from tests.launcher.core.kit import FAST, environ
from tests.waiting import until

STAY = "import time; time.sleep(600)"


class Scripts:
    """A runtime whose processes are short programs."""

    trainer_waits = False
    fatal_lines = ("pull failed",)

    def __init__(self, servers: list[str], trainer: str = STAY, port: int | None = None) -> None:
        self._servers, self._trainer, self._port = servers, trainer, port
        self.argv: tuple[str, ...] = (sys.executable, "-S", "-c")

    def _spec(self, gang: Gang, name: str, role: Any, code: str, ports: tuple[int, ...] = ()) -> ProcessSpec:
        argv = (code,) if code.startswith("/") else (*self.argv, code)
        log = gang.settings.work.log(f"{name.replace(' ', '-')}.log")
        return ProcessSpec(
            name, role, argv, {}, gang.work_dir, log, gang.output_dir / log.name, ports, role == "trainer"
        )

    def pservers(self, gang: Gang) -> list[ProcessSpec]:
        ports = () if self._port is None else (self._port,)
        return [self._spec(gang, f"pserver {i}", "pserver", c, ports) for i, c in enumerate(self._servers)]

    def trainer(self, gang: Gang) -> ProcessSpec:
        return self._spec(gang, "trainer", "trainer", self._trainer)

    def fork_server(self, settings: TrainSettings) -> None: ...

    def conversion(self, *_: Any) -> None:
        return None

    def check(self, settings: TrainSettings) -> None: ...

    def newest_save(self, output_dir: Path) -> Position | None:
        return None

    def complete(self, output_dir: Path, passes: int) -> bool:
        return False


Make = Callable[..., Crew]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Crew] = []
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "output").mkdir()

    def build(runtime: Scripts, timings: Mapping[str, float] = FAST, **env: str) -> Crew:
        settings = TrainSettings.from_environ(
            environ(
                JOB_PATH=str(tmp_path),
                PADDLE_LAUNCHER_WORK_DIR=str(work),
                PADDLE_LAUNCHER_TRAINERS="1",
                **env,
            )
        )
        gang = Gang(0, 1, ("127.0.0.1",), settings, work, work, tmp_path / "output", work, 0, None)
        crew = Crew(
            runtime, gang, network=Network(), timings=Timings(**timings), wake=lambda: None, longest={}
        )
        made.append(crew)
        return crew

    yield build
    for crew in made:
        crew.stop(time.monotonic())
        until(lambda crew=crew: crew.poll(time.monotonic()) or not crew.running)
    assert not children.watched()


def polled(crew: Crew, seen: Callable[[], object]) -> None:
    """Polls the crew until `seen()`."""

    def look() -> object:
        crew.poll(time.monotonic())
        return seen()

    until(look)


def trained(crew: Crew) -> Crew:
    """A crew whose trainer has begun."""
    polled(crew, lambda: crew.phase == "ready")
    crew.train()
    return crew


def test_a_second_pserver_that_cannot_start_leaves_no_first_one_running(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="cannot start pserver 1"):
        make(Scripts([STAY, "/nowhere/paddle"]))
    assert not children.watched()


def test_a_binary_that_cannot_be_executed_is_no_fault_of_the_storage(make: Make, tmp_path: Path) -> None:
    binary = tmp_path / "paddle"
    binary.write_text("no program")
    binary.chmod(0o644)
    with pytest.raises(ProcessError, match="Permission denied") as refused:
        make(Scripts([str(binary)]))
    assert not isinstance(refused.value, StorageError)
    assert refused.value.exit_code == EXIT_GANG


def test_a_port_in_use_is_told_before_anything_is_started(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GangError, match=f"port {port} of 127.0.0.1, which pserver 0 needs, is in use"):
            make(Scripts([STAY], port=port))
    assert not children.watched()


def test_a_line_that_says_that_a_pserver_is_lost_ends_the_attempt_at_once(make: Make) -> None:
    code = "import time; print('W0101 fleet: pull failed, id 3', flush=True); time.sleep(600)"
    crew = trained(make(Scripts([STAY], code)))
    polled(crew, lambda: crew.failure)
    assert crew.failure is not None
    assert "trainer cannot go on: its log says 'pull failed'" in crew.failure.text
    assert "id 3" in crew.failure.text, "the last lines are quoted"
    polled(crew, lambda: not crew.running)


def test_what_a_trainer_says_of_its_error_is_the_cause_without_paddles_lines_before_it(make: Make) -> None:
    said = (
        "print('fl-ps > coordinator addr: []\\n\\nerror: the loss is nan. Fix: lower the rate.', flush=True)"
    )
    crew = trained(make(Scripts([STAY], f"{said}; raise SystemExit(65)")))
    polled(crew, lambda: crew.failure)
    assert crew.failure is not None
    assert crew.failure.text.endswith("ended with exit code 65: the loss is nan. Fix: lower the rate.")
    assert "fl-ps" not in crew.failure.text


def test_a_pserver_that_ends_is_the_cause_although_the_trainer_says_so_first(make: Make) -> None:
    first = "print('pull failed', flush=True); import time; time.sleep(600)"
    then = "import time; time.sleep(1.5); raise SystemExit(3)"
    crew = trained(make(Scripts([then], first), {**FAST, "echo": 5.0}))
    polled(crew, lambda: crew.failure)
    assert crew.failure is not None
    assert "pserver 0 ended with exit code 3" in crew.failure.text


def test_such_a_line_of_a_trainer_that_is_done_is_no_failure(make: Make, tmp_path: Path) -> None:
    (tmp_path / "work" / "said").write_text(json.dumps({"state": "done", "pass": 1, "batch": 3}))
    code = (
        "import os, time; os.rename('said', 'progress.json'); print('pull failed', flush=True); time.sleep(1)"
    )
    crew = trained(make(Scripts([STAY], code)))
    polled(crew, lambda: crew.phase == "done")
    assert crew.failure is None


def test_a_failure_names_process_exit_code_and_the_place_of_the_trainer(make: Make, tmp_path: Path) -> None:
    (tmp_path / "work" / "said").write_text(json.dumps({"state": "training", "pass": 2, "batch": 7}))
    crew = trained(make(Scripts([STAY], "import os, sys; os.rename('said', 'progress.json'); sys.exit(9)")))
    polled(crew, lambda: crew.failure)
    assert crew.failure is not None
    assert crew.failure.signature == (0, "trainer", 9, 2, 7)


def test_saving_and_testing_do_not_count_as_hanging_and_a_batch_that_never_comes_does(
    make: Make, tmp_path: Path
) -> None:
    progress = tmp_path / "work" / "progress.json"
    crew = trained(make(Scripts([STAY]), PADDLE_LAUNCHER_STALL_SECONDS="10"))
    began = time.monotonic()
    for state, hangs in (("starting", False), ("saving", False), ("testing", False), ("training", True)):
        progress.write_text(json.dumps({"state": state, "pass": 0, "batch": 4}))
        crew.poll(began)
        crew.poll(began + 11)
        assert (crew.failure is not None) == hangs, state
        began += 11
    assert crew.failure is not None
    assert "trainer hangs: no batch for 10 s (training.stallSeconds), at pass 1, batch 4" in crew.failure.text


@pytest.mark.parametrize("state", ["starting", "meeting", "loading", "saving"])
def test_a_state_that_lasts_many_times_longer_than_before_in_this_run_is_a_hang(
    make: Make, tmp_path: Path, state: str
) -> None:
    """With the default stallSeconds it took 100 minutes."""
    progress = tmp_path / "work" / "progress.json"
    crew = trained(make(Scripts([STAY])))
    began = time.monotonic() + 1
    for at, said in ((0, state), (50, "training"), (90, state), (90 + 249, state)):
        progress.write_text(json.dumps({"state": said, "pass": 0, "batch": 4, "bytes": 0}))
        crew.poll(began + at)
        assert crew.failure is None
    crew.poll(began + 90 + 251)
    assert crew.failure is not None
    said = f"trainer hangs: still {state} for 250 s (5 times its longest stay before, at least 180 s)"
    assert said in crew.failure.text
    assert "Fix: see whether" in crew.failure.text


def test_children_that_survive_sigkill_end_the_launcher_so_that_its_pod_is_replaced(make: Make) -> None:
    """The kernel keeps a process that waits for a storage; the run must not end for it."""
    crew = trained(make(Scripts([STAY])))
    began = time.monotonic()
    crew.stop(began)
    crew._stop = SimpleNamespace(poll=lambda now: False)  # type: ignore[assignment]
    crew.poll(began + FAST["stop"] + FAST["stuck"] - 1)
    with pytest.raises(UnfitError, match=r"pserver 0 \(pid \d+\), trainer .* Kubernetes replaces it"):
        crew.poll(began + FAST["stop"] + FAST["stuck"] + 1)
    crew.poll(began + 1e6)  # on its way out it is not told again


def test_children_that_survive_sigkill_do_not_keep_a_stopped_launcher_from_its_farewell(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = trained(make(Scripts([STAY])))
    crew.stop(time.monotonic())
    crew._stop = SimpleNamespace(poll=lambda now: False)  # type: ignore[assignment]
    crew._stop_by = time.monotonic()
    said = tmp_path / "said"
    settings = replace(crew._gang.settings, termination_log=said)
    agent = Agent(settings, Scripts([]), Network(), Timings(**FAST))  # type: ignore[arg-type]
    agent.follower.crew = crew
    agent.leader = leader = Mock()

    def script() -> None:
        raise StoppedError("told to stop (SIGTERM)")

    monkeypatch.setattr(agent, "_script", script)
    monkeypatch.setattr("launcher.gang.agent.begin", lambda *_: None)
    assert agent.run() == StoppedError.exit_code
    assert leader.farewell.called, "it releases the lock, too"
    assert "told to stop (SIGTERM)" in said.read_text()


def test_a_trainer_that_is_done_must_end_soon(make: Make, tmp_path: Path) -> None:
    crew = trained(make(Scripts([STAY])))
    (tmp_path / "work" / "progress.json").write_text(json.dumps({"state": "done", "pass": 1, "batch": 4}))
    began = time.monotonic()
    for seconds, hangs in ((0, False), (50, False), (61, True)):
        crew.poll(began + seconds)
        assert (crew.failure is not None) == hangs
    assert crew.failure is not None
    text = "trainer hangs: done, but not ended for 60 s (for a trainer that is done), at pass 2, batch 4"
    assert text in crew.failure.text


def test_a_child_writes_to_the_pods_disk_and_its_copy_comes_late_when_the_volume_fails(
    tmp_path: Path,
) -> None:
    log, copy = tmp_path / "train.log", tmp_path / "volume" / "train.log"
    copy.parent.write_text("a file where the folder should be: every write to the copy fails")
    log.touch()
    follow = Follow(log, copy=copy, shown=False, period=0.02)
    with log.open("a") as child:
        for number in range(100):
            child.write(f"line {number}\n")
            child.flush()
    time.sleep(0.5)
    copy.parent.unlink()
    follow.end()
    follow.join(10)
    assert copy.read_text() == log.read_text()


def test_a_copy_that_is_moved_aside_meanwhile_is_written_on_where_it_went(tmp_path: Path) -> None:
    log, copy = tmp_path / "train.log", tmp_path / "node_0" / "train.log"
    log.write_text("first\n")
    follow = Follow(log, copy=copy, shown=False, period=0.02)
    until(copy.exists)
    aside = copy.rename(copy.with_name("earlier.log"))
    with log.open("a") as child:
        child.write("second\n")
    follow.end()
    follow.join(10)
    assert aside.read_text() == "first\nsecond\n"
    assert not copy.exists()


FORKS = f"""
import os, sys
sys.path.insert(0, {str(Path(children.__file__).parents[1])!r})
from launcher.worker import forks
forks.serve(lambda: print("loading"))
print(os.environ["WHO"], "in", os.getcwd(), "of", os.getppid(), flush=True)
exec(os.environ["THEN"])
"""


def spec_of(tmp_path: Path, code: str = "print('anew')", **env: str) -> ProcessSpec:
    argv = (sys.executable, "-c", code)
    return ProcessSpec("trainer", "trainer", argv, env, tmp_path, tmp_path / "work" / "logs" / "x.log")


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkServer]:
    (tmp_path / "work").mkdir(exist_ok=True)
    server = ForkServer(replace(spec_of(tmp_path, FORKS), log=tmp_path / "work" / "logs" / "forks.log"))
    yield server
    server.end()


def test_a_forked_child_has_its_environment_folder_log_and_exit_code_and_is_the_launchers(
    tmp_path: Path, forks: ForkServer
) -> None:
    assert forks.ready(20)
    for number in (9, 0):
        then = f"print(os.getsid(0) == os.getpid()); sys.exit({number})"
        child = Child(spec_of(tmp_path, WHO=f"rank {number}", THEN=then), lambda: None, forks)
        until(child.done.is_set)
        assert child.returncode == number
        said = f"rank {number} in {tmp_path} of {os.getpid()}\nTrue\n"
        assert child.spec.log.read_text() == said
    assert (tmp_path / "work" / "logs" / "forks.log").read_text() == "loading\n"


def test_a_forked_child_is_killed_with_what_it_started_and_outlives_the_fork_server(
    tmp_path: Path, forks: ForkServer
) -> None:
    assert forks.ready(20)
    then = "import subprocess; below = subprocess.Popen(['sleep', '600']); print(below.pid, flush=True)"
    child = Child(spec_of(tmp_path, WHO="x", THEN=f"{then}; below.wait()"), lambda: None, forks)
    until(lambda: child.spec.log.read_text().count("\n") == 2)
    forks.end()
    below = int(child.spec.log.read_text().split()[-1])
    assert not child.done.wait(0.3)
    child.signal(signal.SIGTERM)
    until(child.done.is_set)
    assert child.returncode == -signal.SIGTERM
    until(lambda: children.reap_orphans(children.watched()) or not Path(f"/proc/{below}").exists())


@pytest.mark.parametrize("forked", [True, False])
def test_a_child_that_the_reaper_of_orphans_was_faster_to_take_has_its_own_exit_code(
    tmp_path: Path, forks: ForkServer, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert forks.ready(20)
    monkeypatch.setattr(children, "_kill", lambda pid, _: os.waitpid(pid, 0))
    spec = spec_of(tmp_path, "raise SystemExit(9)", WHO="x", THEN="sys.exit(9)")
    child = Child(spec, lambda: None, forks if forked else None)
    until(child.done.is_set)
    assert child.returncode == 9


@pytest.mark.parametrize("how", ["not loaded", "dead", "stopped"])
def test_what_no_fork_server_can_fork_off_is_started_anew(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(children, "FORK_SECONDS", 0.5)
    server = ForkServer(spec_of(tmp_path, STAY if how == "not loaded" else FORKS))
    if how != "not loaded":
        assert server.ready(20)
        os.kill(server._popen.pid, signal.SIGKILL if how == "dead" else signal.SIGSTOP)
        until(lambda: how == "stopped" or not server.alive)
    child = Child(spec_of(tmp_path), lambda: None, server)
    until(child.done.is_set)
    assert (child.returncode, child.spec.log.read_text()) == (0, "anew\n")
    assert server.alive == (how == "not loaded")
    server.end()
    assert not server.alive


def test_every_child_is_killed_from_any_thread_when_the_launcher_cannot_do_it_in_order(make: Make) -> None:
    crew = trained(make(Scripts([STAY, STAY])))
    assert len(children.watched()) == 3
    pids = children.watched()
    children.kill_all()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))  # noqa: PTH110
    polled(crew, lambda: crew.failure)


@pytest.mark.parametrize(("kills", "told"), [(1, True), (0, False)])
def test_a_trainer_killed_at_the_memory_limit_is_told_with_limit_and_key_and_without_its_log(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kills: int, told: bool
) -> None:
    (tmp_path / "memory").mkdir()
    control = tmp_path / "memory" / "memory.oom_control"  # as cgroup v1 has it
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2 << 30}\n")
    count, limit = memory.oom_kills, memory.limit
    monkeypatch.setattr(memory, "oom_kills", lambda: count(tmp_path))
    monkeypatch.setattr(memory, "limit", lambda: limit(tmp_path))
    crew = trained(make(Scripts([STAY], "print('step 1', flush=True); " + STAY)))
    control.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {3 + kills}\n")
    trainer = crew._trainer
    assert trainer is not None
    until(lambda: "step 1" in trainer.spec.log.read_text())
    os.kill(trainer.pid, signal.SIGKILL)
    polled(crew, lambda: crew.failure)
    assert crew.failure is not None
    text = crew.failure.text
    assert ("memory limit of 2,048 MiB (resources.limits.memory)" in text) is told
    assert ("step 1" in text) is not told


def test_cgroup_v2_tells_its_kills_and_that_there_is_no_limit(tmp_path: Path) -> None:
    assert (memory.oom_kills(tmp_path), memory.limit(tmp_path)) == (0, None)
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (memory.oom_kills(tmp_path), memory.limit(tmp_path)) == (2, None)
    (tmp_path / "memory.max").write_text("536870912\n")
    assert memory.limit(tmp_path) == 512 << 20
