"""`clean`, `stop` and `resume` on a release in a cluster in memory, whose storage is a folder on this machine."""

import contextlib
import os
import shutil
import threading
from pathlib import Path

import pytest
import yaml

from launcher.cli import object_states, shared_options
from launcher.cli.commands import clean
from launcher.paths import OutputPaths, Position
from launcher.reporting.saved_runs import SavedRun
from launcher.schema import RunFile
from testkit.waiting import until
from testkit.written_data import data_folder, write_data
from testkit.written_files import write_files

from .conftest import (
    DATA_JOB,
    DONE,
    JOB_STATES,
    K8S_JOB,
    add_run,
    make_job,
    make_pod,
    names,
    run_step,
    write_job_files,
    write_status,
)
from .fake_cluster import BASE, FakeCluster

CASES = yaml.safe_load(Path(__file__).with_name("cluster_commands.yaml").read_text())
JOB = ("--job", "quick-start")


class RunningCluster(FakeCluster):
    """One release whose pods run while its training Job runs."""

    def list_in_all_namespaces(self, kind, labels=None):
        found = super().list_in_all_namespaces(kind, labels)
        if kind != "pod" or object_states.job_state(self.jobs[0])[0] != "running":
            return found
        running = [{"name": "train", "state": {"running": {}}}]
        return [*found, *(make_pod(f"p{rank}", rank=rank, containerStatuses=running) for rank in (0, 1))]


@pytest.fixture
def cluster(job_folder, monkeypatch):
    """Return a cluster with a release whose run is complete, and with uploaded data that is a day old."""
    made = RunningCluster(job_folder.parent)
    monkeypatch.setattr(shared_options, "connect", lambda *_: made)
    monkeypatch.setattr(clean, "LOCK_SECONDS", 0.3)
    made.add_release()
    made.jobs = [make_job(K8S_JOB, DONE), make_job(DATA_JOB, DONE)]
    sources = job_folder.parent / "sources"
    write_files(sources, dict.fromkeys(("used.csv", "old.csv", "folder/a.txt"), "rows\n"))
    for path in sources.iterdir():
        os.utime(path, (1, 1))
    return made


@pytest.fixture
def training(cluster, job_folder):
    """Return the cluster after its training Job has started and trains."""
    cluster.jobs[0] = make_job(K8S_JOB)
    write_status(job_folder)
    return cluster


def change(cluster, job, step):
    """Change the cluster and the job's files as a step of cluster_commands.yaml says."""
    namespace = step.get("at", "paddle")
    base = yaml.safe_dump(step["base"]) if "base" in step else BASE
    for name, run_json in step.get("release", {}).items():
        cluster.add_release(name, namespace, base, **run_json)
    for place, key, name in ((0, "training", K8S_JOB), (1, "data", DATA_JOB)):
        if key in step:
            cluster.jobs[place] = JOB_STATES[step[key]](name)
            cluster.jobs[place]["metadata"]["namespace"] = namespace
    if "broken" in step:
        cluster.config_maps[step["broken"]]["data"]["run.json"] = "{"
    if "storage" in step:
        release, storage = step["storage"]
        cluster.set_storage(release, yaml.safe_dump({"storage": storage}))
    cluster.config_maps.pop(step.get("gone"), None)
    cluster.has_hidden_namespaces = step.get("hidden", False)
    write_job_files(job, step.get("write", {}))
    for name in step.get("old", ()):
        os.utime(job / name, (1, 1))
    for name, target in step.get("link", {}).items():
        (job / name).symlink_to(target)


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES)
def test_commands_on_a_release(cli, cluster, job_folder, steps):
    for step in steps:
        change(cluster, job_folder, step)
        if "run" in step:
            run_step(cli, job_folder, step)
        assert cluster.suspended == [tuple(one) for one in step.get("suspended", cluster.suspended)], step


@pytest.mark.slow
def test_a_folder_whose_lock_a_run_renews_is_kept(cli, cluster, job_folder):
    lock, end = job_folder / "output" / "run.lock", threading.Event()

    def renew():
        beat = 0
        with lock.open("r+b", buffering=0) as file:  # in place, as a launcher does; an empty file is no beat
            while not end.wait(0.02):
                beat += 1
                os.pwrite(file.fileno(), f"{beat:09d}".encode(), 0)

    lock.write_text("000000000")
    thread = threading.Thread(target=renew)
    thread.start()
    code, _, err = cli("clean", "--yes", *JOB)
    end.set()
    thread.join()
    assert code == 64
    assert "a run writes to it: its output/run.lock is renewed" in err
    assert cli("clean", "--yes", *JOB)[0] == 0, "a lock that nobody renews keeps nothing"


def test_a_folder_is_kept_if_a_run_starts_while_clean_asks(cli, cluster, job_folder, monkeypatch):
    def start_a_run(question):
        cluster.jobs[0] = make_job(K8S_JOB)
        return True

    monkeypatch.setattr(clean, "confirm", start_a_run)
    cli.fail(
        64,
        "because this changed in the meantime: quick-start: the run of release paddle-training",
        "clean",
        *JOB,
    )
    assert job_folder.is_dir()


def test_without_any_release_the_error_requests_an_image(cli, cluster):
    cluster.config_maps = {}
    cli.fail(64, "Fix: give the launcher's image with --image IMAGE", "runs", *JOB)
    assert cli("runs", *JOB, "--image", "x")[0] in (0, 3)
    assert next(iter(cluster.created.values()))["spec"]["containers"][0]["image"] == "x"
    cluster.claims = {}
    cli.fail(64, "Claims there: none", "runs", *JOB, "--image", "x")


@pytest.mark.parametrize(
    "record",
    [
        RunFile(fingerprint={"initModelPath": "quick-start/runs/a"}),
        RunFile(fingerprint={"initModelPath": "previous"}, init_model="quick-start/runs/a"),
    ],
)
def test_the_run_of_the_initial_model_and_one_that_a_pod_uses_are_kept(record):
    earlier = [SavedRun(f"runs/{name}", RunFile(finished=1.0), []) for name in "abc"]
    runs = [SavedRun("output", record, []), *earlier]
    assert [(run.name, why) for run, why in clean.explain_kept_runs(runs, 0, {"b"})] == [
        ("a", "the current run started from its model (training.initModelPath)"),
        ("b", "a pod uses it"),
        ("c", ""),
    ]


@pytest.mark.parametrize(("phase", "used"), [("Running", ["b"]), ("Pending", ["b"]), ("Succeeded", [])])
def test_a_run_or_job_is_used_if_a_live_pod_has_its_folder_in_its_spec(cli, cluster, job_folder, phase, used):
    for name in ("b", "bb"):
        add_run(job_folder, name, 1, 0.1)
    pod = {
        "metadata": {"name": "server", "namespace": "another"},
        "spec": {"containers": [{"args": ["serve", "--model", "/home/jobpath/quick-start/runs/b/model"]}]},
        "status": {"phase": phase},
    }
    cluster.pods = [pod]
    assert cli("clean", "--yes", "--keep", "0")[0] == 0
    assert names(job_folder / "runs") == used
    code, _, err = cli("clean", "--yes", *JOB)
    assert (code == 64, "these pods use it: server in namespace another" in err) == (bool(used), bool(used))


def test_prepared_data_that_no_job_and_no_release_refers_to_is_removed(cli, cluster, job_folder):
    other = job_folder.parent / "another"
    write_data(other, [["a"]], digest="of-another")
    for digest in ("of-a-removed-job", "young", "d" * 64):  # the last one is that of the release
        write_data(job_folder.parent / "gone", [["a"]], digest=digest)
    shutil.rmtree(job_folder.parent / "gone")
    data = job_folder.parent / ".data"
    (data / ".00.10001.tmp").mkdir()
    for path in data.iterdir():
        if path.name not in ("young.json", data_folder(other, "young").root.name):
            os.utime(path, (1, 1))
    before = {path.name for path in data.iterdir()}
    code, _, err = cli("clean", "--yes")
    removed = {".00.10001.tmp", "of-a-removed-job.json", data_folder(other, "of-a-removed-job").root.name}
    assert code == 0, err
    assert before - {path.name for path in data.iterdir()} == removed
    assert "kept: .data/young.json: it is younger than 24 h" in err
    cli.succeed("clean", "--yes", "--job", "another")
    removed |= {"of-another.json", data_folder(other, "of-another").root.name}
    assert before - {path.name for path in data.iterdir()} == removed


@contextlib.contextmanager
def when_requested(job_folder, work):
    """In the block, call `work` in a thread once a checkpoint is requested, with the output's paths."""
    output = OutputPaths(job_folder / "output")

    def run():
        until(output.checkpoint_request.exists, "the request")
        work(output)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def test_stop_saves_a_checkpoint_suspends_the_job_and_suggests_resume(cli, training, job_folder):
    def save(output):
        at = output.checkpoint(Position(6, 41))
        at.mkdir()
        (at / "done").touch()
        output.checkpoint_request.unlink()

    with when_requested(job_folder, save):
        code, out, err = cli("stop")
    assert (code, training.suspended) == (0, [(K8S_JOB, True)]), err
    assert "checkpoint: pass 7, batch 41 (output/pass-00006-batch-0000041)" in out
    assert "python -m launcher resume" in out


def test_a_withdrawn_request_is_repeated_and_old_checkpoints_are_not_reported(cli, training, job_folder):
    output = OutputPaths(job_folder / "output")
    for name in ("pass-00004", "pass-99999"):  # an earlier one, and one that was copied by hand
        (output.root / name).mkdir(exist_ok=True)
        (output.root / name / "done").touch()

    def withdraw_then_save(output):
        output.checkpoint_request.unlink()
        until(output.checkpoint_request.exists, "the request to be sent again")
        (output.checkpoint(Position(5)) / "done").unlink()
        (output.checkpoint(Position(5)) / "done").write_text("again")  # the same position is saved again
        output.checkpoint_request.unlink()

    with when_requested(job_folder, withdraw_then_save):
        code, out, err = cli("stop")
    assert code == 0, err
    assert "checkpoint: the end of pass 5 (output/pass-00004)" in out


def test_a_stop_that_times_out_keeps_the_request_of_another_one(cli, training, job_folder):
    request = OutputPaths(job_folder / "output").checkpoint_request
    with when_requested(job_folder, lambda _: request.write_text("of another")):
        assert cli("stop", "--timeout", "1")[0] == 64
    assert request.read_text() == "of another"


def test_a_run_that_completes_during_the_request_is_not_stopped(cli, training, job_folder):
    with when_requested(job_folder, lambda _: write_status(job_folder, state="complete")):
        code, _, err = cli("stop")
    assert (code, training.suspended) == (64, [])
    assert "the run is complete now" in err
