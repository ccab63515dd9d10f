"""Gangs of real launchers on loopback with runtime v1 and a fake `paddle`: how runs end, fail, restart and resume.

Each test is one scenario that asserts several things. What decides an outcome is tested without processes: plans in
test_decisions.py, processes of one rank in test_process_group.py, files in test_output_folder.py.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import itertools
import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit import failing_filesystem
from tests.launcher.reporting.test_notifications import Hook
from tests.launcher.supervisor.loopback_gang import HERE, LoopbackGang, needs_fuse

pytestmark = pytest.mark.slow

OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child")
"""The launcher is process 1 of its own process namespace, as in a pod."""
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root for a pid namespace")


def build_gang(root: Path, **changes: Any) -> LoopbackGang:
    """Return a gang of two ranks that trains for some four seconds and may restart three times."""
    return LoopbackGang(
        root,
        **{
            "trainers": 2,
            "restarts": 3,
            "passes": 8,
            "FAKE_PASS_SECONDS": "0.4",
            "rendezvous_seconds": 30,
            **changes,
        },
    )


def has_started_pass(gang: LoopbackGang, rank: int, number: int) -> bool:
    """Return whether a rank's trainer has started this pass."""
    return f"Pass={number}\n" in gang.read_log(rank)


def trains_in_attempt(gang: LoopbackGang, attempt: int) -> bool:
    """Return whether rank 0 reports that all ranks train in this attempt and that it waits for nothing."""
    status = gang.read_json("status.json") if (gang.output / "status.json").exists() else {}
    waits = status.get("waitingFor"), status.get("waitingSince")
    return (status.get("attempt"), status.get("state"), waits) == (attempt, "training", (None, None))


def assert_resumed_and_complete(
    gang: LoopbackGang, attempts: int = 2, passes: int = 8, restarts: int | None = None
) -> None:
    """Assert that all checkpoints are finished, and that the last attempt resumed from one of them."""
    assert gang.running_pids() == []
    assert [p.name for p in sorted(gang.output.glob("pass-*"))] == [f"pass-{n:05d}" for n in range(passes)]
    assert all((p / "done").exists() for p in gang.output.glob("pass-*"))
    run = gang.read_json("run.json")
    assert run["state"] == "complete"
    assert run["attempt"] == attempts - 1
    assert len(run["restarts"]) == (attempts - 1 if restarts is None else restarts)
    last = (gang.output / "node_0" / "train.log").read_text()
    assert f"Pass={passes - 1}" in last
    assert attempts == 1 or "Pass=0\n" not in last
    assert not (gang.output / "run.lock").exists()


# Runs that end without a restart.


@needs_root
def test_three_ranks_train_all_passes_exit_with_0_and_write_the_expected_files(tmp_path: Path) -> None:
    """A second start of the complete run exits with 0 and starts no process."""
    fake = {f"trainer:{rank}": {"grandchild": True} for rank in (1, 2)}
    with LoopbackGang(tmp_path, fake=fake) as gang:
        assert gang.start(0, 1).start(2, prefix=OWN_PIDS).wait_for_exit() == [0, 0, 0], gang.pod_log(0)
        assert gang.running_pids() == [], "also the process that trainer 1 left behind"
        for rank in range(3):
            node = gang.output / f"node_{rank}"
            assert "listening" in (node / "server.log").read_text()
            assert "Pass=2" in (node / "train.log").read_text()
            assert f"rank {rank} Pass=2" in gang.pod_log(rank), "the pod log contains the trainer's lines"
        assert [(gang.output / f"pass-{n:05d}" / "done").exists() for n in range(4)] == [True] * 3 + [False]
        assert not (gang.output / "run.lock").exists()
        status, run = gang.read_json("status.json"), gang.read_json("run.json")
        assert (status["state"], status["cause"], status["attempt"]) == ("complete", None, 0)
        assert [rank["pod"] for rank in status["ranks"]] == [f"{gang.run}-{i}-x" for i in range(3)]
        assert (run["runId"], run["state"]) == (gang.run, "complete")
        assert run["finished"] >= run["started"]
        work = gang.folder / "work-1"
        assert (work / "data" / "train.txt").read_text() == "line of d1 shard 1\n"
        assert (work / "data" / "tables" / "items.txt").exists()
        assert (work / "program" / "data" / "train.txt").exists()

        assert gang.start(1).processes[1].wait(20) == 0, "also without rank 0"
        assert "the run is complete" in gang.pod_log(1)
        before = (gang.output / "node_1" / "train.log").read_text()
        assert gang.start().wait_for_exit() == [0, 0, 0]
        assert (gang.output / "node_1" / "train.log").read_text() == before
        assert "all 3 passes are done already: nothing to start. A new runId resumes" in gang.pod_log(0)
        status = gang.read_json("status.json")
        assert status["state"] == "complete"
        assert [rank["state"] for rank in status["ranks"]] == ["complete"] * 3, "no rank is absent or staging"


def test_a_killed_trainer_makes_all_ranks_exit_with_70_and_a_later_start_resumes(tmp_path: Path) -> None:
    stubborn = {"grandchild": True, "ignore_term": True}
    fake = {"trainer:2": {"do": "signal", "signal": int(signal.SIGKILL), "at": 2}}
    fake |= {"pserver:0": stubborn, "trainer:0": stubborn}
    with LoopbackGang(tmp_path, fake=fake, report=True, FAKE_PASS_SECONDS="0.5", passes=5) as gang:
        assert gang.start().wait_for_exit(30) == [70, 70, 70]
        assert gang.running_pids() == [], "also processes that ignore SIGTERM, and their descendants"
        for rank in range(3):
            cause = gang.termination_message(rank)
            assert f"rank 2 (pod {gang.run}-2-x on node node-2)" in cause
            assert "signal SIGKILL (exit code 137)" in cause
            assert "about to signal" in cause, "the cause quotes the last lines of the log"
            assert len(cause.encode()) <= 4096
        status = gang.read_json("status.json")
        assert status["state"] == "failed"
        assert "SIGKILL" in status["cause"]
        assert gang.read_json("run.json")["state"] == "failed"
        assert not (gang.output / "run.lock").exists()
        page = (gang.output / "report.html").read_text()
        assert '<span class="state failed">' in page
        assert "about to signal" in page.partition("Cause of the failure")[2]

        newest = max(int(p.parent.name[5:]) for p in gang.output.glob("pass-*/done"))
        (gang.output / f"pass-{newest + 1:05d}").mkdir(exist_ok=True)  # an unfinished checkpoint
        gang.fake = {}
        assert gang.start().wait_for_exit(30) == [0, 0, 0], gang.pod_log(0)
        log = (gang.output / "node_0" / "train.log").read_text()
        assert [line for line in log.splitlines() if "Pass=" in line] == [
            f"rank 0 Pass={n}" for n in range(newest + 1, 5)
        ], "only the remaining passes: --num_passes counts from --start_pass"
        assert "Pass=0" in (gang.output / "node_0" / "attempt-0" / "train.log").read_text()
        assert gang.read_json("status.json")["attempt"] == 1
        page = (gang.output / "report.html").read_text()
        assert '<span class="state complete">' in page
        assert "Cause of the failure" not in page
        secret = (gang.job / ".run-secret").read_text()
        assert find_files_with(secret, gang.job) == [Path(".run-secret")], "also not the page"


FAILED_STARTS = yaml.safe_load((HERE / "failed_starts.yaml").read_text("utf-8"))


@pytest.mark.parametrize("case", FAILED_STARTS.values(), ids=FAILED_STARTS)
def test_a_gang_that_cannot_train_exits_and_every_rank_reports_the_cause(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    ranks = case.get("ranks", {0: {}, 1: {}})
    with LoopbackGang(tmp_path, **{"trainers": 2, **case.get("gang", {})}) as gang:
        gang.hosts.pop(f"{gang.run}-3.paddle-training", None)
        for rank, env in ranks.items():
            gang.start(rank, **env)
        assert gang.wait_for_exit(30) == [70] * len(ranks)
        for rank, text in itertools.product(ranks, case["texts"]):
            expected = text.format(names=gang.names, addresses=gang.addresses, output=gang.output)
            assert expected in gang.termination_message(rank)
        assert case.get("trainer_started") in (None, "started trainer" in gang.pod_log(1))
        assert gang.running_pids() == []


# Lost processes and pods.


def test_killed_processes_restart_the_gang_in_place_with_processes_of_the_fork_server(tmp_path: Path) -> None:
    # On a busy machine no rank must count as lost, and no pserver as late.
    patient = {
        "silence": 15.0,
        "orphan": 15.0,
        "ready": 30.0,
        "pserver_exit": 15.0,
        "early_pserver_exit": 15.0,
    }
    fake = {"servers_end": True}
    with build_gang(tmp_path, trainers=3, options=["forked"], fake=fake, passes=12, timings=patient) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 1, 2))
        old = [gang.find_pids(rank, "pserver")[0] for rank in range(3)]
        launcher, trainer = gang.processes[1].pid, gang.find_pids(1, "train")[0]
        server = find_fork_server(launcher)
        assert server is not None
        assert parent_pid(trainer) == launcher
        os.kill(server, signal.SIGKILL)
        os.kill(trainer, signal.SIGKILL)
        gang.wait_until(lambda: find_fork_server(launcher) not in (server, None))
        gang.wait_until(lambda: trains_in_attempt(gang, 1))
        os.kill(gang.find_pids(0, "pserver")[0], signal.SIGKILL)
        assert gang.wait_for_exit() == [0, 0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang, attempts=3, passes=12)
        first, second = (restart["cause"] for restart in gang.read_json("run.json")["restarts"])
        assert first.startswith("rank 1 ") and "trainer exited with signal SIGKILL" in first
        assert second.startswith("rank 0 ") and "pserver exited with signal SIGKILL" in second
        assert [each["attempt"] for each in gang.read_json("status.json")["restarts"]] == [0, 1]
        for rank, pid in enumerate(old):
            assert "Pass=0" in (gang.output / f"node_{rank}" / "attempt-0" / "train.log").read_text()
            assert (gang.output / f"node_{rank}" / "attempt-1" / "train.log").exists()
            assert gang.pod_log(rank).count("staged shard") == 1, "a restart does not stage the data again"
            assert not Path(f"/proc/{pid}").exists()
            assert "pserver: still running" not in gang.pod_log(rank), "the pservers exit by themselves"


def find_fork_server(launcher: int) -> int | None:
    """Return the process id of a launcher's running fork server, or None."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"fork_server.serve" in path.read_bytes() and parent_pid(int(path.parent.name)) == launcher:
                return int(path.parent.name)
    return None


def parent_pid(pid: int) -> int:
    """Return the process id of the parent process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_stopped_launcher_exits_with_143_and_its_next_pod_resumes(tmp_path: Path) -> None:
    """The kubelet sends SIGTERM to a pod with a full work folder, too; only the launcher can say why."""
    limit = 4 << 20
    with build_gang(tmp_path, restarts=0, PADDLE_LAUNCHER_WORK_LIMIT_BYTES=str(limit)) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 1, 2))
        rows = gang.folder / "work-1" / "records" / "rows"
        rows.parent.mkdir(exist_ok=True)
        rows.write_bytes(os.urandom(limit + 1))
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.processes[1].wait(20) == 143, gang.pod_log(1)
        for text in (
            "received SIGTERM; no checkpoint begun: no process of this run has reported that it saves checkpoints",
            "above workDir.sizeLimit (4,194,304 bytes), for which Kubernetes evicts the pod",
        ):
            assert text in gang.termination_message(1)
        rows.unlink()
        gang.start(1)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert "SIGTERM: no checkpoint begun" in restart["cause"], "the fake trainer reports no checkpoint"


@needs_root
def test_the_gang_waits_for_the_replacement_of_a_killed_launcher_of_rank_0(tmp_path: Path) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="1.5") as gang:
        gang.start(1).start(0, prefix=OWN_PIDS).wait_until(lambda: has_started_pass(gang, 0, 2))
        gang.processes[0].kill()
        gang.processes[0].wait()
        gang.start(0, prefix=OWN_PIDS)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert "the coordinator's launcher was lost" in restart["cause"]


def test_a_second_pod_of_a_healthy_rank_is_rejected_and_the_run_completes(tmp_path: Path) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="2", options=["pservers exit"]) as gang:
        gang.start().wait_until(gang.all_trainers_started)
        first = gang.processes.pop(1)
        gang.addresses[1] = gang.addresses[1].rsplit(".", 1)[0] + ".99"
        gang.start(1)
        assert gang.processes[1].wait(20) == 69
        assert "is alive; this is another pod of the same rank" in gang.termination_message(1)
        gang.processes[1] = first
        assert gang.wait_for_exit() == [0, 0]
        assert_resumed_and_complete(gang, attempts=1)
        assert "pserver: still running" in gang.pod_log(1), "pservers that do not exit are stopped"


def send_request(
    gang: LoopbackGang, method: str, path: str, body: str = "", *, secret: str = "", run: str = ""
) -> tuple[int, str]:
    """Send a request to rank 0 with the credential of a run (by default of this one); return HTTP status and body."""
    headers = {"Authorization": f"Bearer paddle/{run or gang.run}/{secret}"}
    with contextlib.closing(http.client.HTTPConnection(gang.addresses[0], 7168, timeout=20)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_rank_0_rejects_invalid_reports_serves_pages_and_creates_no_removed_output_again(
    tmp_path: Path,
) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="30") as gang:
        gang.start().wait_until(gang.reports_training)
        state = json.dumps({"state": {"rank": 1, "incarnation": "x", "phase": "idle"}, "seen": 0})
        secret = (gang.job / ".run-secret").read_text()
        assert send_request(gang, "POST", "/state", state, secret=secret, run="another-run")[0] == 401
        assert send_request(gang, "POST", "/state", '{"state": 1}', secret=secret)[0] == 400
        assert (
            send_request(gang, "POST", "/state", state.replace('"rank": 1', '"rank": 7'), secret=secret)[0]
            == 400
        )
        assert send_request(gang, "POST", "/state", state, secret=secret)[0] == 409
        assert send_request(gang, "GET", "/healthz")[0] == 200
        code, body = send_request(gang, "GET", "/status")
        assert code == 200
        assert json.loads(body)["state"] == "training"
        code, body = send_request(gang, "GET", "/metrics")
        assert code == 200
        assert "paddle_training_attempt 0.0" in body
        assert 'paddle_training_rank_samples_per_second{node="node-1",rank="1"}' in body
        assert send_request(gang, "GET", "/else")[0] == 404
        for _ in range(100):  # the launchers create files in the folder meanwhile
            shutil.rmtree(gang.output, ignore_errors=True)
            if not gang.output.exists():
                break
        assert gang.processes[0].wait(30) == 71
        assert not gang.find_pids(0, "train")
        assert not (gang.output / "status.json").exists()


def find_files_with(text: str, folder: Path) -> list[Path]:
    """Return the files below `folder` that contain `text`, as paths relative to it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.relative_to(folder) for path in files if text.encode() in path.read_bytes()]


def test_nothing_that_others_may_read_contains_the_secret_of_a_run(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2, FAKE_PASS_SECONDS="0.5") as gang:
        gang.start().wait_until(gang.reports_training)
        secret_file = gang.job / ".run-secret"
        secret = secret_file.read_text()
        assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
        assert find_files_with(secret, gang.job) == [Path(".run-secret")]
        lock, record = gang.read_json("run.lock"), gang.read_json("run.json")
        for known in (lock["token"], record["holder"], *record["incarnations"], ""):
            assert send_request(gang, "POST", "/state", "{}", secret=known)[0] == 401
        assert send_request(gang, "POST", "/state", "{}", secret=secret)[0] == 400, (
            "the credential is right; only the state is not one"
        )
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        assert find_files_with(secret, gang.job) == [Path(".run-secret")]
        assert secret not in gang.pod_log(0) + gang.pod_log(1)
        assert json.loads((gang.output / "run.copy.json").read_text())["holder"] == record["holder"]
    again = {"run": "quick-start-ffffffff", "batch_size": 7, "FAKE_PASS_SECONDS": "0.5"}
    with LoopbackGang(tmp_path, trainers=2, **again) as gang:
        gang.start().wait_until(gang.reports_training)
        assert (gang.job / ".run-secret").read_text() != secret, "each start has another secret"
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
    assert list((gang.job / "runs").iterdir())
    assert find_files_with(secret, gang.job) == []


def test_three_quick_suspends_lose_no_checkpoint(tmp_path: Path) -> None:
    """Each suspend hits another moment of the start: staging, the rendezvous, the start of the pservers."""
    with build_gang(tmp_path, restarts=0) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 0, 2))
        for seconds in (0.0, 0.4, 1.0):
            time.sleep(seconds)
            for process in gang.processes.values():
                process.send_signal(signal.SIGTERM)
            assert set(gang.wait_for_exit()) <= {0, 143, -signal.SIGTERM}, gang.pod_log(0)
            assert not (gang.output / "run.lock").exists()
            if seconds == 0.0:
                assert gang.read_json("run.json")["state"] == "stopped"
                assert gang.read_json("status.json")["state"] == "stopped"
            gang.start()
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert gang.read_json("run.json")["state"] == "complete"
        assert all((gang.output / f"pass-{n:05d}" / "done").exists() for n in range(8))
        assert "Pass=0\n" not in (gang.output / "node_0" / "train.log").read_text(), (
            "the run did not start from scratch"
        )


def test_a_release_installed_while_an_earlier_one_stops_trains_from_scratch(tmp_path: Path) -> None:
    with build_gang(tmp_path) as first:
        first.start().wait_until((first.output / "run.lock").exists)
        with build_gang(tmp_path, run="quick-start-next") as second:
            second.start()
            for process in first.processes.values():
                process.send_signal(signal.SIGTERM)
            assert second.wait_for_exit(60) == [0, 0], second.pod_log(0)
            run = second.read_json("run.json")
            assert (run["runId"], run["state"], run["restarts"]) == ("quick-start-next", "complete", [])
            assert len(list(second.output.glob("pass-*/done"))) == 8
        first.wait_for_exit()


# Ranks that come back late, as on spot machines.


def received_events(hook: Hook) -> list[str]:
    """Return the events of the webhook's messages; a message that was sent again counts once."""
    return [str(message["event"]) for message in {each["id"]: each for each in hook.accepted}.values()]


def test_training_continues_when_a_missing_rank_comes_back_and_users_are_notified_once(
    tmp_path: Path,
) -> None:
    """First rank 1 is lost, about which rank 0 notifies users; then rank 0, about which rank 1 does."""

    def lose(rank: int, attempt: int) -> str:
        """Stop the launcher of a rank while it trains, as a reclaimed node does; return the cause of `waiting`."""
        gang.wait_until(
            lambda: trains_in_attempt(gang, attempt) and list(gang.output.glob("pass-*/done")), 60
        )
        gang.wait_until(lambda: not (attempt and "joined" not in received_events(hook)))
        hook.accepted.clear()  # on a slow machine ranks may have joined late before
        gang.processes[rank].send_signal(signal.SIGTERM)
        assert gang.processes[rank].wait(60) == 143, gang.pod_log(rank)
        gang.wait_until(lambda: "waiting" in received_events(hook))
        return str(next(each["cause"] for each in hook.accepted if each["event"] == "waiting"))

    waits = {"rendezvous_seconds": 1, "rank_wait_hours": 0.2, "restarts": 0, "FAKE_PASS_SECONDS": "1.5"}
    with (
        contextlib.closing(Hook()) as hook,
        build_gang(tmp_path, PADDLE_LAUNCHER_WEBHOOK=hook.url, **waits) as gang,
    ):
        gang.start()
        cause = lose(1, attempt=0)
        assert "1 of 2 ranks did not join within 1 s (rendezvousSeconds): rank 1: " in cause
        assert "waits for them for up to 0.2 h more (training.rankWaitHours). Fix: run `python -m" in cause
        assert not gang.find_pids(0, "train"), "the waiting rank runs no process"
        assert not gang.find_pids(0, "pserver")
        status = gang.read_json("status.json")
        assert (status["state"], status["waitingFor"]) == (
            "rendezvous",
            f"rank 1 (pod {gang.run}-1-x on node node-1) to join",
        )
        assert status["joinSeconds"] == 721
        assert 1 <= time.time() - status["waitingSince"] < 721
        gang.start(1)

        cause = lose(0, attempt=1)
        assert "rank 0 has been unreachable for " in cause
        assert "(training.rankWaitHours). Fix: run `python -m launcher status`" in cause
        gang.start(0)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(1)
        assert_resumed_and_complete(gang, attempts=3, restarts=1)  # the second one was a stop by the user
        events = received_events(hook)
        assert [events.count(event) for event in ("waiting", "joined", "completed")] == [1, 1, 1]


# Storage (a FUSE mount) that hangs or fails for one rank.


def start_with_own_mounts(gang: LoopbackGang, rank: int) -> LoopbackGang:
    """Start the gang with `rank` in its own mount namespace, as in a pod; return the gang."""
    return gang.start(1 - rank).start(rank, prefix=OWN_MOUNTS)


@needs_fuse
def test_a_storage_that_hangs_during_a_checkpoint_causes_one_restart_and_replaces_the_pod(
    tmp_path: Path,
) -> None:
    """Regression: no rank noticed the hang for 400 s, and `status` showed `training`."""
    written = tmp_path / "shared" / "part"
    fake = {"trainer:1": {"do": "write", "path": str(written), "at": 2}}
    limits = {"storage_late": 0.5, "storage": 3.0}
    with build_gang(tmp_path, fake=fake, timings=limits, FAKE_PASS_SECONDS="2") as gang:
        start_with_own_mounts(gang, 1).wait_until(lambda: has_started_pass(gang, 1, 1))
        with failing_filesystem.mount_over(gang.root / "shared", pid=gang.processes[1].pid):
            gang.wait_until(
                lambda: "the storage to answer rank 1" in str(gang.read_json("status.json")["waitingFor"])
            )
            gang.wait_until(lambda: "exits with code 71" in gang.pod_log(1))
            gang.wait_until(lambda: gang.read_json("run.json")["attempt"] == 1)
            assert gang.read_json("status.json")["state"] == "rendezvous"
        assert gang.processes[1].wait(20) == 71
        gang.fake = {}
        gang.start(1)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert f"rank 1 (pod {gang.run}-1-x on node node-1): the storage" in restart["cause"]
        assert "gave no answer to this pod for" in restart["cause"]
        assert "Fix: see whether the volume is mounted" in restart["cause"]


@needs_fuse
def test_a_storage_that_fails_a_member_for_a_while_causes_no_restart(tmp_path: Path) -> None:
    """The deadlines are a tenth of the product's."""
    with build_gang(tmp_path, timings={"storage": 15.0}, FAKE_PASS_SECONDS="1.5") as gang:
        start_with_own_mounts(gang, 1).wait_until(lambda: has_started_pass(gang, 1, 1))
        with failing_filesystem.mount_over(gang.root / "shared", errno.ESTALE, pid=gang.processes[1].pid):
            time.sleep(9)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(1)
        assert_resumed_and_complete(gang, attempts=1)


@needs_fuse
def test_a_storage_that_hangs_rank_0_for_longer_than_its_lease_causes_one_restart(tmp_path: Path) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="1") as gang:
        start_with_own_mounts(gang, 0).wait_until(lambda: has_started_pass(gang, 0, 2))
        with failing_filesystem.mount_over(gang.root / "shared", pid=gang.processes[0].pid):
            gang.wait_until(lambda: "exits with code 71" in gang.pod_log(0))
        assert gang.processes[0].wait(20) == 71
        gang.start(0)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert restart["cause"] == "the coordinator's launcher was lost"
