"""`clean` removes runs, jobs and data files that nothing uses; commands on the storage of an uninstalled release."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import shared_options
from launcher.cli.commands import clean
from launcher.cli.run_files import SavedRun
from launcher.schema import RunFile
from testkit.written_data import data_folder, write_data

from .conftest import DATA_JOB, DONE, K8S_JOB, add_run, make_job, update_json
from .fake_cluster import BASE, FakeCluster

Cli = Callable[..., tuple[int, str, str]]
ANOTHER_VOLUME = "storage: {type: hostPath, hostPath: {path: /another}}"


@pytest.fixture
def cluster(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(job_folder.parent)
    monkeypatch.setattr(shared_options, "connect", lambda *_: made)
    monkeypatch.setattr(clean, "LOCK_SECONDS", 0.3)
    made.add_release()
    made.jobs = [make_job(K8S_JOB, DONE), make_job(DATA_JOB, DONE)]
    for name in ("used.csv", "old.csv", "folder/a.txt"):
        file = job_folder.parent / "sources" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("rows\n")
    for path in (job_folder.parent / "sources").iterdir():
        os.utime(path, (1, 1))
    return made


def keep_sources(job: Path) -> None:
    """Let the uploaded data be from today, so that `clean` keeps it."""
    for path in (job.parent / "sources").iterdir():
        os.utime(path)


def left(job: Path) -> list[str]:
    return sorted(path.name for path in (job.parent / "sources").iterdir())


def test_clean_job_shows_users_and_size_and_removes_the_folder_after_confirmation(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    cluster.add_release("other", jobName="another")
    keep_sources(job_folder)
    code, _, err = cli("clean", "--job", "quick-start")
    assert code == 64
    assert "to remove: quick-start: 1,28" in err
    assert "(release paddle-training in namespace paddle (over))" in err
    assert "was not confirmed. Fix: confirm it with --yes" in err
    assert job_folder.is_dir()
    code, out, _ = cli("clean", "--job", "quick-start", "--yes")
    assert code == 0
    assert out.startswith("removed quick-start: 1,28")
    assert out.endswith(" bytes\n"), "hard-linked files free nothing"
    assert [path.name for path in job_folder.parent.iterdir()] == ["sources"]
    code, _, err = cli("clean", "--job", "quick-start", "--yes")
    assert code == 64
    assert "the storage has no such job. Fix: choose one of: (none)" in err


@pytest.mark.parametrize("suspended", [True, False])
def test_the_folder_of_a_live_run_is_kept_for_another_release_too(
    cli: Cli, cluster: FakeCluster, job_folder: Path, suspended: bool
) -> None:
    cluster.add_release("other", jobName="another")
    cluster.jobs[0] = make_job(K8S_JOB, suspended=suspended)
    code, _, err = cli("clean", "--job", "quick-start", "--release", "other", "--yes")
    assert code == 64
    state = "suspended" if suspended else "running"
    assert f"kept: quick-start: the run of release paddle-training in namespace paddle is {state}" in err
    assert job_folder.is_dir()


@pytest.mark.slow
def test_a_folder_that_a_pod_uses_or_a_run_writes_to_is_kept(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    served = {"containers": [{"args": ["serve", "--model", "/jobs/quick-start/output/model"]}]}
    meta = {"name": "server", "namespace": "another"}
    cluster.pods = [{"metadata": meta, "spec": served, "status": {"phase": "Running"}}]
    assert (
        "these pods use it: server in namespace another" in cli("clean", "--job", "quick-start", "--yes")[2]
    )
    cluster.pods = []
    lock, end = job_folder / "output" / "run.lock", threading.Event()

    def renew() -> None:
        beat = 0
        with lock.open("r+b", buffering=0) as file:  # in place, as a launcher does; an empty file is no beat
            while not end.wait(0.02):
                beat += 1
                os.pwrite(file.fileno(), f"{beat:09d}".encode(), 0)

    lock.write_text("000000000")
    thread = threading.Thread(target=renew)
    thread.start()
    code, _, err = cli("clean", "--job", "quick-start", "--yes")
    end.set()
    thread.join()
    assert code == 64
    assert "a run writes to it: its output/run.lock is renewed" in err
    assert cli("clean", "--job", "quick-start", "--yes")[0] == 0, "a lock that nobody renews keeps nothing"


def test_a_folder_is_kept_if_a_run_starts_while_clean_asks(
    cli: Cli, cluster: FakeCluster, job_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_a_run(question: str) -> bool:
        cluster.jobs[0] = make_job(K8S_JOB)
        return True

    monkeypatch.setattr(clean, "confirm", start_a_run)
    code, _, err = cli("clean", "--job", "quick-start")
    assert code == 64
    assert "because this changed in the meantime: quick-start: the run of release paddle-training" in err
    assert job_folder.is_dir()


def test_a_release_of_another_chart_version_keeps_everything_on_its_volume(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    cluster.add_release("old", claim="of-old")
    cluster.config_maps["old"]["data"]["run.json"] = "{"
    why = "release old in namespace paddle may use it: another version of the chart wrote its ConfigMap"
    code, _, err = cli("clean", "--job", "quick-start", "--yes")
    assert code == 64
    assert f"kept: quick-start: {why}" in err
    code, _, err = cli("clean", "--yes")
    assert (code, err.count(f"kept: sources/old.csv: {why}"), err.count("nothing to remove")) == (0, 1, 1)
    assert left(job_folder) == ["folder", "old.csv", "used.csv"]
    cluster.set_storage("old", ANOTHER_VOLUME)
    assert cli("clean", "--yes")[0] == 0
    assert left(job_folder) == []


@pytest.mark.parametrize("gone", [True, False])
def test_without_a_known_volume_releases_of_other_namespaces_count_as_users(
    cli: Cli, cluster: FakeCluster, job_folder: Path, gone: bool
) -> None:
    source = {"source": "file://used.csv"}
    cluster.add_release("other", "another", "{}" if not gone else BASE, data=source)
    cluster.jobs[0] = make_job(K8S_JOB, namespace="another")
    if gone:  # the session's release is not there
        del cluster.config_maps["paddle-training"]
        cluster.add_release("near", jobName="another", claim="second")
    claim = ["--claim", "paddle-training", "--job", "quick-start"] if gone else ["--job", "quick-start"]
    code, _, err = cli("clean", "--yes", *claim)
    assert code == 64
    assert "kept: quick-start: the run of release other in namespace another" in err
    assert "kept: sources/used.csv: release other in namespace another trains on it" in err
    if not gone:
        cluster.set_storage("other", ANOTHER_VOLUME)
        assert cli("clean", "--job", "quick-start", "--yes")[0] == 0, "it is on another volume"


def test_data_that_is_being_pushed_or_was_just_pushed_is_kept(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    folder = job_folder.parent / "sources"
    for name in (".new.csv.0123.tmp", ".old.csv.4567.tmp"):
        (folder / name).mkdir()
    os.utime(folder / ".old.csv.4567.tmp", (1, 1))
    (folder / "new.csv").write_text("rows\n")
    code, out, err = cli("clean", "--yes")
    removed = "removed sources/.old.csv.4567.tmp, sources/folder, sources/old.csv, sources/used.csv: "
    assert (code, out.startswith(removed)) == (0, True), (out, err)
    assert "kept: sources/new.csv: it is younger than 24 h" in err
    assert left(job_folder) == [".new.csv.0123.tmp", "new.csv"]
    (job_folder.parent / ".shop.0123.old").mkdir()
    assert "no such job. Fix: choose one of: quick-start" in cli("clean", "--job", "shop", "--yes")[2]


@pytest.mark.parametrize(
    "used",
    ["file://used.csv", "file://./used.csv", "file://folder/../used.csv", "file:///jobs/sources/used.csv"],
)
def test_data_that_a_release_refers_to_is_kept_and_other_data_removed(
    cli: Cli, cluster: FakeCluster, job_folder: Path, used: str
) -> None:
    cluster.add_release(
        "other", jobName="another", data={"source": "file://folder/a.txt", "testSource": used}
    )
    code, _, err = cli("clean")
    assert code == 64
    assert "kept: sources/used.csv: release other in namespace paddle trains on it" in err
    assert "to remove: sources/old.csv: 5 bytes" in err
    assert "was not confirmed" in err
    assert cli("clean", "--yes")[0] == 0
    assert left(job_folder) == ["folder", "used.csv"]


def test_data_is_kept_if_it_is_unknown_who_trains_on_it(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    """By --path, for a user who sees one namespace, and while a release trains on a link."""
    code, _, err = cli("clean", "--path", job_folder, "--yes")
    assert code == 0
    assert "kept: sources/old.csv: only the cluster knows which releases train on it" in err
    cluster.has_hidden_namespaces = True
    assert "namespace that this user may not list may train on it" in cli("clean", "--yes")[2]
    cluster.has_hidden_namespaces = False
    (job_folder.parent / "sources" / "link.csv").symlink_to("old.csv")
    cluster.add_release("other", jobName="another", data={"source": "file://link.csv"})
    assert "kept: sources/old.csv: a release trains on a link in this folder" in cli("clean", "--yes")[2]
    assert left(job_folder) == ["folder", "link.csv", "old.csv", "used.csv"]


def test_a_storage_without_data_files_has_nothing_to_remove(cli: Cli, job_folder: Path) -> None:
    code, _, err = cli("clean", "--path", job_folder)
    assert (code, err) == (0, "nothing to remove\n")


def test_the_best_run_is_kept_although_it_is_old(cli: Cli, job_folder: Path) -> None:
    add_run(job_folder, "a", 1, 0.13)
    add_run(job_folder, "b", 3, 0.12)
    add_run(job_folder, "c", 9, 0.15)
    code, _, err = cli("clean", "--path", job_folder, "--keep", "0", "--keep-best", "--yes")
    assert code == 0
    assert [path.name for path in (job_folder / "runs").iterdir()] == ["b"]
    assert "kept: quick-start/runs/b: it has the best score (--keep-best)" in err


@pytest.mark.slow
def test_results_and_runs_find_the_storage_of_an_uninstalled_release(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    update_json(job_folder / "output" / "run.json", release="gone")
    for given in ((), ("--claim", "paddle-training"), ("--job", "quick-start")):
        code, out, err = cli("results", "--release", "gone", *given)
        assert (code, "score on the test set: error 0.2012" in out) == (0, True), err
        assert cli("runs", "--release", "gone", *given)[0] == 0
    cluster.add_release("other", claim="second")
    code, _, err = cli("results", "--release", "gone")
    assert code == 64
    assert "paddle-training (of release paddle-training), second (of release other)" in err
    assert "Fix: choose the claim with --claim NAME; or install a release with the same storage, or" in err
    assert "has no claim third" in cli("runs", "--release", "gone", "--claim", "third")[2]
    assert cli("results", "--release", "gone", "--claim", "second")[0] == 0
    code, _, err = cli("results", "--release", "never", "--claim", "second")
    assert code == 3
    assert "Jobs there: quick-start (of release gone). Fix: choose one with --job NAME; or install" in err


def test_without_any_release_the_error_requests_an_image(cli: Cli, cluster: FakeCluster) -> None:
    cluster.config_maps = {}
    code, _, err = cli("runs", "--job", "quick-start")
    assert code == 64
    assert "Fix: give the launcher's image with --image IMAGE" in err
    assert cli("runs", "--job", "quick-start", "--image", "x")[0] in (0, 3)
    assert next(iter(cluster.created.values()))["spec"]["containers"][0]["image"] == "x"
    cluster.claims = {}
    code, _, err = cli("runs", "--job", "quick-start", "--image", "x")
    assert code == 64
    assert "Claims there: none" in err


def names(job: Path) -> list[str]:
    return sorted(path.name for path in (job / "runs").iterdir())


def test_clean_keeps_the_newest_and_used_runs_and_prints_the_removed_bytes(cli: Cli, job: Path) -> None:
    (job / "runs" / "quick-start-cccc" / "run.lock").write_text("{}")
    code, out, err = cli("clean", "--path", job, "--keep", "1", "--yes")
    assert code == 0
    assert names(job) == ["quick-start-aaaa", "quick-start-cccc"]
    assert out.startswith("removed quick-start/runs/quick-start-bbbb: 1,")
    assert "kept: quick-start/runs/quick-start-cccc: a run writes to it" in err
    assert (job / "output" / "model").is_dir()


@pytest.mark.parametrize(
    "record",
    [
        RunFile(fingerprint={"initModelPath": "quick-start/runs/a"}),
        RunFile(fingerprint={"initModelPath": "previous"}, init_model="quick-start/runs/a"),
    ],
)
def test_the_run_of_the_initial_model_and_one_that_a_pod_uses_are_kept(record: RunFile) -> None:
    def past(folder: str) -> SavedRun:
        return SavedRun(folder, RunFile(finished=1.0), [])

    pasts = [
        SavedRun("output", record, []),
        past("runs/a"),
        past("runs/b"),
        past("runs/c"),
    ]
    assert [(run.name, why) for run, why in clean.explain_kept_runs(pasts, 0, {"b"})] == [
        ("a", "the current run started from its model (training.initModelPath)"),
        ("b", "a pod uses it"),
        ("c", ""),
    ]


@pytest.mark.parametrize(("phase", "used"), [("Running", {"b"}), ("Pending", {"b"}), ("Succeeded", set())])
def test_a_run_is_used_if_a_live_pod_has_its_folder_in_its_spec(
    cli: Cli, cluster: FakeCluster, job_folder: Path, phase: str, used: set[str]
) -> None:
    for name in ("b", "bb"):
        add_run(job_folder, name, 1, 0.1)
    pod = {
        "metadata": {"name": "server", "namespace": "another"},
        "spec": {"containers": [{"args": ["serve", "--model", "/home/jobpath/quick-start/runs/b/model"]}]},
        "status": {"phase": phase},
    }
    cluster.pods = [pod]
    assert cli("clean", "--keep", "0", "--yes")[0] == 0
    assert {path.name for path in (job_folder / "runs").iterdir()} == used


def test_prepared_data_that_no_job_and_no_release_refers_to_is_removed(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    keep_sources(job_folder)
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
    code, _, err = cli("clean", "--job", "another", "--yes")
    assert code == 0, err
    removed |= {"of-another.json", data_folder(other, "of-another").root.name}
    assert before - {path.name for path in data.iterdir()} == removed
