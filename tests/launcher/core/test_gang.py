"""Whole gangs of real launcher processes on loopback, with a fake `paddle` that can die, hang and stay."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.launcher.core.kit import LoopbackGang


def test_three_ranks_train_all_passes_end_with_0_and_leave_the_seeds_tree(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path) as gang:
        assert gang.start().wait() == [0, 0, 0], gang.pod_log(0)
        assert gang.alive() == []
        for rank in range(3):
            node = gang.output / f"node_{rank}"
            assert "listening" in (node / "server.log").read_text()
            assert "Pass=2" in (node / "train.log").read_text()
            assert f"rank {rank} Pass=2" in gang.pod_log(rank), "the trainer's lines are in the pod's log"
        assert [(gang.output / f"pass-{n:05d}" / "done").exists() for n in range(4)] == [True] * 3 + [False]
        assert not (gang.output / "run.lock").exists()
        status, run = gang.json("status.json"), gang.json("run.json")
        assert (status["state"], status["cause"], status["attempt"]) == ("complete", None, 0)
        assert [rank["pod"] for rank in status["ranks"]] == [f"{gang.run}-{i}-x" for i in range(3)]
        assert (run["runId"], run["state"]) == (gang.run, "complete")
        assert run["finished"] >= run["started"]
        work = gang.folder / "work-1"
        assert (work / "data" / "train.txt").read_text() == "line of d1 shard 1\n"
        assert (work / "data" / "tables" / "items.txt").exists()
        assert (work / "program" / "data" / "train.txt").exists()


def test_one_trainer_is_a_gang_too(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1) as gang:
        assert gang.start().wait() == [0], gang.pod_log(0)


def test_an_output_that_is_a_link_ends_the_run_with_the_fix_and_nothing_is_written_there(
    tmp_path: Path,
) -> None:
    with LoopbackGang(tmp_path, trainers=1) as gang:
        (tmp_path / "elsewhere").mkdir()
        gang.output.symlink_to(tmp_path / "elsewhere")
        assert gang.start().wait() == [75], gang.pod_log(0)
        assert f"{gang.output} is a symbolic link" in gang.termination(0)
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_storage_that_belongs_to_another_user_ends_the_run_with_the_owner_and_the_fix(
    tmp_path: Path,
) -> None:
    """As with storage owned by root. Root without capabilities may not write there, as any other user."""
    with LoopbackGang(tmp_path, trainers=1) as gang:
        (gang.output / "node_0").mkdir(parents=True)
        for folder in (gang.job, gang.output):
            folder.chmod(0o555)
        without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
        assert gang.start(prefix=without).wait() == [75]
        folder = gang.output.stat()
        assert f"belongs to {folder.st_uid}:{folder.st_gid} with mode 0555" in gang.termination(0)
        assert "chown" in gang.termination(0)
        for folder in (gang.job, gang.output):
            folder.chmod(0o755)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_trainer_that_is_killed_ends_all_ranks_with_70_and_its_signal(tmp_path: Path, rank: int) -> None:
    fake = {f"trainer:{rank}": {"do": "signal", "signal": int(signal.SIGKILL), "at": 1}}
    with LoopbackGang(tmp_path, fake=fake, FAKE_PASS_SECONDS="0.5") as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        assert gang.alive() == []
        for other in range(3):
            cause = gang.termination(other)
            assert f"rank {rank} (pod {gang.run}-{rank}-x on node node-{rank})" in cause
            assert "signal SIGKILL (exit code 137)" in cause
            assert "about to signal" in cause, "the last lines of its log are quoted"
            assert len(cause.encode()) <= 4096
        status = gang.json("status.json")
        assert status["state"] == "failed"
        assert "SIGKILL" in status["cause"]
        assert gang.json("run.json")["state"] == "failed"
        assert not (gang.output / "run.lock").exists()


def test_a_run_that_fails_leaves_a_page_that_says_why_and_one_that_completes_later_another(
    tmp_path: Path,
) -> None:
    fake = {"trainer:0": {"do": "exit", "code": 65, "at": "start"}}
    with LoopbackGang(tmp_path, trainers=1, fake=fake) as gang:
        assert gang.start().wait(30) == [65], gang.pod_log(0)
        page = (gang.output / "report.html").read_text()
        assert '<span class="state failed">' in page
        assert "Why it failed" in page
        assert "about to exit" in page, "the cause, with the last lines of its log"
        assert not (gang.output / "run.lock").exists()
    with LoopbackGang(tmp_path, trainers=1) as gang:
        assert gang.start().wait(30) == [0], gang.pod_log(0)
        page = (gang.output / "report.html").read_text()
        assert '<span class="state complete">' in page
        assert "Why it failed" not in page


@pytest.mark.parametrize(
    ("seconds", "said"), [(30.0, "report.html"), (0.0, "it took too long")], ids=["refused", "slow"]
)
def test_a_page_that_cannot_be_made_is_only_logged(tmp_path: Path, seconds: float, said: str) -> None:
    fake = {"trainer:0": {"do": "exit", "code": 65, "at": 1}}
    slow = {"FAKE_PASS_SECONDS": "1"}
    with LoopbackGang(tmp_path, trainers=1, fake=fake, timings={"report": seconds}, **slow) as gang:
        gang.start().until(gang.training)
        (gang.output / "report.html").mkdir()
        assert gang.wait(30) == [65], gang.pod_log(0)
        assert said in gang.pod_log(0).partition("the report of the run was not made: ")[2]
        assert gang.json("run.json")["state"] == "failed"
        assert not (gang.output / "run.lock").exists()


def test_a_pserver_that_dies_ends_all_ranks_with_its_exit_code_in_the_cause(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, timings={"farewell": 60}, FAKE_PASS_SECONDS="30") as gang:
        gang.start().until(gang.training)
        os.kill(gang.child(1, "pserver"), signal.SIGSEGV)
        assert gang.wait(30) == [70, 70, 70]
        assert gang.alive() == []
        assert "rank 1" in gang.termination(2)
        assert "pserver ended with signal SIGSEGV (exit code 139)" in gang.termination(2)


def test_the_launchers_own_final_codes_of_a_child_are_kept(tmp_path: Path) -> None:
    fake = {"trainer:1": {"do": "exit", "code": 65, "at": "start"}}
    with LoopbackGang(tmp_path, fake=fake) as gang:
        assert gang.start().wait(30) == [65, 65, 65]


def test_children_that_ignore_term_and_their_grandchildren_are_killed(tmp_path: Path) -> None:
    fake = {
        "pserver:0": {"grandchild": True, "ignore_term": True},
        "trainer:0": {"grandchild": True, "ignore_term": True},
        "trainer:1": {"do": "exit", "code": 3, "at": 1},
    }
    with LoopbackGang(tmp_path, fake=fake, FAKE_PASS_SECONDS="0.5") as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        assert gang.alive() == []


def test_what_a_finished_trainer_leaves_in_its_group_is_gone_too(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, fake={"trainer:1": {"grandchild": True}}) as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert gang.alive() == []


def test_as_process_1_the_launcher_trains_and_reaps(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root for a pid namespace")
    fake = {"trainer:0": {"grandchild": True}}
    with LoopbackGang(tmp_path, trainers=1, fake=fake, FAKE_PASS_SECONDS="0.6") as gang:
        gang.start(prefix=("unshare", "--pid", "--fork", "--kill-child"))
        assert gang.wait() == [0], gang.pod_log(0)


def test_a_rank_that_never_comes_is_named_with_the_reason(tmp_path: Path) -> None:
    env = {"PADDLE_LAUNCHER_RENDEZVOUS_SECONDS": "1"}
    with LoopbackGang(tmp_path, trainers=4, **env) as gang:
        del gang.hosts[gang.names[3]]
        assert gang.start(0, 1).wait(30) == [70, 70]
        for rank in (0, 1):
            cause = gang.termination(rank)
            assert f"rank 3: {gang.names[3]} does not resolve" in cause
            assert f"rank 2: {gang.names[2]} resolves to {gang.addresses[2]}, but no answer" in cause
            assert "peerPort 7168" in cause
            assert "rank 1" not in cause.split("rendezvousSeconds")[1]
        assert gang.alive() == []


def test_without_rank_0_the_others_end_and_say_why(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, PADDLE_LAUNCHER_RENDEZVOUS_SECONDS="1") as gang:
        assert gang.start(1).wait(30) == [70]
        assert (
            f"no answer from {gang.addresses[0]}:7168 (peerPort 7168): [Errno 111] Connection refused"
            in gang.termination(1)
        )


def test_a_second_start_of_a_complete_run_ends_at_once_with_0_and_starts_nothing(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, PADDLE_LAUNCHER_PASSES="1") as gang:
        assert gang.start().wait() == [0, 0, 0]
        before = (gang.output / "node_1" / "train.log").read_text()
        assert gang.start().wait() == [0, 0, 0]
        assert (gang.output / "node_1" / "train.log").read_text() == before
        assert "the only pass is done already: nothing to start. A new runId resumes" in gang.pod_log(0)
        status = gang.json("status.json")
        assert status["state"] == "complete"
        assert [rank["state"] for rank in status["ranks"]] == ["complete"] * 3, "no rank is absent or staging"


def test_a_second_start_goes_on_behind_the_last_whole_pass_and_keeps_the_earlier_logs(tmp_path: Path) -> None:
    fake = {"trainer:1": {"do": "exit", "code": 3, "at": 2}}
    with LoopbackGang(tmp_path, fake=fake, FAKE_PASS_SECONDS="0.3", PADDLE_LAUNCHER_PASSES="5") as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        newest = max(int(p.parent.name[5:]) for p in gang.output.glob("pass-*/done"))
        (gang.output / f"pass-{newest + 1:05d}").mkdir(exist_ok=True)  # a save that did not get its `done`
        gang.fake = {}
        assert gang.start().wait(30) == [0, 0, 0]
        log = (gang.output / "node_0" / "train.log").read_text()
        assert f"Pass={newest} " not in log + " "
        assert [line for line in log.splitlines() if "Pass=" in line] == [
            f"rank 0 Pass={n}" for n in range(newest + 1, 5)
        ], "the passes that were left, and no more: --num_passes counts from --start_pass"
        assert "Pass=0" in (gang.output / "node_0" / "attempt-0" / "train.log").read_text()
        assert gang.json("status.json")["attempt"] == 1


def test_more_passes_go_on_in_the_same_output_and_other_settings_move_it_aside_and_back(
    tmp_path: Path,
) -> None:
    with LoopbackGang(tmp_path) as gang:
        assert gang.start().wait() == [0, 0, 0]
    first = gang.run
    with LoopbackGang(tmp_path, run="quick-start-more", PADDLE_LAUNCHER_PASSES="4") as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert "Pass=3" in (gang.output / "node_0" / "train.log").read_text()
        assert "Pass=2" not in (gang.output / "node_0" / "train.log").read_text()
    with LoopbackGang(tmp_path, run="quick-start-other", PADDLE_LAUNCHER_BATCH_SIZE="64") as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert (gang.job / "runs" / "quick-start-more" / "pass-00003" / "done").exists()
        assert not (gang.output / "pass-00003").exists()
        assert not (gang.job / "runs" / "quick-start-more" / "run.lock").exists()
    with LoopbackGang(tmp_path, run=first) as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert (gang.output / "pass-00003" / "done").exists(), "a rollback brings its own output back"
        assert "nothing to start" in gang.pod_log(0)
        assert sorted(p.name for p in (gang.job / "runs").iterdir()) == ["quick-start-other"]


def test_two_live_releases_with_one_job_name_are_refused_and_the_first_is_not_disturbed(
    tmp_path: Path,
) -> None:
    with LoopbackGang(tmp_path, FAKE_PASS_SECONDS="4") as first:
        first.start().until(first.training)
        env = {"run": "quick-start-ffff", "PADDLE_LAUNCHER_RELEASE": "second"}
        with LoopbackGang(tmp_path, timings={"lock_wait": 1.5}, **env) as second:
            assert second.start().wait(30) == [70, 70, 70]
            cause = second.termination(0)
            assert "release second in namespace paddle has the same jobName 'quick-start'" in cause
            assert f"run {first.run} (release paddle-training" in cause
        assert first.wait(40) == [0, 0, 0]


def test_a_new_run_takes_over_a_lock_that_nobody_renews(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, FAKE_PASS_SECONDS="30") as first:
        first.start().until(first.training)
    lock = json.loads((first.output / "run.lock").read_text())
    assert lock["runId"] == first.run
    with LoopbackGang(tmp_path, run="quick-start-next") as second:
        assert second.start().wait(40) == [0, 0, 0], second.pod_log(0)
        assert "taking it over" in second.pod_log(0)


def test_a_run_whose_lock_is_taken_stops_writing(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, FAKE_PASS_SECONDS="30") as gang:
        gang.start().until(gang.training)
        thief = {"runId": "thief", "namespace": "n", "release": "r", "pod": "p", "token": "x", "beat": 1}

        def stolen() -> bool:
            """Rank 0's renewal may write over one theft; a real thief looks again too, and gives way."""
            (gang.output / "run.lock.new").write_text(json.dumps(thief))
            (gang.output / "run.lock.new").rename(gang.output / "run.lock")
            return "thief" in gang.pod_log(0)

        gang.until(stolen)
        assert gang.wait(30) == [71, 70, 70], (
            "another pod of rank 0 may get it back; the others waited for it"
        )
        assert "was taken by run thief" in gang.termination(0)
        assert json.loads((gang.output / "run.lock").read_text()) == thief
        assert gang.json("run.json")["state"] == "training", "nothing is written into what is another's now"
        assert gang.json("status.json")["state"] == "training"
        assert gang.alive() == []


def test_pservers_that_end_themselves_are_waited_for(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, fake={"servers_end": True}, servers_end_themselves=True) as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert "still run" not in gang.pod_log(0)


def test_pservers_that_stay_after_all_trainers_are_stopped_and_it_is_said(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, servers_end_themselves=True) as gang:
        assert gang.start().wait() == [0, 0, 0]
        assert "pserver still run" in gang.pod_log(1)
        assert gang.alive() == []


def test_a_pserver_that_leaves_too_early_is_a_failure_even_with_0(tmp_path: Path) -> None:
    fake = {"pserver:1": {"do": "exit", "code": 0, "at": "later", "after": 1.5}}
    with LoopbackGang(tmp_path, fake=fake, servers_end_themselves=True, FAKE_PASS_SECONDS="30") as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        assert "pserver ended with exit code 0, but" in gang.termination(0)


@pytest.mark.parametrize("trainer_waits", [False, True])
def test_a_pserver_that_ends_before_any_training_is_a_failure_at_once(
    tmp_path: Path, trainer_waits: bool
) -> None:
    fake = {f"trainer:{rank}": {"do": "hang", "at": "start"} for rank in range(3)}
    fake["pserver:1"] = {"do": "exit", "code": 0, "at": "start"}
    long = {"ready": 100.0, "server_early": 100.0}
    with LoopbackGang(
        tmp_path, fake=fake, timings=long, servers_end_themselves=True, trainer_waits=trainer_waits
    ) as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        assert "rank 1" in gang.termination(0)
        assert "pserver ended with exit code 0" in gang.termination(0)


def test_a_pserver_that_never_listens_ends_all_with_its_port(tmp_path: Path) -> None:
    fake = {"pserver:2": {"do": "hang", "at": "start"}}
    with LoopbackGang(tmp_path, fake=fake, timings={"ready": 1.0}) as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        assert f"pserver does not accept connections on {gang.addresses[2]}:7164" in gang.termination(0)
        assert gang.alive() == []


@pytest.mark.parametrize("trainer_waits", [False, True])
def test_a_trainer_that_waits_by_itself_is_started_with_the_pservers_and_no_other(
    tmp_path: Path, trainer_waits: bool
) -> None:
    fake = {"pserver:2": {"do": "hang", "at": "start"}}
    with LoopbackGang(tmp_path, fake=fake, timings={"ready": 1.0}, trainer_waits=trainer_waits) as gang:
        assert gang.start().wait(30) == [70, 70, 70]
        assert ("started trainer" in gang.pod_log(2)) == trainer_waits
        assert gang.alive() == []


def test_a_changed_shard_ends_all_ranks_with_65_before_anything_starts(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path) as gang:
        (gang.job / "2" / "data" / "train.txt").write_text("changed\n")
        assert gang.start().wait(30) == [65, 65, 65]
        for rank in range(3):
            assert "train.txt has sha256" in gang.termination(rank)
        assert not (gang.output / "node_0").exists()


def test_a_failed_data_job_ends_all_at_once_with_its_reason(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path) as gang:
        (gang.job / "manifest.json").unlink()
        failed = {"dataDigest": "d1", "reason": "the checksum does not match", "time": 1}
        (gang.job / "data-failed.json").write_text(json.dumps(failed))
        assert gang.start().wait(30) == [65, 65, 65]
        assert "the checksum does not match" in gang.termination(1)


def test_an_unknown_nic_is_refused_with_the_interfaces_there_are(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1, CONF_PADDLE_NIC="eth7") as gang:
        assert gang.start().wait(30) == [64]
        assert "'eth7'" in gang.termination(0)
        assert f"eth0 {gang.addresses[0]}" in gang.termination(0)


def test_with_a_nic_beside_the_pods_name_the_addresses_of_the_nic_are_advertised(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1, CONF_PADDLE_NIC="net1") as gang:
        gang.nics = {"eth0": ["127.0.0.1"], "net1": [gang.addresses[0]]}
        gang.hosts[gang.names[0]] = "127.0.0.1"
        gang.env["FAKE_OWN"] = gang.addresses[0]
        gang.start(FAKE_PASS_SECONDS="1").until(gang.training)
        argv = Path(f"/proc/{gang.child(0, 'train')}/cmdline").read_text().split("\0")
        assert f"--pservers={gang.addresses[0]}" in argv
        assert gang.wait() == [0]


def test_the_gradient_number_must_be_the_trainers(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, CONF_PADDLE_GRADIENT_NUM="2") as gang:
        assert gang.start(0).wait() == [64]
        assert (
            "gradientNum (CONF_PADDLE_GRADIENT_NUM) is 2, but must be the number of trainers, 3"
            in gang.pod_log(0)
        )


def test_ranks_whose_programs_differ_are_refused(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2) as gang:
        assert gang.start(0, CONF_PADDLE_PORTS_NUM="2") and gang.start(1, PADDLE_LAUNCHER_BATCH_SIZE="7")
        assert gang.wait(30) == [70, 70]
        assert "batchSize 256 against 7" in gang.termination(1)
