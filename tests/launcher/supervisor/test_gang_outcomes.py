"""Tests of how runs end, with real launcher processes on loopback and a fake `paddle`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from testkit.written_data import data_folder
from tests.launcher.supervisor.loopback_gang import LoopbackGang

pytestmark = pytest.mark.slow


def test_three_ranks_train_all_passes_exit_with_0_and_write_the_expected_files(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, fake={"trainer:1": {"grandchild": True}}) as gang:
        assert gang.start().wait_for_exit() == [0, 0, 0], gang.pod_log(0)
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


def test_an_output_that_is_a_symbolic_link_fails_the_run_and_is_not_followed(
    tmp_path: Path,
) -> None:
    with LoopbackGang(tmp_path, trainers=1) as gang:
        (tmp_path / "elsewhere").mkdir()
        gang.output.symlink_to(tmp_path / "elsewhere")
        assert gang.start().wait_for_exit() == [75], gang.pod_log(0)
        assert f"{gang.output} is a symbolic link" in gang.termination_message(0)
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_storage_of_another_user_fails_the_run_with_the_owner_and_a_fix(
    tmp_path: Path,
) -> None:
    """Without capabilities root may not write to these folders, as with storage of another user."""
    with LoopbackGang(tmp_path, trainers=1) as gang:
        (gang.output / "node_0").mkdir(parents=True)
        for folder in (gang.job, gang.output):
            folder.chmod(0o555)
        without_capabilities = (
            ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
        )
        assert gang.start(prefix=without_capabilities).wait_for_exit() == [75]
        owner = gang.output.stat()
        assert f"belongs to {owner.st_uid}:{owner.st_gid} with mode 0555" in gang.termination_message(0)
        assert "chown" in gang.termination_message(0)
        for folder in (gang.job, gang.output):
            folder.chmod(0o755)


def test_a_killed_trainer_makes_all_ranks_exit_with_70_and_report_its_signal(tmp_path: Path) -> None:
    rank = 2
    stubborn = {"grandchild": True, "ignore_term": True}
    fake = {f"trainer:{rank}": {"do": "signal", "signal": int(signal.SIGKILL), "at": 1}}
    fake |= {"pserver:0": stubborn, "trainer:0": stubborn}
    with LoopbackGang(tmp_path, fake=fake, FAKE_PASS_SECONDS="0.5") as gang:
        assert gang.start().wait_for_exit(30) == [70, 70, 70]
        assert gang.running_pids() == [], "also processes that ignore SIGTERM, and their descendants"
        for other in range(3):
            cause = gang.termination_message(other)
            assert f"rank {rank} (pod {gang.run}-{rank}-x on node node-{rank})" in cause
            assert "signal SIGKILL (exit code 137)" in cause
            assert "about to signal" in cause, "the cause quotes the last lines of the log"
            assert len(cause.encode()) <= 4096
        status = gang.read_json("status.json")
        assert status["state"] == "failed"
        assert "SIGKILL" in status["cause"]
        assert gang.read_json("run.json")["state"] == "failed"
        assert not (gang.output / "run.lock").exists()


def test_the_report_of_a_failed_run_shows_the_cause_and_is_replaced_by_a_later_run(
    tmp_path: Path,
) -> None:
    fake = {"trainer:0": {"do": "exit", "code": 65, "at": "start"}}
    with LoopbackGang(tmp_path, trainers=1, fake=fake, report=True) as gang:
        assert gang.start().wait_for_exit(30) == [65], gang.pod_log(0)
        page = (gang.output / "report.html").read_text()
        assert '<span class="state failed">' in page
        assert "Cause of the failure" in page
        assert "about to exit" in page, "the cause with the last lines of the log"
        assert not (gang.output / "run.lock").exists()
    with LoopbackGang(tmp_path, trainers=1, report=True) as gang:
        assert gang.start().wait_for_exit(30) == [0], gang.pod_log(0)
        page = (gang.output / "report.html").read_text()
        assert '<span class="state complete">' in page
        assert "Cause of the failure" not in page


def test_a_report_that_cannot_be_written_is_only_logged(tmp_path: Path) -> None:
    fake = {"trainer:0": {"do": "exit", "code": 65, "at": 1}}
    more = {"report": True, "FAKE_PASS_SECONDS": "1"}
    with LoopbackGang(tmp_path, trainers=1, fake=fake, timings={"report": 30.0}, **more) as gang:
        gang.start().wait_until(gang.all_trainers_started)
        (gang.output / "report.html").mkdir()
        assert gang.wait_for_exit(30) == [65], gang.pod_log(0)
        assert "report.html" in gang.pod_log(0).partition("plots and report were not made, because")[2]
        assert gang.read_json("run.json")["state"] == "failed"
        assert not (gang.output / "run.lock").exists()


def test_a_launcher_that_is_process_1_trains_and_reaps_orphans(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root for a pid namespace")
    fake = {"trainer:0": {"grandchild": True}}
    with LoopbackGang(tmp_path, trainers=1, fake=fake, FAKE_PASS_SECONDS="0.6") as gang:
        gang.start(prefix=("unshare", "--pid", "--fork", "--kill-child"))
        assert gang.wait_for_exit() == [0], gang.pod_log(0)


def test_a_rank_that_never_joins_is_reported_with_the_reason(tmp_path: Path) -> None:
    env = {"rendezvous_seconds": 1}
    with LoopbackGang(tmp_path, trainers=4, **env) as gang:
        del gang.hosts[gang.names[3]]
        assert gang.start(0, 1).wait_for_exit(30) == [70, 70]
        for rank in (0, 1):
            cause = gang.termination_message(rank)
            assert f"rank 3: {gang.names[3]} does not resolve" in cause
            assert (
                f"rank 2: {gang.names[2]} resolves to {gang.addresses[2]}, but its launcher has not called rank 0"
                in cause
            )
            assert "peerPort 7168" in cause
            assert "rank 1" not in cause.split("rankWaitHours")[1]
        assert gang.running_pids() == []


def test_without_rank_0_the_other_ranks_exit_and_report_the_reason(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, rendezvous_seconds=1) as gang:
        assert gang.start(1).wait_for_exit(30) == [70]
        reason = f"no rank 0 of this run holds {gang.output / 'run.lock'} (its pod is not scheduled"
        assert reason in gang.termination_message(1)


def test_a_second_start_of_a_complete_run_exits_with_0_and_starts_no_process(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2, passes=1) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
        assert gang.start(1).processes[1].wait(20) == 0, "also without rank 0"
        assert "the run is complete" in gang.pod_log(1)
        before = (gang.output / "node_1" / "train.log").read_text()
        assert gang.start().wait_for_exit() == [0, 0]
        assert (gang.output / "node_1" / "train.log").read_text() == before
        assert "the only pass is done already: nothing to start. A new runId resumes" in gang.pod_log(0)
        status = gang.read_json("status.json")
        assert status["state"] == "complete"
        assert [rank["state"] for rank in status["ranks"]] == ["complete"] * 2, "no rank is absent or staging"


def test_a_second_start_resumes_after_the_last_finished_pass_and_keeps_earlier_logs(tmp_path: Path) -> None:
    fake = {"trainer:1": {"do": "exit", "code": 3, "at": 2}}
    with LoopbackGang(tmp_path, trainers=2, fake=fake, FAKE_PASS_SECONDS="0.3", passes=5) as gang:
        assert gang.start().wait_for_exit(30) == [70, 70]
        newest = max(int(p.parent.name[5:]) for p in gang.output.glob("pass-*/done"))
        (gang.output / f"pass-{newest + 1:05d}").mkdir(exist_ok=True)  # an unfinished checkpoint
        gang.fake = {}
        assert gang.start().wait_for_exit(30) == [0, 0]
        log = (gang.output / "node_0" / "train.log").read_text()
        assert f"Pass={newest} " not in log + " "
        assert [line for line in log.splitlines() if "Pass=" in line] == [
            f"rank 0 Pass={n}" for n in range(newest + 1, 5)
        ], "only the remaining passes: --num_passes counts from --start_pass"
        assert "Pass=0" in (gang.output / "node_0" / "attempt-0" / "train.log").read_text()
        assert gang.read_json("status.json")["attempt"] == 1


def test_more_passes_resume_in_the_same_output_and_other_settings_archive_and_restore_it(
    tmp_path: Path,
) -> None:
    with LoopbackGang(tmp_path, trainers=2) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
    first = gang.run
    with LoopbackGang(tmp_path, trainers=2, run="quick-start-more", passes=4) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
        assert "Pass=3" in (gang.output / "node_0" / "train.log").read_text()
        assert "Pass=2" not in (gang.output / "node_0" / "train.log").read_text()
    with LoopbackGang(tmp_path, trainers=2, run="quick-start-other", batch_size=64) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
        assert (gang.job / "runs" / "quick-start-more" / "pass-00003" / "done").exists()
        assert not (gang.output / "pass-00003").exists()
        assert not (gang.job / "runs" / "quick-start-more" / "run.lock").exists()
    with LoopbackGang(tmp_path, trainers=2, run=first) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
        assert (gang.output / "pass-00003" / "done").exists(), "a rollback restores its own output"
        assert "nothing to start" in gang.pod_log(0)
        assert sorted(p.name for p in (gang.job / "runs").iterdir()) == ["quick-start-other"]


def test_a_second_release_with_the_same_job_name_fails_and_the_first_one_completes(
    tmp_path: Path,
) -> None:
    no_grace = {"grace_seconds": 0}  # a waiter adds it to lock_wait
    with LoopbackGang(tmp_path, trainers=2, FAKE_PASS_SECONDS="4", **no_grace) as first:
        first.start().wait_until(first.all_trainers_started)
        env = {"run": "quick-start-ffff", "release": "second"}
        with LoopbackGang(tmp_path, trainers=2, timings={"lock_wait": 1.5}, **env) as second:
            assert second.start().wait_for_exit(30) == [70, 70]
            cause = second.termination_message(0)
            assert "release second in namespace paddle has the same jobName 'quick-start'" in cause
            assert f"run {first.run} (release paddle-training" in cause
        assert first.wait_for_exit(40) == [0, 0]


def test_a_pserver_that_exits_too_early_is_a_failure_even_with_exit_code_0(tmp_path: Path) -> None:
    fake = {"pserver:1": {"do": "exit", "code": 0, "at": "later", "after": 1.5}}
    with LoopbackGang(
        tmp_path, trainers=2, fake=fake, pservers_exit_themselves=True, FAKE_PASS_SECONDS="30"
    ) as gang:
        assert gang.start().wait_for_exit(30) == [70, 70]
        assert "pserver exited with code 0, but" in gang.termination_message(0)


@pytest.mark.parametrize("trainer_waits", [False, True])
def test_a_pserver_that_exits_before_the_training_is_a_failure_at_once(
    tmp_path: Path, trainer_waits: bool
) -> None:
    fake = {f"trainer:{rank}": {"do": "hang", "at": "start"} for rank in range(2)}
    fake["pserver:1"] = {"do": "exit", "code": 0, "at": "start"}
    long = {"ready": 100.0, "early_pserver_exit": 100.0}
    with LoopbackGang(
        tmp_path,
        trainers=2,
        fake=fake,
        timings=long,
        pservers_exit_themselves=True,
        trainer_waits=trainer_waits,
    ) as gang:
        assert gang.start().wait_for_exit(30) == [70, 70]
        assert "rank 1" in gang.termination_message(0)
        assert "pserver exited with exit code 0" in gang.termination_message(0)


def test_a_changed_shard_makes_all_ranks_exit_with_65_before_any_process_starts(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2) as gang:
        (data_folder(gang.job, "d1").shard(1) / "train.txt").write_text("changed\n")
        assert gang.start().wait_for_exit(30) == [65, 65]
        for rank in range(2):
            assert "train.txt has sha256" in gang.termination_message(rank)
        assert not (gang.output / "node_0").exists()


@pytest.mark.parametrize("servers_end", [True, False])
def test_pservers_that_run_after_all_trainers_exited_are_stopped_and_logged(
    tmp_path: Path, servers_end: bool
) -> None:
    with LoopbackGang(
        tmp_path, trainers=2, fake={"servers_end": servers_end}, pservers_exit_themselves=True
    ) as gang:
        assert gang.start().wait_for_exit() == [0, 0]
        assert ("pserver: still running" in gang.pod_log(1)) != servers_end
        assert gang.running_pids() == []


@pytest.mark.parametrize("trainer_waits", [False, True])
def test_a_pserver_that_never_listens_makes_all_ranks_exit_and_report_its_port(
    tmp_path: Path, trainer_waits: bool
) -> None:
    fake = {"pserver:1": {"do": "hang", "at": "start"}}
    with LoopbackGang(
        tmp_path, trainers=2, fake=fake, timings={"ready": 1.0}, trainer_waits=trainer_waits
    ) as gang:
        assert gang.start().wait_for_exit(30) == [70, 70]
        cause = gang.termination_message(0)
        assert trainer_waits or f"pserver does not accept connections on {gang.addresses[1]}:7164" in cause
        # Only a trainer that waits for the pservers itself is started with them; then it fails first.
        assert ("started trainer" in gang.pod_log(1)) == trainer_waits
        assert gang.running_pids() == []


def test_the_address_of_the_given_nic_is_advertised(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1, CONF_PADDLE_NIC="net1") as gang:
        gang.nics = {"eth0": ["127.0.0.1"], "net1": [gang.addresses[0]]}
        gang.hosts[gang.names[0]] = "127.0.0.1"
        gang.env["FAKE_OWN"] = gang.addresses[0]
        gang.start(FAKE_PASS_SECONDS="1").wait_until(gang.all_trainers_started)
        argv = Path(f"/proc/{gang.find_pid(0, 'train')}/cmdline").read_text().split("\0")
        assert f"--pservers={gang.addresses[0]}" in argv
        assert gang.wait_for_exit() == [0]


def test_ranks_with_different_settings_fail_the_run(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2) as gang:
        assert gang.start(0, CONF_PADDLE_PORTS_NUM="2") and gang.start(1, batch_size=7)
        assert gang.wait_for_exit(30) == [70, 70]
        assert "batchSize 256 against 7" in gang.termination_message(1)
