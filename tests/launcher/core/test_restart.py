"""Gangs on loopback that lose a process, a launcher, a pod or the storage, and go on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.core.kit import LoopbackGang

PASSES = "8"
UNDISTURBED = [f"Pass={n}" for n in range(int(PASSES))]


def gang_of(root: Path, **changes: Any) -> LoopbackGang:
    """A gang that trains for some four seconds and may restart three times."""
    return LoopbackGang(
        root,
        **{
            "PADDLE_LAUNCHER_RESTARTS": "3",
            "PADDLE_LAUNCHER_PASSES": PASSES,
            "FAKE_PASS_SECONDS": "0.4",
            "PADDLE_LAUNCHER_RENDEZVOUS_SECONDS": "30",
            **changes,
        },
    )


def in_pass(gang: LoopbackGang, rank: int, number: int) -> bool:
    return f"Pass={number}\n" in gang.said(rank)


def went_on(gang: LoopbackGang, attempts: int = 2, restarts: int | None = None) -> None:
    """All passes are whole; the last attempt began behind a save and not anew."""
    assert gang.alive() == []
    assert [p.name for p in sorted(gang.output.glob("pass-*"))] == [f"pass-{n:05d}" for n in range(8)]
    assert all((p / "done").exists() for p in gang.output.glob("pass-*"))
    run = gang.json("run.json")
    assert run["state"] == "complete"
    assert run["attempt"] == attempts - 1
    assert len(run["restarts"]) == (attempts - 1 if restarts is None else restarts)
    last = (gang.output / "node_0" / "train.log").read_text()
    assert "Pass=7" in last
    assert attempts == 1 or "Pass=0\n" not in last
    assert not (gang.output / "run.lock").exists()


@pytest.mark.parametrize(("rank", "child"), [(0, "train"), (1, "pserver"), (2, "train")])
def test_a_process_that_dies_restarts_all_in_place(tmp_path: Path, rank: int, child: str) -> None:
    with gang_of(tmp_path) as gang:
        gang.start().until(lambda: in_pass(gang, rank, 2))
        old = {r: gang.child(r, "pserver") for r in range(3)}
        os.kill(gang.child(rank, child), signal.SIGKILL)
        assert gang.wait() == [0, 0, 0], gang.pod_log(0)
        went_on(gang)
        name = {"train": "trainer"}.get(child, child)
        [restart] = gang.json("run.json")["restarts"]
        assert f"rank {rank} " in restart["cause"]
        assert f"{name} ended with signal SIGKILL" in restart["cause"]
        assert gang.json("status.json")["restarts"][0]["attempt"] == 0
        for other in range(3):
            assert "Pass=0" in (gang.output / f"node_{other}" / "attempt-0" / "train.log").read_text()
            assert gang.pod_log(other).count("staged shard") == 1, "the staged data stays"
            assert not Path(f"/proc/{old[other]}").exists()


def test_a_restart_is_forked_off_too_and_a_fork_server_that_died_is_replaced(tmp_path: Path) -> None:
    with gang_of(tmp_path, forked=True) as gang:
        gang.start().until(lambda: in_pass(gang, 1, 2))
        launcher = gang.processes[1].pid
        server = fork_server(launcher)
        assert parent(gang.child(1, "train")) == launcher
        os.kill(server, signal.SIGKILL)
        os.kill(gang.child(1, "train"), signal.SIGKILL)
        gang.until(lambda: fork_server(launcher) not in (server, None))
        assert gang.wait() == [0, 0, 0], gang.pod_log(0)
        went_on(gang)


def fork_server(launcher: int) -> int | None:
    """The one that lives, of a launcher."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"forks.serve" in path.read_bytes() and parent(int(path.parent.name)) == launcher:
                return int(path.parent.name)
    return None


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_restarts_without_a_new_save_are_limited_and_those_with_one_are_not(tmp_path: Path) -> None:
    fake = {"trainer:1": {"do": "signal", "signal": int(signal.SIGKILL), "at": 2}}
    with gang_of(tmp_path, fake=fake) as gang:
        assert gang.start().wait(60) == [70, 70, 70]
        # until both passes are saved an attempt may bring a new save; from then on each begins behind pass 1
        assert gang.json("run.json")["attempt"] in (3, 4, 5)
        assert "training.restarts is 3, and it failed 4 times since the last new save" in gang.termination(2)
        assert "SIGKILL" in gang.termination(2)


def test_the_programs_own_failure_at_the_same_place_twice_ends_the_run(tmp_path: Path) -> None:
    fake = {"trainer:1": {"do": "exit", "code": 9, "at": 0}}
    with gang_of(tmp_path, fake=fake) as gang:
        assert gang.start().wait(60) == [70, 70, 70]
        assert gang.json("run.json")["attempt"] == 1
        assert "the second time in a row" in gang.termination(0)
        assert "exit code 9" in gang.termination(0)


@pytest.mark.parametrize("code", [64, 65, 75])
def test_what_the_same_again_would_not_mend_never_restarts(tmp_path: Path, code: int) -> None:
    fake = {"trainer:2": {"do": "exit", "code": code, "at": 1}}
    with gang_of(tmp_path, fake=fake) as gang:
        assert gang.start().wait() == [code] * 3
        assert gang.json("run.json")["attempt"] == 0
        assert gang.json("run.json")["exitCode"] == code


@pytest.mark.parametrize("rank", [0, 1])
def test_a_launcher_that_is_told_to_stop_ends_with_143_and_its_next_pod_goes_on(
    tmp_path: Path, rank: int
) -> None:
    with gang_of(tmp_path, PADDLE_LAUNCHER_RESTARTS="0") as gang:
        gang.start().until(lambda: in_pass(gang, rank, 2))
        gang.processes[rank].send_signal(signal.SIGTERM)
        assert gang.processes[rank].wait(20) == 143, gang.pod_log(rank)
        assert "told to stop (SIGTERM)" in gang.termination(rank)
        gang.start(rank)
        assert gang.wait() == [0, 0, 0], gang.pod_log(0)
        went_on(gang, restarts=None if rank else 0)


def test_all_launchers_told_to_stop_leave_a_run_that_the_next_start_goes_on_with(tmp_path: Path) -> None:
    with gang_of(tmp_path) as gang:
        gang.start().until(lambda: in_pass(gang, 0, 2))
        for process in gang.processes.values():
            process.send_signal(signal.SIGTERM)
        assert gang.wait() == [143, 143, 143]
        assert gang.json("run.json")["state"] == "stopped"
        assert gang.json("status.json")["state"] == "stopped"
        assert not (gang.output / "run.lock").exists()
        assert gang.start().wait() == [0, 0, 0]
        went_on(gang, restarts=0)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_launcher_that_is_killed_comes_back_and_the_others_waited(tmp_path: Path, rank: int) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root for a pid namespace")
    pod = ("unshare", "--pid", "--fork", "--kill-child")
    with gang_of(tmp_path, FAKE_PASS_SECONDS="1.5") as gang:
        gang.start(*(r for r in range(3) if r != rank))
        gang.start(rank, prefix=pod).until(lambda: in_pass(gang, rank, 2))
        gang.processes[rank].kill()
        gang.processes[rank].wait()
        gang.start(rank, prefix=pod)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang)
        [restart] = gang.json("run.json")["restarts"]
        assert ("rank 0's launcher was lost" if rank == 0 else "rank 2") in restart["cause"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_launcher_that_freezes_for_a_while_costs_one_restart(tmp_path: Path, rank: int) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="2") as gang:
        gang.start().until(lambda: in_pass(gang, rank, 1))
        gang.processes[rank].send_signal(signal.SIGSTOP)
        over = time.monotonic() + max(gang.timings["lock_lease"], gang.timings["silence"])
        others = [r for r in range(3) if r != rank]
        # On a busy machine the others may end theirs for another reason: it stays frozen all the same.
        gang.until(lambda: time.monotonic() > over and not any(gang.has(r, "pserver") for r in others))
        gang.processes[rank].send_signal(signal.SIGCONT)
        if rank == 0:  # it lost its lease meanwhile: Kubernetes brings another pod
            assert gang.processes[0].wait(30) == 71
            assert "could not be renewed" in gang.termination(0)
            gang.start(0)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        assert gang.json("run.json")["state"] == "complete"


def test_a_trainer_that_hangs_is_a_failure_like_a_death(tmp_path: Path) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="1", PADDLE_LAUNCHER_STALL_SECONDS="10") as gang:
        gang.start().until(lambda: in_pass(gang, 0, 2))
        os.kill(gang.child(0, "train"), signal.SIGSTOP)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang)
        assert (
            "trainer hangs: no batch for 10 s (training.stallSeconds)"
            in gang.json("run.json")["restarts"][0]["cause"]
        )


def test_a_second_pod_of_a_rank_is_refused_while_the_first_is_healthy_and_fails_nothing(
    tmp_path: Path,
) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="4") as gang:
        gang.start().until(gang.training)
        first = gang.processes.pop(1)
        gang.addresses[1] = gang.addresses[1].rsplit(".", 1)[0] + ".99"
        gang.start(1)
        assert gang.processes[1].wait(20) == 69
        assert "is alive; this is another pod of that rank" in gang.termination(1)
        gang.processes[1] = first
        assert gang.wait() == [0, 0, 0]
        went_on(gang, attempts=1)


def test_a_second_pod_of_rank_0_waits_for_the_lease_and_takes_over_when_the_first_ends(
    tmp_path: Path,
) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="1") as gang:
        gang.start().until(lambda: in_pass(gang, 0, 1))
        first = gang.processes.pop(0)
        own = gang.addresses[0]
        gang.hosts[gang.names[0]] = gang.addresses[0] = own.rsplit(".", 1)[0] + ".99"
        gang.start(0)
        time.sleep(1)
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 143
        gang.rename(gang.names[0], gang.addresses[0])
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang, restarts=0)


def test_a_pod_that_comes_when_the_run_is_complete_ends_with_0(tmp_path: Path) -> None:
    with gang_of(tmp_path, PADDLE_LAUNCHER_PASSES="1") as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert gang.start(2).processes[2].wait(20) == 0
        assert "the run is complete" in gang.pod_log(2)


def test_a_failed_read_of_the_runs_books_loses_nothing(tmp_path: Path) -> None:
    """A damaged run.json is read from its copy; without both, nothing is moved nor trained."""
    with gang_of(tmp_path, PADDLE_LAUNCHER_PASSES="2") as gang:
        assert gang.start().wait() == [0, 0, 0]
        run = gang.output / "run.json"
        run.write_text(run.read_text().replace('"dataDigest": "d1"', '"dataDigest": "d0"'))
        assert gang.start().wait() == [0, 0, 0]
        assert "its checksum is not that of its other fields" in gang.pod_log(0)
        assert gang.json("run.json") == gang.json("run.copy.json"), "it is written again"
        assert not (gang.job / "runs").exists()
        for name in ("run.json", "run.copy.json"):
            (gang.output / name).rename(gang.output / f"{name}.kept")
        assert gang.start().wait() == [65, 65, 65]
        assert "holds saves" in gang.termination(0)
        assert (gang.output / "pass-00001" / "done").exists()
        assert not (gang.job / "runs").exists() or not list((gang.job / "runs").iterdir())


def test_an_output_that_vanishes_ends_the_run_and_is_not_written_again(tmp_path: Path) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="30") as gang:
        gang.start().until(gang.training)
        for _ in range(100):  # files come and go in it meanwhile
            shutil.rmtree(gang.output, ignore_errors=True)
            if not gang.output.exists():
                break
        assert gang.processes[0].wait(30) == 71
        assert not gang.has(0, "train")
        assert not (gang.output / "status.json").exists()


def test_a_stranger_is_refused_and_pages_are_answered(tmp_path: Path) -> None:
    import http.client

    def ask(method: str, path: str, body: str = "", token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(gang.addresses[0], 7168, timeout=5)
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        found = response.status, response.read().decode()
        connection.close()
        return found

    with gang_of(tmp_path, FAKE_PASS_SECONDS="2") as gang:
        gang.start().until(gang.training)
        state = json.dumps({"state": {"rank": 1, "incarnation": "x", "phase": "idle"}, "seen": 0})
        assert ask("POST", "/state", state)[0] == 401
        assert ask("POST", "/state", state, "guess")[0] == 401
        token = f"paddle/{gang.run}/" + json.loads((gang.output / "run.lock").read_text())["token"]
        assert ask("POST", "/state", state, token.replace(gang.run, "another-run"))[0] == 401
        assert ask("POST", "/state", '{"state": 1}', token)[0] == 400
        assert ask("POST", "/state", state.replace('"rank": 1', '"rank": 7'), token)[0] == 400
        assert ask("POST", "/state", state, token)[0] == 409
        assert ask("GET", "/healthz")[0] == 200
        code, body = ask("GET", "/status")
        assert code == 200
        assert json.loads(body)["state"] == "training"
        code, body = ask("GET", "/metrics")
        assert code == 200
        assert "paddle_training_attempt 0.0" in body
        assert 'paddle_training_rank_samples_per_second{rank="2"}' in body
        assert ask("GET", "/else")[0] == 404


def test_clocks_that_jump_two_hours_in_opposite_directions_change_nothing(tmp_path: Path) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="1") as gang:
        gang.start().until(lambda: in_pass(gang, 0, 2))
        gang.jump({0: 7200, 1: -7200})
        gang.until(lambda: gang.json("status.json")["updated"] > time.time() + 7000)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang, attempts=1)


def test_five_quick_suspends_lose_nothing(tmp_path: Path) -> None:
    """Each comes at another moment of the start: while staging, at the rendezvous, while pservers start."""
    with gang_of(tmp_path, PADDLE_LAUNCHER_RESTARTS="0") as gang:
        gang.start().until(lambda: in_pass(gang, 0, 2))
        for seconds in (0.0, 0.3, 0.6, 0.9, 1.5):
            time.sleep(seconds)
            for process in gang.processes.values():
                process.send_signal(signal.SIGTERM)
            assert set(gang.wait()) <= {0, 143, -signal.SIGTERM}, gang.pod_log(0)
            gang.start()
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        assert gang.json("run.json")["state"] == "complete"
        assert all((gang.output / f"pass-{n:05d}" / "done").exists() for n in range(8))
        assert "Pass=0\n" not in (gang.output / "node_0" / "train.log").read_text(), "it did not begin again"


def test_an_uninstall_and_install_during_the_start_leaves_the_second_install_to_train(tmp_path: Path) -> None:
    with gang_of(tmp_path) as first:
        first.start().until((first.output / "run.lock").exists)
        with gang_of(tmp_path, run="quick-start-next") as second:
            second.start()
            for process in first.processes.values():
                process.send_signal(signal.SIGTERM)
            assert second.wait(60) == [0, 0, 0], second.pod_log(0)
            run = second.json("run.json")
            assert (run["runId"], run["state"], run["restarts"]) == ("quick-start-next", "complete", [])
            assert len(list(second.output.glob("pass-*/done"))) == 8
        first.wait()


def test_garbage_and_strangers_that_say_nothing_on_peer_port_change_nothing(tmp_path: Path) -> None:
    garbage = random.Random(17)  # noqa: S311 - the same bytes each time
    with gang_of(tmp_path, FAKE_PASS_SECONDS="1") as gang, contextlib.ExitStack() as strangers:
        gang.start().until(gang.training)
        for number in range(60):
            host = gang.addresses[number % 3]
            stranger = strangers.enter_context(socket.create_connection((host, 7168), timeout=5))
            said = [
                garbage.randbytes(2000),
                b"POST /state HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
                b"POST /state HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500,
                b"",  # and stays
            ][number % 5]
            with contextlib.suppress(OSError):
                stranger.sendall(said)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang, attempts=1)
