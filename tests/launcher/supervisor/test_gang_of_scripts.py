"""Gangs on loopback that run a user's script (runtime collective), with `ScriptRun` and without it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.metrics import parse_metrics
from launcher.paths import Position
from tests.launcher.dataprep.conftest import make_pod, tarred
from tests.launcher.supervisor.loopback_gang import HERE, LoopbackGang, write_data

pytestmark = pytest.mark.slow

STEPS = 6


def build_gang(root: Path, script: Path = HERE / "fake_script.py", **changes: Any) -> LoopbackGang:
    """Return a gang of two pods that trains three epochs with a script and may restart three times."""
    processes = changes.pop("processes", 1)
    gang = LoopbackGang(
        root,
        **{
            "trainers": 2,
            "runtime": "collective",
            "config_file": "mine/train.py",
            "processes_per_pod": processes,
            "restarts": 3,
            "rendezvous_seconds": 30,
            "source_digest": "s1",
            **changes,
        },
    )
    (gang.job / "mine" / "train.py").write_text(script.read_text())
    return gang


def read_model(gang: LoopbackGang) -> int:
    """Return the number of steps that the model was trained for."""
    return int(json.loads((gang.output / "model" / "count.json").read_text()))


def test_all_processes_get_their_ranks_and_a_complete_run_continues_only_with_more_passes(
    tmp_path: Path,
) -> None:
    with build_gang(tmp_path, processes=2) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["restarts"], run["fingerprint"]["runtime"]) == (
            "complete",
            [],
            "collective",
        )
        seen = [gang.read_json(f"environment-{rank}.json") for rank in range(4)]
        assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "0", "1"]
        [own] = {one["PADDLE_LAUNCHER_CHECKPOINT_DIR"] for one in seen}
        assert Path(own).is_dir(), "for checkpoints of a script that knows nothing of the launcher"
        assert {one["PADDLE_MASTER"] for one in seen} == {f"{gang.addresses[0]}:7166"}
        assert [Path(one["PADDLE_LAUNCHER_TRAIN_FILE"]).read_text() for one in seen] == [
            f"line of d1 shard {shard}\n" for shard in (0, 0, 1, 1)
        ]
        assert all(Path(one["PADDLE_LAUNCHER_TEST_FILE"]).is_file() for one in seen), (
            "every pod has the test set"
        )
        assert read_model(gang) == 3 * STEPS
        assert run["score"] == {"accuracy": round(1 - 1 / (3 * STEPS), 6)}, (
            "for `runs`, `sweep` and notifications"
        )
        assert [p.name for p in sorted(gang.output.glob("pass-*"))] == [Position(n).folder for n in (1, 2, 3)]
        rows = parse_metrics((gang.output / "metrics.csv").read_text())
        assert [(row.number, row.samples, sorted(row.tests)) for row in rows] == [
            (number, STEPS * 8 * 4, ["accuracy"]) for number in range(3)
        ]
        assert "train()" in gang.read_json("program.json")["files"]["train.py"], "for `compare`"
        for rank in range(2):
            for name in ("train.log", "train-1.log"):
                assert "epoch 2 step 5" in (gang.output / f"node_{rank}" / name).read_text()
        assert gang.pod_log(1).count("epoch 2 step 5\n") == 1, "a pod's log shows its first process only"

        (gang.output / "environment-0.json").unlink()
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        assert "nothing to start" in gang.pod_log(0)
        assert not (gang.output / "environment-0.json").exists()
        assert gang.start(passes=4).wait_for_exit() == [0, 0], gang.pod_log(0)
        assert "starts at (3, 0) with 18" in gang.read_log(1)
        assert read_model(gang) == 4 * STEPS


def test_another_number_of_pods_continues_at_the_same_part_of_the_epoch(tmp_path: Path) -> None:
    ends = {"every": {"0": {"do": "exit", "code": 64, "at": [1, 4]}}}
    with build_gang(tmp_path / "two", fake=ends, checkpoint_every_batches=3) as gang:
        gang.start().wait_for_exit()
        newest = gang.output / Position(1, 6).folder / "done"
        assert newest.exists(), "3 steps of each of 2 processes"
    for trainers, step in ((1, 6), (3, 2)):
        root = tmp_path / str(trainers)
        shutil.copytree(tmp_path / "two" / "shared", root / "shared")
        write_data(root / "shared" / "quick-start", trainers, "d2")  # the data Job makes other shards
        changed = {"data_digest": "d2", "FAKE_STEP_SECONDS": "0.03"}
        with build_gang(root, trainers=trainers, run="quick-start-1b2c3d4e", **changed) as more:
            assert more.start().wait_for_exit() == [0] * trainers, more.pod_log(0)
            assert f"starts at (1, {step})" in more.read_log(0)
            run = more.read_json("run.json")
            assert (run["state"], run["fingerprint"]["trainers"]) == ("complete", trainers)
        assert not (more.job / "runs").exists(), "the output was continued, not moved away"


def test_a_killed_process_restarts_all_of_them_from_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    """The scripts use no data of the launcher, so they need no manifest."""
    # The processes do not wait for each other: enough time is left that none is done before the kill.
    changes = {"processes": 2, "data_digest": "none", "FAKE_STEP_SECONDS": "0.6"}
    with build_gang(tmp_path, **changes) as gang:
        shutil.rmtree(gang.job.parent / ".data")
        gang.start().wait_until(
            lambda: "epoch 2 step 1" in gang.read_log(0) and "epoch 2" in gang.read_log(1)
        )
        path = gang.output / Position(2).folder / "count.json"
        path.write_text("99")  # as long as before: only the sha256 differs
        os.kill(gang.find_pids(1, "train.py")[0], signal.SIGKILL)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"], run["resume"]) == ("complete", 2, {"pass": 1, "batch": 0})
        assert "exited with signal SIGKILL" in run["restarts"][0]["cause"]
        assert "its sha256 differs" in run["restarts"][1]["cause"]
        for rank in range(2):
            assert f"starts at (1, 0) with {STEPS}" in gang.read_log(rank)
            first = gang.output / f"node_{rank}" / "attempt-0" / "train.log"
            assert "starts at (0, 0)" in first.read_text()
        assert read_model(gang) == 3 * STEPS, "no step was counted twice"
        seen = gang.read_json("environment-1.json")
        assert seen["PADDLE_LAUNCHER_TRAIN_FILE"] == seen["PADDLE_LAUNCHER_TEST_FILE"] == ""
        assert gang.running_pids() == []


ALL_SAVE = """
import os, signal, sys
from launcher.program import ScriptRun
run = ScriptRun()
parts = sorted(path.name for path in run.checkpoint.glob("part-*")) if run.checkpoint else []
print("starts at", run.start, "with", parts, flush=True)
for epoch in range(run.start[0], run.epochs):
    for step in range(4):
        run.report(epoch, step + 1, 4, loss=1.0, samples=8)
        run.should_save(all_ranks=True)
    with run.save(epoch + 1, 0, all_ranks=True) as folder:
        (folder / f"part-{run.rank}").write_text(f"{run.rank} {epoch}")
        if (os.environ["PADDLE_LAUNCHER_ATTEMPT"], run.rank, epoch) == ("0", 3, 1):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_while_all_save_leaves_no_checkpoint_of_that_place(tmp_path: Path) -> None:
    script = tmp_path / "all_save.py"
    script.write_text(ALL_SAVE)
    with build_gang(tmp_path / "gang", script, processes=2) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"], run["resume"]) == ("complete", 1, {"pass": 1, "batch": 0})
        assert "starts at (1, 0) with ['part-0', 'part-1', 'part-2', 'part-3']" in gang.read_log(1)
        parts = gang.output / Position(3).folder
        assert [(parts / f"part-{rank}").read_text() for rank in range(4)] == [f"{n} 2" for n in range(4)]
        assert not list(gang.output.glob(".*.tmp")), "the unfinished one was removed"


def test_a_pod_that_receives_sigterm_exits_after_a_requested_checkpoint(tmp_path: Path) -> None:
    # The processes do not wait for each other: enough steps follow that none is done before the checkpoint.
    with build_gang(tmp_path, FAKE_STEP_SECONDS="2.4", restarts=0) as gang:
        started = gang.start()
        started.wait_until(
            lambda: "epoch 1 step 4" in gang.read_log(1)
        )  # a younger checkpoint is good enough
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.processes[1].wait(60) == 143, gang.pod_log(1)
        gang.start(1)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert "SIGTERM: saved a checkpoint at " in run["restarts"][0]["cause"]
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert tuple(run["resume"].values()) > (1, 4)
        assert read_model(gang) == 3 * STEPS


def find_python(version: str) -> str | None:
    """Return an interpreter of this version: from pyenv, or `pythonX.Y` on PATH; None if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(one) for one in versions.glob(f"{version}.*/bin/python")]
    return found[0] if found else shutil.which(f"python{version}")


@pytest.mark.parametrize(
    "version",
    [
        "3.10",
        pytest.param("3.11", marks=pytest.mark.long),
        pytest.param("3.12", marks=pytest.mark.long),
        "3.13",
    ],
)
def test_a_script_trains_with_a_bare_python(tmp_path: Path, version: str) -> None:
    """A user's image may have any of these versions, and no other package that the launcher needs."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    changes = {"trainers": 1, "processes": 2, "passes": 2, "checkpoint_every_batches": 3}
    with build_gang(tmp_path, python=python, **changes) as gang:
        assert gang.start().wait_for_exit() == [0], gang.pod_log(0)
        assert gang.read_json("run.json")["state"] == "complete"
        assert gang.read_json("environment-1.json")["PYTHON"].startswith(f"{version}.")
        assert read_model(gang) == 2 * STEPS
        assert "accuracy" in (gang.output / "metrics.csv").read_text()
        assert (gang.output / Position(2).folder / "done").exists()


# Scripts that know nothing of the launcher.

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


def build_plain(root: Path, code: str, port_offset: int = 0, **changes: Any) -> LoopbackGang:
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
    time.sleep(0.45 if ATTEMPT == 0 else 0.1)
"""


def test_only_a_run_in_which_no_rank_logs_anything_any_more_is_restarted(tmp_path: Path) -> None:
    """Rank 1 never logs anything. Nobody restarts the run while rank 0 does, for longer than the deadline."""
    code = ONLY_RANK_0_LOGS.replace("HANG_AT", "52")  # after 23 s, in which rank 1 has logged nothing
    patient = {"silence": 15.0, "orphan": 15.0}  # on a busy machine a rank must not count as lost
    # A busy machine may not start a process for ten seconds.
    with build_plain(tmp_path, code, progress_deadline_seconds=20, timings=patient) as gang:
        assert gang.start().wait_for_exit(150) == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert "step 51" in (gang.output / "node_0" / "attempt-0" / "train.log").read_text()
        cause = run["restarts"][0]["cause"]
        assert "none of the 2 ranks that train makes progress; rank " in cause
        assert "trainer hangs: its log has not grown for 20 s (training.progressDeadlineSeconds)" in cause
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
    with build_plain(tmp_path, code, restarts=1) as gang:
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
    with build_plain(tmp_path, REACTS.replace("sleep(5)", "sleep(5 + 4 * RANK)"), grace_seconds=60) as gang:
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
    with build_plain(tmp_path, REACTS.replace("sleep(5)", "sleep(500)"), grace_seconds=grace) as gang:
        gang.start().wait_until(lambda: all("trains" in gang.read_log(rank) for rank in (0, 1)))
        for process in gang.processes.values():
            process.send_signal(signal.SIGTERM)
        gang.wait_until(lambda: "received SIGTERM" in gang.pod_log(0))
        for process in gang.processes.values() if is_hurried else ():
            process.send_signal(signal.SIGTERM)
        assert gang.wait_for_exit() == [143, 143], gang.pod_log(0)
        assert not (gang.output / "run.lock").exists()


PADDLE_LINE = "WARNING: init_server() function doesn't work when use non_distributed fleet."


@pytest.mark.parametrize(
    ("settings", "code", "texts"),
    [
        (
            {},
            70,
            (
                "function doesn't work when use non_distributed fleet",
                "Fix: set runtime: ps; or call fleet.init(is_collective=True)",
            ),
        ),
        ({"gpus_per_pod": 1}, 64, ("resources.limits (GPUs) is 1, but must be absent with this image",)),
    ],
    ids=["a script for parameter servers that exits at once", "a Paddle for CPUs in a pod with a GPU"],
)
def test_a_script_that_cannot_train_ends_the_run_with_a_fix(
    tmp_path: Path, settings: dict[str, Any], code: int, texts: tuple[str, ...]
) -> None:
    script = f"print({PADDLE_LINE!r}, file=sys.stderr, flush=True)\n"
    with build_plain(tmp_path, script, restarts=0, **settings) as gang:
        assert gang.start().wait_for_exit() == [code, code], gang.pod_log(0)
        for text in texts:
            assert text in gang.termination_message(0)


@pytest.mark.parametrize(
    ("start", "port_offset", "is_alone", "score"),
    [
        ("", 0, True, '{"a": 1e400, "b": NaN, "c": ["high"], "d": {"a": true}}'),
        ("connections = meet()\n", 7, False, "[0.9]"),
    ],
    ids=["alone", "met on a port of its own"],
)
def test_a_complete_run_whose_processes_never_met_has_a_warning_and_one_without_score_completes(
    tmp_path: Path, start: str, port_offset: int, is_alone: bool, score: str
) -> None:
    code = (
        f"{start}os.makedirs(f'{{OUTPUT}}/model', exist_ok=True)\n"
        f"open(f'{{OUTPUT}}/model/score.json', 'w').write({score!r})\n"
        "time.sleep(2)\n"
    )
    with build_plain(tmp_path, code, port_offset) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        for name in ("run.json", "status.json"):
            found = gang.read_json(name)
            assert found["state"] == "complete"
            warning = found.get("warning", "")
            assert ("each of the 2 processes has most likely trained alone" in warning) == is_alone
        assert ("trained alone" in gang.pod_log(0)) == is_alone
        assert gang.read_json("run.json")["score"] == {}
        assert "score.json" in gang.pod_log(0), "the log says why there is no score"


@pytest.mark.parametrize("cache", ["storage", "podShare"])
def test_a_script_reads_the_files_of_an_archive_that_the_data_job_unpacked(
    tmp_path: Path, cache: str
) -> None:
    (tmp_path / "gang").mkdir()
    pod = make_pod(tmp_path / "gang" / "shared")
    pod.environ |= {"JOB_NAME": "quick-start", "data_digest": "d1"}
    pod.prepare(
        SOURCE=pod.source(tarred({f"{i}/x.bin": bytes([i]) for i in range(4)}), "a.tgz"), FORMAT="files"
    )
    (pod.job / "mine").mkdir()
    code = (
        "import json, pathlib\n"
        "from launcher.program import ScriptRun\n"
        "connections, run, folder = meet(), ScriptRun(), pathlib.Path(sys.argv[1].partition('=')[2])\n"
        "assert run.data == folder and run.train_file is run.test_file is None\n"
        "read = sorted(path.read_bytes()[0] for path in folder.rglob('*.bin'))\n"
        "run.output.joinpath(f'read-{RANK}.json').write_text(json.dumps(read))\n"
    )
    arguments = ["--data={data_dir}"]
    with build_plain(tmp_path, code, data_cache=cache, args=arguments) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        read = [gang.read_json(f"read-{rank}.json") for rank in range(2)]
    assert read == ([[0, 1, 2, 3]] * 2 if cache == "storage" else [[0, 2], [1, 3]])


ELASTIC = {
    "trainers": 3,
    "min_trainers": 1,
    "max_trainers": 3,
    "rank_wait_seconds": 2,
    "grow_after_minutes": 0.0,
}


def run_elastic(root: Path, **changes: Any) -> LoopbackGang:
    """Return a gang of three pods that goes on with fewer; its first attempt takes a second for each step."""
    fast = {"timings": {"silence": 2.0, "orphan": 2.0, "left": 1.0}, "FAKE_STEP_SECONDS": "1", "restarts": 5}
    return build_gang(root, **{"checkpoint_every_batches": 3, "passes": 9, **fast, **ELASTIC, **changes})


def wait_for_world(gang: LoopbackGang, *ranks: int) -> None:
    gang.wait_until(lambda: sorted(gang.read_json("run.json").get("world", [])) == list(ranks), seconds=90)


@pytest.mark.parametrize(
    ("lost", "is_frozen"),
    [*(pytest.param(rank, False, marks=pytest.mark.long) for rank in (0, 2)), (0, True)],
)
def test_an_elastic_run_goes_on_without_a_lost_rank_and_takes_it_in_again(
    tmp_path: Path, lost: int, is_frozen: bool
) -> None:
    with run_elastic(tmp_path, FAKE_LATER_SECONDS="0.6") as gang:
        gang.start()
        gang.wait_until((gang.output / Position(0, 9).folder / "done").exists)
        launcher = gang.processes[lost]
        scripts = gang.find_pids(lost, "train.py")
        launcher.send_signal(signal.SIGSTOP if is_frozen else signal.SIGKILL)
        for pid in scripts if not is_frozen else ():  # as Kubernetes does with the rest of the container
            os.kill(pid, signal.SIGKILL)
        wait_for_world(gang, *(rank for rank in range(3) if rank != lost))
        assert not gang.find_pids(lost, "train.py"), "the guard of the frozen launcher kills its script"
        if is_frozen:
            holder = gang.read_json("run.json")["holder"]
            launcher.send_signal(signal.SIGCONT)
        assert launcher.wait(60) == (71 if is_frozen else -signal.SIGKILL)
        if is_frozen:
            # It sees the new holder, or first that its own lease has expired.
            message = gang.termination_message(lost)
            assert (
                "run.lock was taken by run quick-start" in message
                or "run.lock could not be renewed" in message
            )
            assert gang.read_json("run.json")["holder"] == holder
        gang.start(lost)
        wait_for_world(gang, 0, 1, 2)
        run = gang.read_json("run.json")
        assert "growing from 2 to 3 ranks with rank" in run["restarts"][-1]["cause"]
        assert gang.wait_for_exit(200) == [0, 0, 0], gang.pod_log(1)
        run = gang.read_json("run.json")
        assert (run["state"], len(run["restarts"])) == ("complete", 2)


SAVES_ALONE = """
path = os.environ["PADDLE_LAUNCHER_CHECKPOINT_DIR"] + "/count.bin"
count = int(open(path).read()) if os.path.exists(path) else 0
connections = meet()
print("starts with", count, "of", os.environ["WORLD_SIZE"], flush=True)
while count < (1000 if int(os.environ["WORLD_SIZE"]) < 3 else 40):
    time.sleep(0.5)
    count += 1
    print("step", count, flush=True)
    if RANK == 0 and count % 30 == 0:
        open(path, "w").write(str(count))
"""


def test_a_script_that_knows_nothing_of_the_launcher_is_resized_after_it_has_written_a_checkpoint(
    tmp_path: Path,
) -> None:
    """It never ends with two pods, so that it completes only if the third one is taken in."""
    changes = {"restarts": 5, "trainers": 3, "timings": {"silence": 4.0, "orphan": 4.0}}
    with build_plain(tmp_path, SAVES_ALONE, **{**ELASTIC, **changes}) as gang:
        gang.start(0, 1)
        gang.wait_until(lambda: "step 2" in gang.read_log(0))
        gang.start(2)
        waits = "the first checkpoint, to take in rank 2 (pod "
        gang.wait_until(lambda: waits in (gang.read_json("status.json")["waitingFor"] or ""))
        wait_for_world(gang, 0, 1, 2)
        assert gang.wait_for_exit(120) == [0, 0, 0], gang.pod_log(0)
        [restart] = gang.read_json("run.json")["restarts"]
        assert "growing from 2 to 3 ranks with rank 2" in restart["cause"]
        assert restart["cause"].endswith("the script wrote a checkpoint")
        assert "starts with 30 of 3" in gang.read_log(0)


def test_a_coordinator_without_enough_ranks_offers_the_lease_and_takes_it_again(tmp_path: Path) -> None:
    short = {"silence": 4.0, "orphan": 4.0, "offer": 6.0}
    with run_elastic(tmp_path, min_trainers=2, passes=1, FAKE_STEP_SECONDS="0.1", timings=short) as gang:
        gang.start(0)
        gang.wait_until(lambda: gang.pod_log(0).count("rank 0 coordinates the run from now on") == 1)
        assert "leaves the run to another rank" in gang.pod_log(0)
        assert gang.read_json("run.json")["state"] in ("stopped", "training")
        gang.start(1, 2)
        assert gang.wait_for_exit() == [0, 0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["countedRestarts"]) == ("complete", 0)
        assert all("growing from 2 to 3 ranks" in restart["cause"] for restart in run["restarts"])


def test_an_elastic_run_does_not_wait_for_the_pod_of_a_coordinator_that_is_drained(tmp_path: Path) -> None:
    changes = {"rank_wait_seconds": 600, "grace_seconds": 60, "FAKE_LATER_SECONDS": "0.2"}
    with run_elastic(tmp_path, **changes) as gang:
        gang.start()
        gang.wait_until((gang.output / Position(0, 9).folder / "done").exists)
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.processes[0].wait(60) == 143
        wait_for_world(gang, 1, 2)
        assert gang.wait_for_exit(200) == [143, 0, 0], gang.pod_log(1)
        assert gang.read_json("run.json")["state"] == "complete"
