"""Tests of gangs on loopback that lose a process, a launcher, a pod or the storage, and resume."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.supervisor.loopback_gang import LoopbackGang

pytestmark = pytest.mark.slow

PASSES = "8"


def build_gang(root: Path, **changes: Any) -> LoopbackGang:
    """Return a gang of two ranks that trains for some four seconds and may restart three times."""
    return LoopbackGang(
        root,
        **{
            "trainers": 2,
            "restarts": 3,
            "passes": PASSES,
            "FAKE_PASS_SECONDS": "0.4",
            "rendezvous_seconds": 30,
            **changes,
        },
    )


def has_started_pass(gang: LoopbackGang, rank: int, number: int) -> bool:
    """Return whether a rank's trainer has started this pass."""
    return f"Pass={number}\n" in gang.read_log(rank)


def assert_resumed_and_complete(gang: LoopbackGang, attempts: int = 2, restarts: int | None = None) -> None:
    """Assert that all checkpoints are finished, and that the last attempt resumed from one of them."""
    assert gang.running_pids() == []
    assert [p.name for p in sorted(gang.output.glob("pass-*"))] == [f"pass-{n:05d}" for n in range(8)]
    assert all((p / "done").exists() for p in gang.output.glob("pass-*"))
    run = gang.read_json("run.json")
    assert run["state"] == "complete"
    assert run["attempt"] == attempts - 1
    assert len(run["restarts"]) == (attempts - 1 if restarts is None else restarts)
    last = (gang.output / "node_0" / "train.log").read_text()
    assert "Pass=7" in last
    assert attempts == 1 or "Pass=0\n" not in last
    assert not (gang.output / "run.lock").exists()


@pytest.mark.parametrize(("rank", "child"), [(0, "train"), (1, "pserver")])
def test_a_killed_process_restarts_the_gang_in_place(tmp_path: Path, rank: int, child: str) -> None:
    with build_gang(tmp_path, trainers=3) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, rank, 2))
        old = {r: gang.find_pid(r, "pserver") for r in range(3)}
        os.kill(gang.find_pid(rank, child), signal.SIGKILL)
        assert gang.wait_for_exit() == [0, 0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        name = {"train": "trainer"}.get(child, child)
        [restart] = gang.read_json("run.json")["restarts"]
        assert f"rank {rank} " in restart["cause"]
        assert f"{name} exited with signal SIGKILL" in restart["cause"]
        assert gang.read_json("status.json")["restarts"][0]["attempt"] == 0
        for other in range(3):
            assert "Pass=0" in (gang.output / f"node_{other}" / "attempt-0" / "train.log").read_text()
            assert gang.pod_log(other).count("staged shard") == 1, "a restart does not stage the data again"
            assert not Path(f"/proc/{old[other]}").exists()


def test_a_restart_uses_the_fork_server_and_replaces_a_killed_one(tmp_path: Path) -> None:
    with build_gang(tmp_path, forked=True) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 1, 2))
        launcher = gang.processes[1].pid
        server = find_fork_server(launcher)
        assert parent_pid(gang.find_pid(1, "train")) == launcher
        os.kill(server, signal.SIGKILL)
        os.kill(gang.find_pid(1, "train"), signal.SIGKILL)
        gang.wait_until(lambda: find_fork_server(launcher) not in (server, None))
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)


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


def test_only_restarts_without_a_new_checkpoint_are_limited(tmp_path: Path) -> None:
    fake = {"trainer:1": {"do": "signal", "signal": int(signal.SIGKILL), "at": 2}}
    fake["trainer:0"] = {"do": "hang", "at": 2}  # or it trains on until it is stopped
    with build_gang(tmp_path, fake=fake) as gang:
        assert gang.start().wait_for_exit(60) == [70, 70]
        # the first attempts may save passes 0 and 1; every later attempt resumes after pass 1
        assert gang.read_json("run.json")["attempt"] in (3, 4, 5)
        assert (
            "training.restarts: 4 failures since the newest checkpoint (limit 3)"
            in gang.termination_message(1)
        )
        assert "SIGKILL" in gang.termination_message(1)


def test_a_pod_that_is_evicted_for_its_full_work_folder_says_so(tmp_path: Path) -> None:
    """The kubelet sends SIGTERM; the run record would say no more than that."""
    limit = 4 << 20
    with build_gang(tmp_path, trainers=1, PADDLE_LAUNCHER_WORK_LIMIT_BYTES=str(limit)) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 0, 2))
        (gang.folder / "work-0" / "records").mkdir(exist_ok=True)
        (gang.folder / "work-0" / "records" / "rows").write_bytes(os.urandom(limit + 1))
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.wait_for_exit() == [143]
        text = "above workDir.sizeLimit (4,194,304 bytes), for which Kubernetes evicts the pod"
        assert text in gang.termination_message(0)
        record = gang.read_json("run.json")
        assert record["state"] == "stopped"
        assert text in record["cause"]


def test_a_stopped_launcher_exits_with_143_and_its_next_pod_resumes(tmp_path: Path) -> None:
    with build_gang(tmp_path, restarts=0) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 1, 2))
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.processes[1].wait(20) == 143, gang.pod_log(1)
        assert (
            "received SIGTERM; no checkpoint begun: no process of this run saves checkpoints"
            in gang.termination_message(1)
        )
        gang.start(1)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert "SIGTERM: no checkpoint begun" in restart["cause"], "the fake trainer reports no checkpoint"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_gang_waits_for_the_replacement_of_a_killed_launcher(tmp_path: Path, rank: int) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root for a pid namespace")
    pod = ("unshare", "--pid", "--fork", "--kill-child")
    with build_gang(tmp_path, FAKE_PASS_SECONDS="1.5") as gang:
        gang.start(1 - rank).start(rank, prefix=pod).wait_until(lambda: has_started_pass(gang, rank, 2))
        gang.processes[rank].kill()
        gang.processes[rank].wait()
        gang.start(rank, prefix=pod)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert ("rank 0's launcher was lost" if rank == 0 else "rank 1") in restart["cause"]


def test_a_rank_0_that_freezes_for_a_while_causes_a_restart(tmp_path: Path) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="2") as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 0, 1))
        gang.processes[0].send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + max(gang.timings["lock_lease"], gang.timings["silence"])
        # The other rank may stop earlier on a busy machine: keep the launcher frozen until the deadline.
        gang.wait_until(lambda: time.monotonic() > deadline and not gang.is_running(1, "pserver"))
        gang.processes[0].send_signal(signal.SIGCONT)
        assert gang.processes[0].wait(30) == 71, "it lost its lease meanwhile"
        assert "could not be renewed" in gang.termination_message(0)
        gang.start(0)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert gang.read_json("run.json")["state"] == "complete"


def test_a_second_pod_of_a_healthy_rank_is_rejected_and_the_run_completes(
    tmp_path: Path,
) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="4") as gang:
        gang.start().wait_until(gang.all_trainers_started)
        first = gang.processes.pop(1)
        gang.addresses[1] = gang.addresses[1].rsplit(".", 1)[0] + ".99"
        gang.start(1)
        assert gang.processes[1].wait(20) == 69
        assert "is alive; this is another pod of the same rank" in gang.termination_message(1)
        gang.processes[1] = first
        assert gang.wait_for_exit() == [0, 0]
        assert_resumed_and_complete(gang, attempts=1)


def test_a_damaged_run_record_loses_no_checkpoint(tmp_path: Path) -> None:
    """A damaged run.json is read from its copy; without both the output is neither moved nor trained."""
    with build_gang(tmp_path, passes=2) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
        run = gang.output / "run.json"
        run.write_text(run.read_text().replace('"dataDigest": "d1"', '"dataDigest": "d0"'))
        assert gang.start().wait_for_exit() == [0, 0]
        assert "checksum does not match" in gang.pod_log(0)
        assert gang.read_json("run.json") == gang.read_json("run.copy.json"), "run.json is written again"
        assert not (gang.job / "runs").exists()
        for name in ("run.json", "run.copy.json"):
            (gang.output / name).rename(gang.output / f"{name}.kept")
        assert gang.start().wait_for_exit() == [65, 65]
        assert "contains checkpoints" in gang.termination_message(0)
        assert (gang.output / "pass-00001" / "done").exists()
        assert not (gang.job / "runs").exists() or not list((gang.job / "runs").iterdir())


def test_a_removed_output_folder_stops_rank_0_and_is_not_created_again(tmp_path: Path) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="30") as gang:
        gang.start().wait_until(gang.all_trainers_started)
        for _ in range(100):  # the launchers create files in the folder meanwhile
            shutil.rmtree(gang.output, ignore_errors=True)
            if not gang.output.exists():
                break
        assert gang.processes[0].wait(30) == 71
        assert not gang.is_running(0, "train")
        assert not (gang.output / "status.json").exists()


def test_invalid_reports_are_rejected_and_http_pages_are_served(tmp_path: Path) -> None:
    import http.client

    def send_request(method: str, path: str, body: str = "", token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(gang.addresses[0], 7168, timeout=5)
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        found = response.status, response.read().decode()
        connection.close()
        return found

    with build_gang(tmp_path, FAKE_PASS_SECONDS="2") as gang:
        gang.start().wait_until(gang.reports_training)
        state = json.dumps({"state": {"rank": 1, "incarnation": "x", "phase": "idle"}, "seen": 0})
        token = f"paddle/{gang.run}/" + (gang.output.parent / ".run-secret").read_text()
        assert send_request("POST", "/state", state, token.replace(gang.run, "another-run"))[0] == 401
        assert send_request("POST", "/state", '{"state": 1}', token)[0] == 400
        assert send_request("POST", "/state", state.replace('"rank": 1', '"rank": 7'), token)[0] == 400
        assert send_request("POST", "/state", state, token)[0] == 409
        assert send_request("GET", "/healthz")[0] == 200
        code, body = send_request("GET", "/status")
        assert code == 200
        assert json.loads(body)["state"] == "training"
        code, body = send_request("GET", "/metrics")
        assert code == 200
        assert "paddle_training_attempt 0.0" in body
        assert 'paddle_training_rank_samples_per_second{rank="1"}' in body
        assert send_request("GET", "/else")[0] == 404


def test_five_quick_suspends_lose_no_checkpoint(tmp_path: Path) -> None:
    """Each suspend hits another moment of the start: staging, the rendezvous, the start of the pservers."""
    with build_gang(tmp_path, restarts=0) as gang:
        gang.start().wait_until(lambda: has_started_pass(gang, 0, 2))
        for seconds in (0.0, 0.3, 0.6, 0.9, 1.5):
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
