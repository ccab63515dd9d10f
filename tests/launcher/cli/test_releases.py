"""`run` and its release: one changes it at a time, nothing is replaced unasked, and what is said instead."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli import launching, leftovers, runlease
from launcher.cli.cluster import ConflictError
from launcher.cli.helm import Helm
from launcher.cli.problems import CliError, OtherRunError, UsageError
from launcher.cli.session import ClusterSession
from tests.waiting import until

CHART = str(Path(__file__).resolve().parents[3] / "charts" / "paddle-training")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the command line."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(**more: Any) -> launching.Request:
    given: dict[str, Any] = {"program": Path(), "data": None, "values": [], "settings": [], "trainers": None}
    return launching.Request(**{**given, "passes": None, "keep": Path("kept.yaml"), **more})


class FakeCluster:
    """Its ConfigMaps, of which each is a release whose training is at work, and Leases."""

    namespace, name, given = "paddle", "context test", ()

    def __init__(self, api: object, *releases: str) -> None:
        self.api = api
        self.leases: dict[str, dict[str, Any]] = {}
        self.resumed: list[str] = []
        self.claims = [api.run["claim"]]  # type: ignore[attr-defined]
        self.maps: dict[str, dict[str, Any]] = {}
        self.jobs = [api.job(api.k8s_job)]  # type: ignore[attr-defined]
        for name in releases:
            self.upgrade(name, api.k8s_job)  # type: ignore[attr-defined]

    def upgrade(self, release: str, k8s_job: str, **more: str) -> None:
        run = {**self.api.run, "k8sJob": k8s_job, **more}  # type: ignore[attr-defined]
        self.maps[f"{release}-run"] = {
            "metadata": {
                "name": f"{release}-run",
                "namespace": "paddle",
                "labels": {"app.kubernetes.io/instance": release},
            },
            "data": {"run.json": json.dumps(run), "base.yaml": "image: x\n"},
        }

    def items(self, kind: str, *_: object, **__: object) -> list[object]:
        return {"config_map": [*self.maps.values()], "job": self.jobs}.get(kind, [])

    items_everywhere = items

    def find(self, kind: str, name: str, _: str) -> object:
        if kind == "persistent_volume_claim":
            return {"status": {"phase": "Bound"}} if name in self.claims else None
        if kind == "pod":
            return {"metadata": {}, "status": {"phase": "Running"}}  # the reader's
        return {"config_map": self.maps, "lease": self.leases}.get(kind, {}).get(name)

    def events(self, _: str) -> list[object]:
        return []

    def suspend_job(self, name: str, suspended: bool) -> None:
        assert not suspended
        self.resumed.append(name)

    def create_pod(self, _: object) -> None: ...
    def delete_pod(self, _: object) -> None: ...

    def for_another_thread(self) -> FakeCluster:
        return self

    def create(self, _: str, lease: dict[str, Any]) -> dict[str, Any]:
        name = lease["metadata"]["name"]
        if name in self.leases:
            raise ConflictError(name)
        return self.replace("lease", {**lease, "metadata": {"name": name, "resourceVersion": "0"}})

    def replace(self, _: str, lease: dict[str, Any]) -> dict[str, Any]:
        name, version = lease["metadata"]["name"], lease["metadata"]["resourceVersion"]
        if version != self.leases.get(name, lease)["metadata"]["resourceVersion"]:
            raise ConflictError(name)
        new = {**lease, "metadata": {"name": name, "resourceVersion": f"{int(version) + 1}"}}
        self.leases[name] = new
        return new

    def delete(self, _: str, name: str, version: str) -> None:
        assert self.leases[name]["metadata"]["resourceVersion"] == version
        del self.leases[name]


class FakeHelm(Helm):
    """Upgrades the fake cluster: the Job's name is the batch size."""

    def __init__(self, cluster: FakeCluster, before: Callable[[], object] = str) -> None:
        super().__init__(CHART, "paddle")
        object.__setattr__(self, "state", (cluster, before, []))

    def check(self, release: str, base: str, values: str, keep: Path) -> dict[str, Any]:
        return {"k8sJob": f"mine-{yaml.safe_load(values)['training']['batchSize']}"}

    def run(self, release: str, base: str, values: str, keep: Path, description: str) -> None:
        cluster, before, done = self.state  # type: ignore[attr-defined]
        before()
        job = self.check(release, base, values, keep)["k8sJob"]
        cluster.upgrade(release, job)
        done.append((job, description))

    def history(self, release: str) -> list[dict[str, Any]]:
        done = self.state[2]  # type: ignore[attr-defined]
        entries = [
            {"revision": number, "updated": "today", "description": description}
            for number, (_, description) in enumerate(done, 2)
        ]
        return [*reversed(entries), {"revision": 1, "updated": "before", "description": "Install complete"}]

    def claim(self, release: str, revision: int) -> str:
        return "nope" if revision == len(self.history(release)) else "paddle-training"


def launch(
    cluster: FakeCluster, request: launching.Request, batch: int = 8, helm: FakeHelm | None = None
) -> launching.Launched:
    made = launching.Recipe([], {"jobName": "mine", "training": {"batchSize": batch}})
    return launching.launch(made, request, helm or FakeHelm(cluster), cluster, print)  # type: ignore[arg-type]


@pytest.mark.parametrize("job", ["quick-start", "mine"], ids=["another job", "other settings of the same"])
def test_a_training_that_is_at_work_is_not_ended_unasked(api: Any, here: Path, job: str) -> None:
    cluster = FakeCluster(api)
    cluster.upgrade("paddle-training", api.k8s_job, jobName=job)
    with pytest.raises(UsageError, match=rf"is training job {job} .*Starting mine would stop it.*Fix: "):
        launch(cluster, asked())
    assert not (here / "kept.yaml").exists()
    assert launch(cluster, asked(replace=True)).changed
    assert not cluster.leases, "the lease is given up"
    cluster.jobs = [api.job("mine-8")]
    assert not launch(cluster, asked()).changed, "the same training again is only followed"


def test_a_run_of_what_is_stopped_ends_at_once_and_names_resume(api: Any, here: Path) -> None:
    cluster = FakeCluster(api)
    cluster.upgrade("paddle-training", "mine-8", jobName="mine")
    cluster.jobs = [{**api.job("mine-8"), "spec": {"suspend": True}}]
    fix = r"Fix: python -m launcher resume --follow$"
    for replace in (False, True):
        with pytest.raises(UsageError, match=rf"training mine of release paddle-training is stopped .*{fix}"):
            launch(cluster, asked(replace=replace))
    assert not (here / "kept.yaml").exists()
    cluster.jobs[0]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    assert not launch(cluster, asked()).changed, "its queue starts it"
    with pytest.raises(UsageError, match="Starting mine would stop it"):
        launch(cluster, asked(), batch=16)


def test_other_values_replace_a_stopped_training_unasked_and_start_its_stopped_data_job(
    api: Any, here: Path
) -> None:
    cluster = FakeCluster(api, "paddle-training")
    stopped = {"spec": {"suspend": True}}
    cluster.jobs = [{**api.job(name), **stopped} for name in (api.k8s_job, api.data_job)]
    assert launch(cluster, asked()).changed
    assert cluster.resumed == [api.data_job], "helm leaves a Job that it keeps suspended"


def test_two_runs_at_once_of_two_releases_with_one_job_one_of_them_trains(api: Any, here: Path) -> None:
    cluster = FakeCluster(api, "one", "other")
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(
            OtherRunError, match=r"is starting a training of job mine since .*Fix: "
        ) as raised:
            launch(cluster, asked(release="other", replace=True))
        refused.append(str(raised.value))

    launch(cluster, asked(release="one", replace=True), helm=FakeHelm(cluster, second))
    assert refused
    assert not cluster.leases


def test_two_runs_at_once_of_a_release_one_trains_and_the_other_is_told_who_does(
    api: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runlease, "RENEW_SECONDS", 0.05)
    cluster = FakeCluster(api, "paddle-training")
    refused: list[OtherRunError] = []

    def second() -> None:
        with pytest.raises(OtherRunError) as raised:
            launch(cluster, asked(keep=None, replace=True), batch=16)
        refused.append(raised.value)

    helm = FakeHelm(cluster, second)
    done = launch(cluster, asked(keep=None, replace=True), helm=helm)
    assert [str(path) for path in here.glob("*.values.yaml")] == [str(here / "mine.values.yaml")]
    assert yaml.safe_load(done.keep.read_text())["training"]["batchSize"] == 8
    assert done.session.run().k8s_job == "mine-8"
    assert str(refused[0]).startswith(f"{runlease.person()} (process {os.getpid()}) is starting a training")
    assert "Fix: " in str(refused[0])
    assert refused[0].exit_code == 4


def test_a_replaced_run_is_told_with_who_did_it_and_how_to_resume(api: Any, here: Path) -> None:
    cluster = FakeCluster(api, "paddle-training")
    helm = FakeHelm(cluster)
    first = launch(cluster, asked(replace=True), helm=helm)
    launch(cluster, asked(replace=True), batch=16, helm=helm)
    with pytest.raises(OtherRunError, match=r"run mine-8 was replaced by revision 3 \(run by .*--replace"):
        first.session.glance()


def test_a_lease_that_nobody_renews_is_taken_over(api: Any) -> None:
    cluster, now = FakeCluster(api), [0.0]
    cluster.create("lease", {"metadata": {"name": "mine-run"}, "spec": {"holderIdentity": "eve@gone:1"}})

    def sleep(seconds: float) -> None:
        assert cluster.leases["mine-run"]["spec"]["holderIdentity"] == "eve@gone:1"
        now[0] += seconds

    with runlease.held(cluster, "mine", clock=lambda: now[0], sleep=sleep):  # type: ignore[arg-type]
        assert now[0] >= runlease.EXPIRED_SECONDS
        assert cluster.leases["mine-run"]["spec"]["holderIdentity"].startswith(runlease.person())
    assert not cluster.leases


def test_who_has_lost_the_lease_changes_nothing(
    api: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runlease, "RENEW_SECONDS", 0.05)
    cluster = FakeCluster(api, "paddle-training")

    def taken_over(*_: object) -> None:
        lease = cluster.leases["paddle-training-run"]
        taken = {**lease, "metadata": {**lease["metadata"], "resourceVersion": "99"}}
        cluster.leases["paddle-training-run"] = taken
        until(lambda: sum(one.name == "lease" for one in threading.enumerate()) == 1, "the renewal's end")

    monkeypatch.setattr(launching, "_push", taken_over)
    with pytest.raises(OtherRunError, match=r"taken by another `run`; the release was not changed\. Fix"):
        launch(cluster, asked(replace=True))
    assert ClusterSession(cluster, "paddle-training", print).run().k8s_job == api.k8s_job  # type: ignore[arg-type]
    assert cluster.leases, "it is another's"


HELM = """#!/bin/sh
[ $1 = show ] && exec cat {chart}/values.yaml
case "$*" in
*--dry-run*) cat dry.json ;;
*) echo "jobName: theirs" > kept.yaml; cat $(echo "$*" | grep -o '[^ ]*kept.yaml') > sent.yaml ;;
esac
{end}
"""


def fake_helm(here: Path, monkeypatch: pytest.MonkeyPatch, end: str = "") -> Helm:
    """A stand-in on PATH that makes Job `mine-1`; another process replaces the kept file before it reads."""
    run = {"kind": "ConfigMap", "metadata": {"name": "paddle-training-run"}}
    manifest = yaml.safe_dump({**run, "data": {"run.json": json.dumps({"k8sJob": "mine-1"})}})
    (here / "dry.json").write_text(json.dumps({"manifest": manifest}))
    (here / "bin").mkdir()
    (here / "bin" / "helm").write_text(HELM.format(chart=CHART, end=end))
    (here / "bin" / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    return Helm(CHART, "paddle")


def test_what_is_trained_is_what_was_prepared_whoever_replaces_the_kept_file(
    api: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, made = FakeCluster(api, "paddle-training"), launching.Recipe([], {"jobName": "mine"})
    helm = fake_helm(here, monkeypatch)
    launching.launch(made, asked(replace=True), helm, cluster, print)  # type: ignore[arg-type]
    assert yaml.safe_load((here / "sent.yaml").read_text()) == {"jobName": "mine"}


def test_a_revision_s_claim_is_read_from_what_helm_keeps(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "old.json").write_text('[{"revision": 1, "description": "a"}, {"revision": 2}]')
    run = json.dumps({"claim": "shared"})
    (here / "manifest.yaml").write_text(
        "---\n# Source: x\n---\nkind: Job\nmetadata: {name: x-run}\n---\nkind: ConfigMap\n"
        f"metadata: {{name: x-run}}\ndata: {{run.json: '{run}'}}\n"
    )
    cases = '"history x") cat old.json ;;\n"get manifest x --revision 1") cat manifest.yaml ;;\n*) exit 1 ;;'
    helm = fake_helm(here, monkeypatch, f'case "$(echo "$*" | sed "s/ -n .*//")" in\n{cases}\nesac; exit')
    assert [entry["revision"] for entry in helm.history("x")] == [2, 1]
    assert helm.claim("x", 1) == "shared"


@pytest.mark.parametrize(
    "said",
    [
        "Error: UPGRADE FAILED: release: already exists",
        "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
        'Error: create: failed to create: secrets "sh.helm.release.v1.x.v1" already exists',
    ],
)
def test_a_helm_that_meets_another_one_is_told_with_a_fix(
    here: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    helm = fake_helm(here, monkeypatch, f"echo '{said}' >&2; exit 1")
    for call in (helm.check, functools.partial(helm.run, description="mine")):
        with pytest.raises(CliError, match=r"Fix: .*helm history x -n paddle.*helm rollback x") as raised:
            call("x", "", "", Path("kept.yaml"))
        assert raised.value.exit_code == 3, "the values are not to blame"


@pytest.mark.parametrize("release", ["paddle-training", "new"])
def test_values_whose_claim_is_gone_are_told_with_the_revision_to_go_back_to(
    api: Any, here: Path, release: str
) -> None:
    cluster = FakeCluster(api, "paddle-training")
    helm = FakeHelm(cluster)
    launch(cluster, asked(replace=True), helm=helm)
    cluster.upgrade("paddle-training", api.k8s_job, claim="nope")
    fix = "helm rollback paddle-training 1 -n paddle; then the same command again"
    with pytest.raises(CliError, match=rf"the claim nope .* does not exist .*Fix: {fix}"):
        launch(cluster, asked(replace=True, release=release), helm=helm)
    assert not cluster.leases


@pytest.mark.parametrize(
    ("releases", "told"),
    [((), "has no release of this chart yet"), (("one", "two"), "several releases .*--base-release")],
)
def test_a_new_release_needs_one_to_take_image_and_storage_from(
    api: object, here: Path, releases: tuple[str, ...], told: str
) -> None:
    with pytest.raises(CliError, match=told):
        launch(FakeCluster(api, *releases), asked(release="new"))


def test_a_jobs_name_that_another_release_has_on_the_same_storage_is_refused(api: Any) -> None:
    cluster = FakeCluster(api, "theirs")
    theirs, mine = cluster.maps["theirs-run"], {"jobName": "quick-start"}
    theirs["data"]["base.yaml"] = "storage: {type: nfs, nfs: {server: a, path: /x}}"

    def refuse(base: str, values: dict[str, object] = mine) -> None:
        leftovers.refuse_shared_job(cluster, "new", base, values)  # type: ignore[arg-type]

    same = theirs["data"]["base.yaml"].replace("}}", "}, hostPath: {path: /}}")
    for place in ("paddle", "elsewhere"):
        theirs["metadata"]["namespace"] = place
        with pytest.raises(UsageError, match=f"release theirs in namespace {place} .* release new .*Fix"):
            refuse(same)
    refuse(same, {"jobName": "other"})
    for damaged in ("{", "[]"):
        cluster.maps["theirs-run"] = {**theirs, "data": {**theirs["data"], "run.json": damaged}}
        refuse(same)
    cluster.maps["theirs-run"] = theirs
    refuse(same.replace("/x", "/y"))
    refuse(same, {**mine, "storage": {"nfs": {"server": "b"}}})
    theirs["data"]["base.yaml"] = claim = "storage: {type: existingClaim, existingClaim: {name: shared}}"
    refuse(claim)  # another namespace's claim of that name
    theirs["metadata"]["namespace"] = "paddle"
    with pytest.raises(UsageError):
        refuse(claim)


def test_a_sweep_takes_no_release_of_another_job(api: object) -> None:
    cluster = FakeCluster(api, "quick-start", "line-2")
    launching.refuse_taken(cluster, ["quick-start", "line-1"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"release line-2 .* is of job quick-start"):
        launching.refuse_taken(cluster, ["line-1", "line-2"])  # type: ignore[arg-type]


def test_ctrl_c_ends_the_looking_and_says_how_to_look_again(api: object) -> None:
    said: list[str] = []
    session = ClusterSession(FakeCluster(api), "mine", print)  # type: ignore[arg-type]
    with pytest.raises(SystemExit), launching.interrupted(session, said.append):
        raise SystemExit(launching.INTERRUPTED)
    assert "the training goes on. Look again: python -m launcher status --release mine;" in said[0]


def test_a_file_of_the_persons_own_is_not_overwritten(api: object, here: Path) -> None:
    (here / "kept.yaml").write_text("trainers: 3\n")
    with pytest.raises(UsageError, match=r"kept\.yaml is there and was not written by `run`"):
        launch(FakeCluster(api, "paddle-training"), asked(replace=True))
    assert (here / "kept.yaml").read_text() == "trainers: 3\n"


@pytest.mark.parametrize("text", ["image: x", "image: x\n"])
def test_base_ends_with_one_newline(cli: Any, api: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    cluster = FakeCluster(api, "paddle-training")
    cluster.maps["paddle-training-run"]["data"]["base.yaml"] = text
    monkeypatch.setattr("launcher.cli.commands.bringing.connect", lambda *_: cluster)
    assert cli("base")[:2] == (0, "image: x\n")
