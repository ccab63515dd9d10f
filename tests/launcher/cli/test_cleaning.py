"""`clean --job`, `clean --sources`, `clean --keep-best`; and the storage of a release that is gone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import cleaning, options
from launcher.cli.commands import keeping
from launcher.cli.storage import FolderStorage

from .conftest import DATA_JOB, K8S_JOB, RUN_JSON, make_job
from .test_runs import add_run

Cli = Callable[..., tuple[int, str, str]]
DONE = ("Complete", "", "")
BASE = "storage: {type: hostPath, hostPath: {path: /volume}}"


class FakeCluster:
    """Releases whose storage is a folder of this machine; reader pods run here."""

    namespace, name, given = "paddle", "context test", ()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.releases: dict[str, dict[str, Any]] = {}
        """run.json by release; {} stands for one that cannot be read."""
        self.elsewhere: dict[str, str] = {}
        """Namespaces of releases that are not in this one."""
        self.base: dict[str, str] = {}
        """base.yaml of releases whose one is not BASE."""
        self.jobs: list[dict[str, Any]] = []
        self.claims: dict[str, str] = {}
        self.pods: list[dict[str, Any]] = []
        self.made: dict[str, dict[str, Any]] = {}

    def add(
        self, release: str, job: str = "quick-start", claim: str = "paddle-training", **more: Any
    ) -> None:
        value = {**RUN_JSON, "jobName": job, "jobPath": str(self.root), "claim": claim, **more}
        self.releases[release] = value
        self.claims[claim] = release

    def _map(self, release: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/instance": release}
        place = self.elsewhere.get(release, self.namespace)
        meta = {"name": f"{release}-run", "namespace": place, "labels": labels}
        about = json.dumps(self.releases[release]) if self.releases[release] else "{"
        return {"metadata": meta, "data": {"run.json": about, "base.yaml": self.base.get(release, BASE)}}

    def items_everywhere(self, kind: str, doing: str, selector: str = "") -> list[Any]:
        if kind == "config_map":
            return [self._map(release) for release in self.releases]
        return {"job": self.jobs, "pod": self.pods}[kind]

    def items(self, kind: str, doing: str, selector: str = "") -> list[Any]:
        if kind == "persistent_volume_claim":
            return [
                {"metadata": {"name": claim, "labels": {"app.kubernetes.io/instance": release}}}
                for claim, release in self.claims.items()
            ]
        found = self.items_everywhere(kind, doing) if "reader" not in selector else []
        return [one for one in found if one["metadata"].get("namespace") == self.namespace]

    def find(self, kind: str, name: str, doing: str) -> Any:
        if kind == "config_map":
            return (
                self._map(name.removesuffix("-run")) if name.removesuffix("-run") in self.releases else None
            )
        if kind == "persistent_volume_claim":
            return {"status": {"phase": "Bound"}} if name in self.claims else None
        return {"status": {"phase": "Running"}} if kind == "pod" and name in self.made else None

    def events(self, name: str) -> list[Any]:
        return []

    def create_pod(self, pod: dict[str, Any]) -> None:
        self.made[pod["metadata"]["name"]] = pod

    def delete_pod(self, name: str) -> None:
        """Reader pods leave nothing."""

    def exec(self, pod: str, container: str, argv: list[str], stdin: Any, idle: float) -> Any:
        return FolderStorage(self.root).run(argv[4:], stdin)


@pytest.fixture
def cluster(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(job_folder.parent)
    monkeypatch.setattr(options, "connect", lambda *_: made)
    monkeypatch.setattr(cleaning, "LOCK_SECONDS", 0.3)
    made.add("paddle-training")
    made.jobs = [{**make_job(K8S_JOB, DONE)}, {**make_job(DATA_JOB, DONE)}]
    for job in made.jobs:
        job["metadata"]["namespace"] = "paddle"
    for name in ("used.csv", "old.csv", "folder/a.txt"):
        file = job_folder.parent / "sources" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("rows\n")
    for path in (job_folder.parent / "sources").iterdir():
        os.utime(path, (1, 1))
    return made


def test_clean_job_shows_who_uses_it_and_its_size_and_removes_the_folder_when_told_to(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    cluster.add("other", job="another")
    code, _, err = cli("clean", "--job", "quick-start")
    assert code == 64
    assert "removes quick-start: 1,28" in err
    assert "(release paddle-training in namespace paddle (over))" in err
    assert "nothing was. Fix: --yes" in err
    assert job_folder.is_dir()
    code, out, _ = cli("clean", "--job", "quick-start", "--yes")
    assert code == 0
    assert out.startswith("removed quick-start: 1,28")
    assert out.endswith(" bytes\n"), "hard-linked files free nothing"
    assert [path.name for path in job_folder.parent.iterdir()] == ["sources"]
    code, _, err = cli("clean", "--job", "quick-start", "--yes")
    assert code == 64
    assert "there is no such job's folder, but: none" in err


@pytest.mark.parametrize("suspended", [True, False])
def test_the_folder_of_a_live_run_stays_also_for_another_release(
    cli: Cli, cluster: FakeCluster, job_folder: Path, suspended: bool
) -> None:
    cluster.add("other", job="another")
    cluster.jobs[0] = {**make_job(K8S_JOB), "spec": {"suspend": suspended}}
    cluster.jobs[0]["metadata"]["namespace"] = "paddle"
    code, _, err = cli("clean", "--job", "quick-start", "--release", "other", "--yes")
    assert code == 64
    state = "suspended" if suspended else "running"
    assert f"keeps quick-start: the run of release paddle-training in namespace paddle is {state}" in err
    assert job_folder.is_dir()


def test_a_folder_that_a_pod_uses_or_somebody_writes_to_stays(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    served = {"containers": [{"args": ["serve", "--model", "/jobs/quick-start/output/model"]}]}
    meta = {"name": "server", "namespace": "another"}
    cluster.pods = [{"metadata": meta, "spec": served, "status": {"phase": "Running"}}]
    assert "pods use it: server in namespace another" in cli("clean", "--job", "quick-start", "--yes")[2]
    cluster.pods = []
    lock, end = job_folder / "output" / "run.lock", threading.Event()

    def renew() -> None:
        beat = 0
        while not end.wait(0.02):
            beat += 1
            lock.write_text(f"{beat:09d}")

    lock.write_text("000000000")
    thread = threading.Thread(target=renew)
    thread.start()
    code, _, err = cli("clean", "--job", "quick-start", "--yes")
    end.set()
    thread.join()
    assert code == 64
    assert "a run writes there: its output/run.lock is renewed" in err
    assert cli("clean", "--job", "quick-start", "--yes")[0] == 0, "a lock that nobody renews keeps nothing"


def test_a_run_that_starts_while_clean_asks_keeps_its_folder(
    cli: Cli, cluster: FakeCluster, job_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_a_run(question: str) -> bool:
        cluster.jobs[0] = make_job(K8S_JOB)
        cluster.jobs[0]["metadata"]["namespace"] = "paddle"
        return True

    monkeypatch.setattr(keeping, "confirmed", start_a_run)
    code, _, err = cli("clean", "--job", "quick-start")
    assert code == 64
    assert "nothing was removed. Meanwhile this changed: quick-start: the run of release" in err
    assert job_folder.is_dir()


def test_a_release_of_another_version_keeps_all_of_its_volume(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    cluster.releases["old"] = {}
    for given in (("--job", "quick-start"), ("--sources", "old.csv")):
        code, _, err = cli("clean", *given, "--yes")
        assert code == 64
        assert "release old in namespace paddle may use it: its ConfigMap's run.json is of another" in err
    cluster.base["old"] = "storage: {type: hostPath, hostPath: {path: /another}}"
    assert cli("clean", "--sources", "old.csv", "--yes")[0] == 0


@pytest.mark.parametrize("gone", [True, False])
def test_without_a_known_volume_the_releases_of_other_namespaces_count(
    cli: Cli, cluster: FakeCluster, job_folder: Path, gone: bool
) -> None:
    cluster.add("other", data={"source": "file://used.csv"})
    cluster.elsewhere["other"] = "another"
    cluster.jobs[0] = make_job(K8S_JOB)
    cluster.jobs[0]["metadata"]["namespace"] = "another"
    if gone:  # the session's release is not there
        del cluster.releases["paddle-training"]
        cluster.add("near", job="another", claim="second")
    else:
        cluster.base["other"] = "{"
    for given in (("--job", "quick-start"), ("--sources", "used.csv")):
        code, _, err = cli("clean", *given, "--yes", *(["--claim", "paddle-training"] if gone else []))
        assert code == 64
        assert "release other in namespace another" in err
    cluster.base["other"] = "storage: {type: hostPath, hostPath: {path: /another}}"
    if not gone:
        assert cli("clean", "--job", "quick-start", "--yes")[0] == 0, "it is on another volume"


def test_sources_that_are_being_pushed_or_were_just_pushed_stay(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    folder = job_folder.parent / "sources"
    (folder / ".new.csv.0123.tmp").mkdir()
    os.utime(folder / ".new.csv.0123.tmp", (1, 1))
    (folder / "new.csv").write_text("rows\n")
    code, out, err = cli("clean", "--sources", "--yes")
    assert (code, "removed sources/folder, sources/old.csv, sources/used.csv" in out) == (0, True), err
    assert "keeps sources/new.csv: it is younger than 1 h" in err
    assert sorted(path.name for path in folder.iterdir()) == [".new.csv.0123.tmp", "new.csv"]
    (job_folder.parent / ".shop.0123.old").mkdir()
    assert "no such job's folder, but: quick-start." in cli("clean", "--job", "shop", "--yes")[2]


def test_sources_that_a_release_refers_to_stay_and_the_others_go(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    cluster.add("other", job="another", data={"source": "file://folder", "testSource": "file://used.csv"})
    (job_folder / "manifest.json").write_text(json.dumps({"source": "file://old.csv"}))
    code, _, err = cli("clean", "--sources", "used.csv", "--yes")
    assert code == 64
    assert "keeps sources/used.csv: release other in namespace paddle trains on it" in err
    code, _, err = cli("clean", "--sources")
    assert code == 64
    assert (
        "removes sources/old.csv: 5 bytes (jobs that were prepared from it keep their data: quick-start"
        in err
    )
    assert cli("clean", "--sources", "--yes")[0] == 0
    left = sorted(path.name for path in (job_folder.parent / "sources").iterdir())
    assert left == ["folder", "used.csv"]
    assert cli("clean", "--sources", "nope", "--yes")[0] == 64
    assert cli("clean", "nope", "--yes")[0] == 64


def test_the_best_run_stays_though_it_is_old(cli: Cli, job_folder: Path) -> None:
    add_run(job_folder, "a", 1, 0.13)
    add_run(job_folder, "b", 3, 0.12)
    add_run(job_folder, "c", 9, 0.15)
    given = ("clean", "--path", job_folder, "--keep", "0", "--keep-best", "--yes")
    code, _, err = cli(*given, "--by", "auc")
    assert code == 64
    assert "--by auc: no run has such a score. There are: error" in err
    code, _, err = cli(*given)
    assert code == 0
    assert [path.name for path in (job_folder / "runs").iterdir()] == ["b"]
    assert "keeps quick-start/runs/b: the best one (--keep-best)" in err


def test_results_and_runs_find_the_storage_of_a_release_that_is_gone(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    run = job_folder / "output" / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "release": "gone"}))
    for given in ((), ("--claim", "paddle-training"), ("--job", "quick-start")):
        code, out, err = cli("results", "--release", "gone", *given)
        assert (code, "score on the test set: error 0.2012" in out) == (0, True), err
        assert cli("runs", "--release", "gone", *given)[0] == 0
    cluster.add("other", claim="second")
    code, _, err = cli("results", "--release", "gone")
    assert code == 64
    assert "paddle-training (of release paddle-training), second (of release other)" in err
    assert "Fix: --claim NAME; or --release NAME of one on the same storage with --job NAME; or" in err
    for command, job in (("compare", True), (("push", __file__, "--source"), True), ("clean", False)):
        err = cli(*([command] if isinstance(command, str) else command), "--release", "gone")[2]
        assert ("with --job NAME" in err, "--claim NAME" in err, "--path DIR" in err) == (
            job,
            command == "clean",
            True,
        )
    assert "has no claim third" in cli("runs", "--release", "gone", "--claim", "third")[2]
    assert cli("results", "--release", "gone", "--claim", "second")[0] == 0
    code, _, err = cli("results", "--release", "never", "--claim", "second")
    assert code == 3
    assert "Jobs there: quick-start (of release gone). Fix: --job NAME; or install" in err


def test_without_any_release_an_image_is_asked_for(cli: Cli, cluster: FakeCluster) -> None:
    cluster.releases = {}
    code, _, err = cli("runs", "--job", "quick-start")
    assert code == 64
    assert "Fix: --image IMAGE" in err
    assert cli("runs", "--job", "quick-start", "--image", "x")[0] in (0, 3)
    assert next(iter(cluster.made.values()))["spec"]["containers"][0]["image"] == "x"
    code, _, err = cli("compare", "--job", "quick-start")
    assert (code, "--image" in err, "--path DIR" in err) == (64, False, True)
    cluster.claims = {}
    code, _, err = cli("runs", "--job", "quick-start", "--image", "x")
    assert code == 64
    assert "Its claims: none" in err
