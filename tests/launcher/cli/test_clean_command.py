"""`clean` removes runs, jobs and data files that nothing uses; commands on the storage of an uninstalled release."""

import os
import shutil
import threading

import pytest

from launcher.cli import shared_options
from launcher.cli.commands import clean
from launcher.cli.run_files import SavedRun
from launcher.schema import RunFile
from testkit.written_data import data_folder, write_data

from .conftest import DATA_JOB, DONE, K8S_JOB, add_run, make_job, names
from .fake_cluster import BASE, FakeCluster

ANOTHER_VOLUME = "storage: {type: hostPath, hostPath: {path: /another}}"
JOB = ("--job", "quick-start")


@pytest.fixture
def cluster(job_folder, monkeypatch):
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


@pytest.fixture
def clean_all(cli):
    """Return a function that runs `clean --yes` with more options."""
    return lambda *options: cli("clean", "--yes", *options)


def keep_sources(job):
    """Let the uploaded data be from today, so that `clean` keeps it."""
    for path in (job.parent / "sources").iterdir():
        os.utime(path)


def left(job):
    return names(job.parent / "sources")


def test_clean_job_shows_users_and_size_and_removes_the_folder_after_confirmation(cli, cluster, job_folder):
    cluster.add_release("other", jobName="another")
    keep_sources(job_folder)
    code, _, err = cli("clean", *JOB)
    assert code == 64
    assert "to remove: quick-start: 1,28" in err
    assert "(release paddle-training in namespace paddle (over))" in err
    assert "was not confirmed. Fix: confirm it with --yes" in err
    assert job_folder.is_dir()
    code, out, _ = cli("clean", *JOB, "--yes")
    assert code == 0
    assert out.startswith("removed quick-start: 1,28")
    assert out.endswith(" bytes\n"), "hard-linked files free nothing"
    assert names(job_folder.parent) == ["sources"]
    code, _, err = cli("clean", *JOB, "--yes")
    assert code == 64
    assert "the storage has no such job. Fix: choose one of: (none)" in err


@pytest.mark.parametrize("suspended", [True, False])
def test_the_folder_of_a_live_run_is_kept_for_another_release_too(clean_all, cluster, job_folder, suspended):
    cluster.add_release("other", jobName="another")
    cluster.jobs[0] = make_job(K8S_JOB, suspended=suspended)
    code, _, err = clean_all(*JOB, "--release", "other")
    assert code == 64
    state = "suspended" if suspended else "running"
    assert f"kept: quick-start: the run of release paddle-training in namespace paddle is {state}" in err
    assert job_folder.is_dir()


@pytest.mark.slow
def test_a_folder_whose_lock_a_run_renews_is_kept(clean_all, cluster, job_folder):
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
    code, _, err = clean_all(*JOB)
    end.set()
    thread.join()
    assert code == 64
    assert "a run writes to it: its output/run.lock is renewed" in err
    assert clean_all(*JOB)[0] == 0, "a lock that nobody renews keeps nothing"


def test_a_folder_is_kept_if_a_run_starts_while_clean_asks(cli, cluster, job_folder, monkeypatch):
    def start_a_run(question):
        cluster.jobs[0] = make_job(K8S_JOB)
        return True

    monkeypatch.setattr(clean, "confirm", start_a_run)
    code, _, err = cli("clean", *JOB)
    assert code == 64
    assert "because this changed in the meantime: quick-start: the run of release paddle-training" in err
    assert job_folder.is_dir()


def test_a_release_of_another_chart_version_keeps_everything_on_its_volume(clean_all, cluster, job_folder):
    cluster.add_release("old", claim="of-old")
    cluster.config_maps["old"]["data"]["run.json"] = "{"
    why = "release old in namespace paddle may use it: another version of the chart wrote its ConfigMap"
    code, _, err = clean_all(*JOB)
    assert (code, f"kept: quick-start: {why}" in err) == (64, True)
    code, _, err = clean_all()
    assert (code, err.count(f"kept: sources/old.csv: {why}"), err.count("nothing to remove")) == (0, 1, 1)
    assert left(job_folder) == ["folder", "old.csv", "used.csv"]
    cluster.set_storage("old", ANOTHER_VOLUME)
    assert clean_all()[0] == 0
    assert left(job_folder) == []


@pytest.mark.parametrize("gone", [True, False])
def test_without_a_known_volume_releases_of_other_namespaces_count_as_users(clean_all, cluster, gone):
    source = {"source": "file://used.csv"}
    cluster.add_release("other", "another", "{}" if not gone else BASE, data=source)
    cluster.jobs[0] = make_job(K8S_JOB, namespace="another")
    if gone:  # the session's release is not there
        del cluster.config_maps["paddle-training"]
        cluster.add_release("near", jobName="another", claim="second")
    code, _, err = clean_all(*JOB, *(("--claim", "paddle-training") if gone else ()))
    assert code == 64
    assert "kept: quick-start: the run of release other in namespace another" in err
    assert "kept: sources/used.csv: release other in namespace another trains on it" in err
    if not gone:
        cluster.set_storage("other", ANOTHER_VOLUME)
        assert clean_all(*JOB)[0] == 0, "it is on another volume"


def test_data_that_is_being_pushed_or_was_just_pushed_is_kept(clean_all, cluster, job_folder):
    folder = job_folder.parent / "sources"
    for name in (".new.csv.0123.tmp", ".old.csv.4567.tmp"):
        (folder / name).mkdir()
    os.utime(folder / ".old.csv.4567.tmp", (1, 1))
    (folder / "new.csv").write_text("rows\n")
    code, out, err = clean_all()
    removed = "removed sources/.old.csv.4567.tmp, sources/folder, sources/old.csv, sources/used.csv: "
    assert (code, out.startswith(removed)) == (0, True), (out, err)
    assert "kept: sources/new.csv: it is younger than 24 h" in err
    assert left(job_folder) == [".new.csv.0123.tmp", "new.csv"]
    (job_folder.parent / ".shop.0123.old").mkdir()
    assert "no such job. Fix: choose one of: quick-start" in clean_all("--job", "shop")[2]


@pytest.mark.parametrize(
    "used",
    ["file://used.csv", "file://./used.csv", "file://folder/../used.csv", "file:///jobs/sources/used.csv"],
)
def test_data_that_a_release_refers_to_is_kept_and_other_data_removed(clean_all, cluster, job_folder, used):
    cluster.add_release(
        "other", jobName="another", data={"source": "file://folder/a.txt", "testSource": used}
    )
    code, _, err = clean_all()
    assert "kept: sources/used.csv: release other in namespace paddle trains on it" in err
    assert "to remove: sources/old.csv: 5 bytes" in err
    assert (code, left(job_folder)) == (0, ["folder", "used.csv"])


def test_data_is_kept_if_it_is_unknown_who_trains_on_it(clean_all, cluster, job_folder):
    """By --path, for a user who sees one namespace, and while a release trains on a link."""
    code, _, err = clean_all("--path", job_folder)
    assert code == 0
    assert "kept: sources/old.csv: only the cluster knows which releases train on it" in err
    cluster.has_hidden_namespaces = True
    assert "namespace that this user may not list may train on it" in clean_all()[2]
    cluster.has_hidden_namespaces = False
    (job_folder.parent / "sources" / "link.csv").symlink_to("old.csv")
    cluster.add_release("other", jobName="another", data={"source": "file://link.csv"})
    assert "kept: sources/old.csv: a release trains on a link in this folder" in clean_all()[2]
    assert left(job_folder) == ["folder", "link.csv", "old.csv", "used.csv"]


def test_the_storage_of_an_uninstalled_release_is_found_and_its_job_is_given_by_name(cli, cluster):
    gone = ("results", "--release", "gone")
    code, out, err = cli(*gone, *JOB)
    assert (code, "score on the test set: error 0.2012" in out) == (0, True), err
    code, _, err = cli(*gone)
    assert code == 64
    assert "Jobs on the storage of claim paddle-training: quick-start. Fix: choose one with --job NAME" in err
    cluster.add_release("other", claim="second")
    code, _, err = cli(*gone, *JOB)
    assert code == 64
    assert "paddle-training (of release paddle-training), second (of release other)" in err
    assert "Fix: choose the claim with --claim NAME; or install a release with the same storage, or" in err
    assert "has no claim third" in cli(*gone, "--claim", "third")[2]
    assert cli(*gone, *JOB, "--claim", "second")[0] == 0


def test_without_any_release_the_error_requests_an_image(cli, cluster):
    cluster.config_maps = {}
    code, _, err = cli("runs", *JOB)
    assert (code, "Fix: give the launcher's image with --image IMAGE" in err) == (64, True)
    assert cli("runs", *JOB, "--image", "x")[0] in (0, 3)
    assert next(iter(cluster.created.values()))["spec"]["containers"][0]["image"] == "x"
    cluster.claims = {}
    code, _, err = cli("runs", *JOB, "--image", "x")
    assert (code, "Claims there: none" in err) == (64, True)


@pytest.mark.parametrize(
    ("options", "removed", "kept", "why"),
    [
        (("--keep", "1"), "bbbb", "aaaa", "it is one of the newest 1 (--keep)"),
        (("--keep", "0", "--keep-best"), "aaaa", "bbbb", "it has the best score (--keep-best)"),
    ],
)
def test_clean_keeps_the_newest_the_best_and_used_runs_and_prints_the_removed_bytes(
    clean_all, job, *, options, removed, kept, why
):
    (job / "runs" / "quick-start-cccc" / "run.lock").write_text("{}")
    code, out, err = clean_all("--path", job, *options)
    assert code == 0
    assert names(job / "runs") == [f"quick-start-{kept}", "quick-start-cccc"]
    assert out.startswith(f"removed quick-start/runs/quick-start-{removed}: 1,")
    assert f"kept: quick-start/runs/quick-start-{kept}: {why}" in err
    assert "kept: quick-start/runs/quick-start-cccc: a run writes to it" in err
    assert (job / "output" / "model").is_dir()


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
def test_a_run_or_job_is_used_if_a_live_pod_has_its_folder_in_its_spec(
    clean_all, cluster, job_folder, phase, used
):
    for name in ("b", "bb"):
        add_run(job_folder, name, 1, 0.1)
    pod = {
        "metadata": {"name": "server", "namespace": "another"},
        "spec": {"containers": [{"args": ["serve", "--model", "/home/jobpath/quick-start/runs/b/model"]}]},
        "status": {"phase": phase},
    }
    cluster.pods = [pod]
    assert clean_all("--keep", "0")[0] == 0
    assert names(job_folder / "runs") == used
    code, _, err = clean_all(*JOB)
    assert (code == 64, "these pods use it: server in namespace another" in err) == (bool(used), bool(used))


def test_prepared_data_that_no_job_and_no_release_refers_to_is_removed(clean_all, cluster, job_folder):
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
    code, _, err = clean_all()
    removed = {".00.10001.tmp", "of-a-removed-job.json", data_folder(other, "of-a-removed-job").root.name}
    assert code == 0, err
    assert before - {path.name for path in data.iterdir()} == removed
    assert "kept: .data/young.json: it is younger than 24 h" in err
    code, _, err = clean_all("--job", "another")
    assert code == 0, err
    removed |= {"of-another.json", data_folder(other, "of-another").root.name}
    assert before - {path.name for path in data.iterdir()} == removed
