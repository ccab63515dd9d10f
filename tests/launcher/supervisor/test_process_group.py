"""Tests of one rank's process group: starts, failures, hangs and kills."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import EXIT_GANG, GangError, ProcessError, StorageError, StorageFailedError, UnfitError
from launcher.io import cgroup_memory
from launcher.paths import Position
from launcher.runtimes import load_runtime
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from launcher.supervisor import child_processes
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import Failure, MemberState
from launcher.supervisor.process_group import ProcessGroup
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.failing_calls import fail_calls
from tests.launcher.supervisor.loopback_gang import FAST, train_settings

SLEEP = "import time; time.sleep(600)"


class ScriptRuntime(V1Runtime):
    """A runtime whose processes are short programs."""

    log_meanings = (LogMeaning("pull failed", "Fix: see the servers' logs", is_fatal=True),)
    servers_end_themselves = False

    def __init__(self, servers: list[str], trainer: str = SLEEP, port: int | None = None) -> None:
        self._servers, self._trainer, self._port = servers, trainer, port
        self.argv: tuple[str, ...] = (sys.executable, "-S", "-c")

    def _spec(
        self, gang: RankAttempt, name: str, role: Any, code: str, ports: tuple[int, ...] = ()
    ) -> ProcessSpec:
        argv = (code,) if code.startswith("/") else (*self.argv, code)
        log = gang.settings.work.log(f"{name.replace(' ', '-')}.log")
        return ProcessSpec(
            name,
            role,
            argv,
            {},
            gang.settings.work_dir,
            log,
            gang.settings.layout.output / log.name,
            ports,
            role == "trainer",
        )

    def pservers(self, gang: RankAttempt) -> list[ProcessSpec]:
        ports = () if self._port is None else (self._port,)
        specs = [self._spec(gang, f"pserver {i}", "pserver", c, ports) for i, c in enumerate(self._servers)]
        return [replace(spec, ends_itself=self.servers_end_themselves) for spec in specs]

    def trainers(self, gang: RankAttempt) -> list[ProcessSpec]:
        return [self._spec(gang, "trainer", "trainer", self._trainer)]

    def check(self, settings: TrainSettings) -> None:
        """Accept all settings."""


Build = Callable[..., ProcessGroup]


@pytest.fixture
def build_group(tmp_path: Path) -> Iterator[Build]:
    """Return a function that builds a process group, which is stopped at the end of the test."""
    built: list[ProcessGroup] = []
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "quick-start" / "output").mkdir(parents=True)

    def build(runtime: ScriptRuntime, /, timings: Mapping[str, float] = FAST, **fields: Any) -> ProcessGroup:
        settings = train_settings(tmp_path, trainers=1, **fields)
        gang = RankAttempt(0, ("127.0.0.1",), settings, 0, None)
        group = ProcessGroup(
            runtime,
            gang,
            network=PodNetwork(),
            timings=Timings(**timings),
            wake=lambda: None,
            longest_stays={},
        )
        built.append(group)
        return group

    yield build
    for group in built:
        group.stop(time.monotonic())
        until(lambda group=group: group.poll(time.monotonic()) or not group.running)
        group._finish_logs()
        group.join_log_followers(10)
    assert not child_processes._running


def poll_until(group: ProcessGroup, seen: Callable[[], object]) -> None:
    """Poll the process group until `seen()` is true."""

    def poll_once() -> object:
        group.poll(time.monotonic())
        return seen()

    until(poll_once)


def wait_for_failure(group: ProcessGroup) -> Failure:
    """Poll the process group until it has failed; return the failure."""
    poll_until(group, lambda: group.failure)
    assert group.failure is not None
    return group.failure


@pytest.fixture
def train(build_group: Build) -> Build:
    """Return a function that builds a process group, and starts its trainers once the pservers are ready."""

    def start_training(*args: Any, **fields: Any) -> ProcessGroup:
        group = build_group(*args, **fields)
        poll_until(group, lambda: group.phase == "ready")
        group.train()
        return group

    return start_training


# A server may be seen to exit only while trainers run: before, it would have failed to start.
WAIT = "import os, time\nwhile not os.path.exists('{0}'): time.sleep(0.01)"
TELL = "import time; open('{0}', 'w').close(); time.sleep({1})"


def test_servers_that_a_script_stops_itself_are_no_failure_while_its_trainers_exit(train: Build) -> None:
    runtime = ScriptRuntime([WAIT.format("first")], TELL.format("first", 0.5))
    runtime.is_user_script = True
    group = train(runtime, {**FAST, "early_pserver_exit": 600.0})
    poll_until(group, lambda: group.failure or group.phase == "done")
    assert group.failure is None
    # Without a script nothing else stops them.
    group = train(ScriptRuntime([WAIT.format("second")], TELL.format("second", 600)))
    assert "exited with exit code 0" in wait_for_failure(group).text


def test_a_pserver_that_ends_long_before_the_trainers_is_a_failure(train: Build) -> None:
    runtime = ScriptRuntime([WAIT.format("go")], TELL.format("go", 600))
    runtime.servers_end_themselves = True
    text = wait_for_failure(train(runtime)).text
    assert text.startswith("pserver 0 exited with code 0, but 1 s later not all trainers are done")


@pytest.mark.parametrize(
    ("server", "cause"),
    [
        ("pass", "pserver 0 exited with exit code 0"),
        (SLEEP, "pserver 0 does not accept connections on 127.0.0.1:{port} after 1 s"),
    ],
)
def test_a_pserver_that_never_listens_is_a_failure(build_group: Build, server: str, cause: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    group = build_group(
        ScriptRuntime([server], port=port), {**FAST, "ready": 100.0 if server == "pass" else 1.0}
    )
    assert wait_for_failure(group).text.startswith(cause.format(port=port))


@pytest.mark.parametrize("exists", [True, False])
def test_if_the_second_pserver_cannot_start_the_first_one_is_killed(
    build_group: Build, tmp_path: Path, exists: bool
) -> None:
    binary = tmp_path / "paddle"
    if exists:
        binary.write_text("no program")
    with pytest.raises(
        ProcessError, match="cannot start pserver 1 .*" + ("Permission" if exists else "No such file")
    ) as rejected:
        build_group(ScriptRuntime([SLEEP, str(binary)]))
    assert rejected.value.exit_code == EXIT_GANG, "it is no error of the storage"
    assert not child_processes._running


def test_a_port_in_use_is_reported_before_any_process_starts(build_group: Build) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GangError, match=f"port {port} of 127.0.0.1, which pserver 0 needs, is in use"):
            build_group(ScriptRuntime([SLEEP], port=port))
    assert not child_processes._running


LOST = "import time; print('W0101 fleet: pull failed, id 3', flush=True); time.sleep(600)"
NAN = "print('fl-ps > coordinator addr: []\\n\\nerror: the loss is nan. Fix: lower the rate.', flush=True)"


@pytest.mark.parametrize(
    ("server", "trainer", "cause"),
    [
        (SLEEP, LOST, "trainer cannot continue: its log contains 'pull failed'.*, id 3"),
        ("import time; time.sleep(1.5); raise SystemExit(3)", LOST, "pserver 0 exited with exit code 3"),
        (
            SLEEP,
            f"{NAN}; raise SystemExit(65)",
            "trainer exited with exit code 65: the loss is nan. Fix: lower the rate.$",
        ),
    ],
    ids=[
        "a log line about a lost pserver",
        "a pserver, whose loss the trainer logs first",
        "the trainer's own error",
    ],
)
def test_a_failure_has_the_cause_with_process_exit_code_and_position(
    train: Build, tmp_path: Path, server: str, trainer: str, cause: str
) -> None:
    (tmp_path / "work" / "prepared.json").write_text(json.dumps({"state": "training", "pass": 2, "batch": 7}))
    code = f"import os; os.rename('prepared.json', 'progress.json'); {trainer}"
    lag = FAST | {"pserver_exit_lag": 0.5 if server == SLEEP else 5.0}
    group = train(ScriptRuntime([server], code), lag)
    failure = wait_for_failure(group)
    assert re.search(f"^{cause}", failure.text, re.DOTALL)
    assert "fl-ps" not in failure.text, "Paddle's log lines"
    assert failure.place == Position(2, 7)
    assert failure.text.startswith(failure.process)
    poll_until(group, lambda: not group.running)


@pytest.mark.parametrize(("state", "is_user_script"), [("done", False), ("training", True)])
def test_a_fatal_log_line_is_no_failure_of_a_trainer_that_is_done_or_of_a_script_in_a_single_process(
    train: Build, tmp_path: Path, state: str, is_user_script: bool
) -> None:
    (tmp_path / "work" / "prepared.json").write_text(json.dumps({"state": state, "pass": 1, "batch": 3}))
    rename = "import os, time; os.rename('prepared.json', 'progress.json')"
    runtime = ScriptRuntime([SLEEP], f"{rename}; print('pull failed', flush=True); time.sleep(1)")
    runtime.is_user_script = is_user_script
    group = train(runtime)
    poll_until(group, lambda: group.phase == "done")
    assert group.failure is None


@pytest.mark.parametrize("place", [{"pass": "two", "batch": {}}, {"pass": -1, "batch": 4}])
def test_a_hang_is_found_although_a_script_wrote_no_place_to_progress_json(
    train: Build, tmp_path: Path, place: dict[str, Any]
) -> None:
    """Regression: the launcher crashed while it built the message, and rank 0 rejected a negative place."""
    group = train(ScriptRuntime([SLEEP]), progress_deadline_seconds=10)
    (tmp_path / "work" / "progress.json").write_text(json.dumps({"state": "training", **place}))
    start = time.monotonic()
    group.poll(start)
    group.poll(start + 11)
    assert group.failure is not None
    assert "trainer hangs: no batch for 10 s" in group.failure.text
    assert group.failure.place is None
    state = MemberState(0, failure=group.failure).to_json(0.0)
    assert MemberState.from_json(state, 0.0).failure == group.failure


def test_a_hang_of_a_script_is_only_noted_and_ends_when_its_log_grows(train: Build, tmp_path: Path) -> None:
    """The processes run on: only all ranks together can hang, which the coordinator decides."""
    runtime = ScriptRuntime([])
    runtime.is_user_script, runtime.log_meanings = True, (LogMeaning("reset by peer", priority=3),)
    group, start = train(runtime), time.monotonic()
    log = group._trainers[0].spec.log
    for second, text, hangs in (
        (0, "", False), (610, "", True), (620, "Connection reset by peer\n", False), (1230, "", True)
    ):  # fmt: skip
        log.write_text(log.read_text() + text)
        group.poll(start + second)
        assert (group.hang is not None) == hangs
    assert group.hang is not None
    assert "trainer hangs: its log has not grown for 600 s" in group.hang.text
    assert "Fix: let any process" in group.hang.text, "that line has a meaning, but no fix"
    log.unlink()  # a script may remove it: then it does not grow
    group.poll(start + 1240)
    assert (group.hang, group.failure, group.running) == (None, None, True)


@pytest.mark.parametrize(("code", "kind"), [(errno.EROFS, StorageError), (errno.EIO, StorageFailedError)])
def test_a_failing_disk_of_the_pod_is_reported_as_such(
    build_group: Build, code: int, kind: type[Exception]
) -> None:
    with (
        fail_calls("unlink", "*/progress.json", code),
        pytest.raises(kind, match=r"progress\.json: .* Fix: "),
    ):
        build_group(ScriptRuntime([]))


def test_processes_that_survive_sigkill_make_the_launcher_exit_for_a_replacement(
    train: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel cannot kill a process that waits for a hung storage; the run must not fail because of it."""
    group = train(ScriptRuntime([SLEEP]))
    start = time.monotonic()
    without_signals = SimpleNamespace(poll=lambda now: False)
    monkeypatch.setattr("launcher.supervisor.process_group.GroupTermination", lambda *_: without_signals)
    group.stop(start)
    group.poll(start + FAST["stop"] + FAST["stuck"] - 1)
    with pytest.raises(UnfitError, match=r"pserver 0 \(pid \d+\), trainer .* Kubernetes replaces it"):
        group.poll(start + FAST["stop"] + FAST["stuck"] + 1)
    group.poll(start + 1e6)  # the error is raised only once
    group._stop = None  # so that the fixture stops the processes


@pytest.mark.parametrize(("kills", "at_limit"), [(1, True), (0, False)])
def test_a_trainer_killed_at_its_memory_limit_is_reported_with_the_limit_and_its_key(
    train: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kills: int, at_limit: bool
) -> None:
    (tmp_path / "memory").mkdir()
    control = tmp_path / "memory" / "memory.oom_control"  # the file of cgroup v1
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2 << 30}\n")
    count, limit = cgroup_memory.oom_kills, cgroup_memory.limit
    monkeypatch.setattr(cgroup_memory, "oom_kills", lambda: count(tmp_path))
    monkeypatch.setattr(cgroup_memory, "limit", lambda: limit(tmp_path))
    group = train(ScriptRuntime([SLEEP], "print('step 1', flush=True); " + SLEEP))
    control.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {3 + kills}\n")
    [trainer] = group._trainers
    assert trainer is not None
    until(lambda: "step 1" in trainer.spec.log.read_text())
    os.kill(trainer.pid, signal.SIGKILL)
    text = wait_for_failure(group).text
    assert ("memory limit of 2,048 MiB (resources.limits.memory)" in text) is at_limit
    assert ("step 1" in text) is not at_limit


def test_cgroup_v2_files_are_read_with_and_without_a_limit(tmp_path: Path) -> None:
    assert (cgroup_memory.oom_kills(tmp_path), cgroup_memory.limit(tmp_path)) == (0, None)
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (cgroup_memory.oom_kills(tmp_path), cgroup_memory.limit(tmp_path)) == (2, None)
    (tmp_path / "memory.max").write_text("536870912\n")
    assert cgroup_memory.limit(tmp_path) == 512 << 20


class TwoTrainers(ScriptRuntime):
    """A runtime without pservers and with two trainers, of which the second one is `second`."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__([], first)
        self._second = second

    def trainers(self, gang: RankAttempt) -> list[ProcessSpec]:
        codes = {"trainer 0": self._trainer, "trainer 1": self._second}
        return [self._spec(gang, name, "trainer", code) for name, code in codes.items()]


def test_a_rank_is_done_when_all_its_trainers_are_and_those_that_train_decide_its_progress(
    train: Build, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    write = "import json; open('progress-1.json', 'w').write(json.dumps({'pass': 0, 'batch': 1}))"
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
    group = train(TwoTrainers(wait, write), runtime="collective", processes_per_pod=2)
    poll_until(group, group._trainers[1].done.is_set)
    poll_until(group, lambda: not (work / "progress-1.json").exists())
    assert (group.phase, group.failure) == ("training", None)
    (work / "go").touch()
    poll_until(group, lambda: group.phase == "done")
    assert group.failure is None


def test_the_message_about_a_failed_trainer_says_which_one_had_exited_before(train: Build) -> None:
    fail = "import time; time.sleep(1); raise SystemExit(4)"
    group = train(TwoTrainers(fail, "pass"), runtime="collective", processes_per_pod=2)
    failure = wait_for_failure(group)
    early, _, later = failure.text.partition(". Then: ")
    assert early == "trainer 1 exited with code 0 before the other trainers had finished"
    assert later.startswith("trainer 0 exited with exit code 4")
    assert failure.process == "trainer 0"


IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def test_processes_with_nothing_to_save_are_killed_at_once(train: Build, tmp_path: Path) -> None:
    """Nothing that holds up the end of such a process after SIGTERM may delay the next attempt."""
    runtime = ScriptRuntime([IGNORES_SIGTERM, IGNORES_SIGTERM])
    runtime.has_nothing_to_save = True
    group = train(runtime, {**FAST, "stop": 3600.0})
    logs = [child.spec.log for child in group._servers]
    until(lambda: all(log.read_text() == "ready\n" for log in logs), "processes that ignore SIGTERM")
    group.stop(time.monotonic())
    poll_until(group, lambda: not group.running)
    assert [child.returncode for child in group._children] == [-signal.SIGKILL] * 3


def test_fleet_has_nothing_to_save_and_scripts_get_sigterm_first() -> None:
    assert [load_runtime(name).has_nothing_to_save for name in ("fleet", "collective")] == [True, False]
