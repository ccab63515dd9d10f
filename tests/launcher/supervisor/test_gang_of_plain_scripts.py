"""Tests of gangs on loopback whose scripts know nothing of the launcher (runtime collective, without `ScriptRun`)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.supervisor.loopback_gang import LoopbackGang
from tests.launcher.supervisor.test_gang_of_scripts import build_gang

pytestmark = pytest.mark.slow

START = """
import os, signal, socket, sys, time
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["PADDLE_LAUNCHER_ATTEMPT"])
OUTPUT = os.environ["PADDLE_LAUNCHER_OUTPUT_DIR"]
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + PORT_OFFSET)


def meet():
    \"\"\"Connect all processes to process 0, as a library's store does, and wait until all are connected.\"\"\"
    if RANK:
        while True:
            try:
                return socket.create_connection(MASTER)
            except OSError:
                time.sleep(0.05)
    server = socket.create_server(MASTER)
    return [server, *(server.accept() for _ in range(int(os.environ["WORLD_SIZE"]) - 1))]
"""


def build(root: Path, code: str, port_offset: int = 0, **changes: Any) -> LoopbackGang:
    """Return a gang of two pods that run `code`, in which `meet()` connects the processes to each other."""
    script = root / "plain.py"
    root.mkdir(exist_ok=True)
    script.write_text(START.replace("PORT_OFFSET", str(port_offset)) + code)
    return build_gang(root / "gang", script, **changes)


ONLY_RANK_0_LOGS = """
connections = meet()
for step in range(60):
    if RANK == 0:
        print("step", step)
    if step == HANG_AT and ATTEMPT == 0:
        time.sleep(600)
    time.sleep(0.25)
"""


def test_only_a_run_in_which_no_rank_logs_anything_any_more_is_restarted(tmp_path: Path) -> None:
    """Rank 1 never logs anything. Nobody restarts the run while rank 0 does, for longer than the deadline."""
    code = ONLY_RANK_0_LOGS.replace("HANG_AT", "52")
    with build(tmp_path, code, progress_deadline_seconds=10) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert "step 51" in (gang.output / "node_0" / "attempt-0" / "train.log").read_text()
        cause = run["restarts"][0]["cause"]
        assert "none of the 2 ranks that train makes progress; rank " in cause
        assert "trainer hangs: its log has not grown for 10 s (training.progressDeadlineSeconds)" in cause
        assert "increase training.progressDeadlineSeconds" in cause.partition("Fix: ")[2]


ECC = """
connections = meet()
if ATTEMPT == 0 and RANK == BROKEN:
    time.sleep(1)
    print("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    print("\\n".join(f"frame #{number}: c10::Error (/usr/lib/libc10.so)" for number in range(60)), flush=True)
    os.kill(os.getpid(), signal.SIGABRT)
if ATTEMPT == 0:
    print("DistBackendError: NCCL error: unhandled system error", flush=True)
    sys.exit(1)
"""


@pytest.mark.parametrize("broken", [0, 1])
def test_a_broken_gpu_ends_its_pod_and_counts_once(tmp_path: Path, broken: int) -> None:
    """The other rank fails first, because of the broken one."""
    code = ECC.replace("BROKEN", str(broken))
    with build(tmp_path, code, restarts=1) as gang:
        gang.start()
        gang.wait_until(lambda: gang.processes[broken].poll() is not None)
        assert gang.processes[broken].wait() == 71, gang.pod_log(broken)
        message = gang.termination_message(broken)
        assert "uncorrectable ECC error encountered" in message
        assert f"kubectl cordon node-{broken}" in message.partition("Fix: ")[2]
        gang.start(broken)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"], run["countedRestarts"]) == ("complete", 1, 1)
        assert [restart["attempt"] for restart in run["restarts"]] == [0]
        assert "uncorrectable ECC" in (gang.output / f"node_{broken}" / "attempt-0" / "train.log").read_text()
        assert f"kubectl cordon node-{broken}" in run["restarts"][0]["cause"]


REACTS = """
def save(number, frame):
    time.sleep(5)  # longer than the launcher's own time for stopping
    open(f"{OUTPUT}/saved-{RANK}", "w").close()
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
connections = meet()
print("trains", flush=True)
time.sleep(0 if ATTEMPT else 600)
"""


def test_a_drained_pod_of_rank_0_waits_for_the_scripts_of_other_ranks(tmp_path: Path) -> None:
    with build(tmp_path, REACTS.replace("sleep(5)", "sleep(5 + 4 * RANK)"), grace_seconds=60) as gang:
        gang.start().wait_until(lambda: all("trains" in gang.read_log(rank) for rank in (0, 1)))
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.processes[0].wait(60) == 143, gang.pod_log(0)
        assert (gang.output / "saved-0").exists()
        assert (gang.output / "saved-1").exists()
        gang.start(0)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"], run["countedRestarts"]) == ("complete", 1, 0)


@pytest.mark.parametrize(
    ("grace", "is_hurried"), [(600, True), (22, False)], ids=["second signal", "end of grace"]
)
def test_a_script_that_is_stuck_after_sigterm_is_killed(tmp_path: Path, grace: int, is_hurried: bool) -> None:
    """The launcher then copies the logs and releases the lease before Kubernetes kills it."""
    with build(tmp_path, REACTS.replace("sleep(5)", "sleep(500)"), grace_seconds=grace) as gang:
        gang.start().wait_until(lambda: all("trains" in gang.read_log(rank) for rank in (0, 1)))
        for process in gang.processes.values():
            process.send_signal(signal.SIGTERM)
        gang.wait_until(lambda: "received SIGTERM" in gang.pod_log(0))
        for process in gang.processes.values() if is_hurried else ():
            process.send_signal(signal.SIGTERM)
        assert gang.wait_for_exit() == [143, 143], gang.pod_log(0)
        assert not (gang.output / "run.lock").exists()


EARLY = """
connections = meet()
if RANK == 0:
    time.sleep(1)
    connections[1][0].recv(1)  # until process 1 has exited
    print("RuntimeError: Connection closed by peer", flush=True)
    sys.exit(1)
print("resumed from the last epoch", flush=True)
time.sleep(2)
connections.close()
time.sleep(0.7)  # as a library that cleans up after it has closed its connections
"""


def test_an_early_end_is_named_before_the_failure_that_it_caused_although_it_is_reported_later(
    tmp_path: Path,
) -> None:
    with build(tmp_path, EARLY, restarts=0) as gang:
        assert gang.start().wait_for_exit() == [70, 70], gang.pod_log(0)
        early, _, failure = gang.read_json("run.json")["cause"].partition(". Then: ")
        assert "trainer of rank 1 (pod " in early
        assert early.endswith("exited with code 0 before the other trainers had finished")
        assert failure.startswith("rank 0 (")


PADDLE_LINE = "WARNING: init_server() function doesn't work when use non_distributed fleet."


def test_a_script_for_parameter_servers_that_exits_at_once_fails_at_the_line_that_paddle_logs(
    tmp_path: Path,
) -> None:
    code = f"print({PADDLE_LINE!r}, file=sys.stderr, flush=True)\n"
    with build(tmp_path, code, restarts=0) as gang:
        assert gang.start().wait_for_exit() == [70, 70], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert run["state"] == "failed"
        assert "function doesn't work when use non_distributed fleet" in run["cause"]
        assert "fleet.init(is_collective=True)" in run["cause"].partition("Fix: ")[2]


@pytest.mark.parametrize(
    ("code", "port_offset", "is_alone"),
    [
        ("time.sleep(2)\n", 0, True),
        ("connections = meet()\ntime.sleep(2)\n", 7, False),
    ],
    ids=["alone", "met on a port of its own"],
)
def test_a_complete_run_whose_processes_never_met_has_a_warning(
    tmp_path: Path, code: str, port_offset: int, is_alone: bool
) -> None:
    with build(tmp_path, code, port_offset) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        for name in ("run.json", "status.json"):
            found = gang.read_json(name)
            assert found["state"] == "complete"
            assert (
                "each of the 2 processes has most likely trained alone" in found.get("warning", "")
            ) == is_alone
        assert ("trained alone" in gang.pod_log(0)) == is_alone


@pytest.mark.parametrize("score", ['{"a": 1e400, "b": NaN, "c": ["high"], "d": {"a": true}}', "[0.9]"])
def test_a_score_that_is_no_number_does_not_end_a_finished_run(tmp_path: Path, score: str) -> None:
    code = (
        "connections = meet()\n"
        "os.makedirs(f'{OUTPUT}/model', exist_ok=True)\n"
        f"open(f'{{OUTPUT}}/model/score.json', 'w').write({score!r})\n"
    )
    with build(tmp_path, code) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        assert (gang.read_json("run.json")["state"], gang.read_json("run.json")["score"]) == ("complete", {})
        assert "score.json" in gang.pod_log(0), "the log says why there is no score"
