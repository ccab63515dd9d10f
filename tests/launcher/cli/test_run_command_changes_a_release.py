"""`run` changes a release: confirmation, conflicts with helm, values that hold a training back, and the messages."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli import launch_training, run_lease
from launcher.cli.commands import stop as stop_command
from launcher.cli.commands import sweep
from launcher.cli.errors import CliError, OtherRunError, UsageError
from launcher.cli.job_sessions import ClusterSession
from launcher.cli.releases import Helm, merge_values
from launcher.cli.run_display import describe_following, explain_interrupt

from .conftest import DATA_JOB, DONE, FAILED, K8S_JOB, QUEUE, RUN_JSON, make_job
from .fake_cluster import FakeCluster


def make_cluster(*releases: str) -> FakeCluster:
    """Return a cluster with releases whose trainings run."""
    cluster = FakeCluster()
    cluster.claims = {RUN_JSON["claim"]: ""}
    cluster.jobs = [make_job(K8S_JOB)]
    for name in releases:
        cluster.add_release(name, base="image: x\n")
    return cluster


class FakeHelm:
    """Upgrades the fake cluster; the name of the training Job ends with the batch size."""

    def __init__(self, cluster: FakeCluster, before: Callable[[], object] = str) -> None:
        self.cluster, self.before = cluster, before

    def read_values(self, release: str) -> dict[str, Any]:
        return self.cluster.values[release]

    def check(self, release: str, values: dict[str, Any]) -> str:
        return f"mine-{values['training']['batchSize']}"

    def upgrade_command(self, release: str, *files: str) -> list[str]:
        return ["helm"]

    def upgrade(self, release: str, values: dict[str, Any], description: str) -> None:
        self.before()
        self.cluster.add_release(release, base="image: x\n", k8sJob=self.check(release, values))


def launch(
    cluster: FakeCluster,
    *,
    batch: int = 8,
    helm: FakeHelm | None = None,
    session: ClusterSession | None = None,
    replace: bool = False,
    **values: Any,
) -> bool:
    session = session or ClusterSession(cluster, "paddle-training")
    given = {"jobName": "mine", "training": {"batchSize": batch}, **values}
    made = launch_training.TrainingPlan([], given)
    options = launch_training.LaunchOptions(program=Path())
    used = helm or FakeHelm(cluster)
    return launch_training.launch(made, options, used, session, Path("kept.yaml"), replace=replace)


@pytest.mark.parametrize("job", ["quick-start", "mine"], ids=["another job", "other settings of the same"])
def test_a_running_training_is_not_stopped_without_confirmation(here: Path, job: str) -> None:
    cluster = make_cluster()
    cluster.add_release(jobName=job)
    with pytest.raises(UsageError, match=rf"is training job {job} .*Starting mine would stop it.*Fix: "):
        launch(cluster)
    assert not (here / "kept.yaml").exists()
    assert launch(cluster, replace=True)
    assert not cluster.leases, "the lease is given up"
    cluster.jobs = [make_job("mine-8")]
    assert not launch(cluster), "the same training again is only followed"


def test_a_run_of_a_stopped_training_resumes_it(here: Path) -> None:
    cluster = make_cluster()
    cluster.add_release(k8sJob="mine-8", jobName="mine")
    queue = {"kueue.x-k8s.io/queue-name": "research"}
    cluster.jobs = [make_job("mine-8", suspended=True, labels=queue)]
    assert not launch(cluster), "its queue starts it"
    with pytest.raises(UsageError, match="Starting mine would stop it"):
        launch(cluster, batch=16)
    cluster.jobs = [make_job("mine-8", suspended=True)]
    assert launch(cluster)
    assert cluster.suspended == [("mine-8", False)]


@pytest.mark.parametrize("of_training", [True, False])
def test_a_training_that_scheduling_suspend_would_hold_back_is_rejected(
    here: Path, of_training: bool
) -> None:
    cluster = make_cluster("paddle-training")
    held = {"scheduling": {"suspend": True}}
    if not of_training:
        cluster.add_release(base=yaml.safe_dump(held))
    with pytest.raises(UsageError, match=r"scheduling.suspend is true in .* Fix: add --set scheduling"):
        launch(cluster, replace=True, **(held if of_training else {}))
    assert not (here / "kept.yaml").exists()
    queued = {"scheduling": {"suspend": True, "queue": "research"}}
    assert launch(cluster, replace=True, **queued), "the queue starts it"


@pytest.mark.parametrize("data_failed", [False, True])
def test_a_run_of_a_failed_training_starts_its_job_again(here: Path, data_failed: bool) -> None:
    cluster = make_cluster()
    cluster.add_release(k8sJob="mine-8", jobName="mine")
    failed = make_job("mine-8", FAILED, labels={"app": "x"})
    failed["metadata"] |= {"uid": "u1"}
    spec = {"completions": 3, "template": {"metadata": {"labels": {"app": "x"}}, "spec": {}}}
    template = {"metadata": {"labels": {"app": "x", "controller-uid": "u1"}}, "spec": {}}
    failed["spec"] = {**spec, "selector": {"matchLabels": {"controller-uid": "u1"}}, "template": template}
    data = make_job(DATA_JOB, FAILED if data_failed else DONE)
    cluster.jobs = [failed, data]
    assert launch(cluster) is not data_failed
    if data_failed:
        assert cluster.jobs == [failed, data], "only another runId repeats both Jobs"
        return
    assert "mine-8" in cluster.deleted
    metadata = {"name": "mine-8", "namespace": "paddle", "labels": {"app": "x"}, "annotations": {}}
    again = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    assert cluster.jobs == [data, again]
    assert not launch(cluster), "it is only followed now"


def test_changed_values_replace_a_stopped_training_and_resume_its_data_job(here: Path) -> None:
    cluster = make_cluster("paddle-training")
    cluster.jobs = [make_job(name, suspended=True) for name in (K8S_JOB, DATA_JOB)]
    assert launch(cluster)
    assert cluster.suspended == [(DATA_JOB, False)], "helm leaves a Job that it keeps suspended"


@pytest.mark.parametrize(
    ("releases", "what"), [(("one", "one"), "release one"), (("one", "other"), "job mine")]
)
def test_of_two_concurrent_runs_of_a_release_or_job_one_fails_with_the_lease_holder(
    here: Path, monkeypatch: pytest.MonkeyPatch, releases: tuple[str, str], what: str
) -> None:
    monkeypatch.setattr(run_lease, "RENEW_SECONDS", 0.05)
    cluster = make_cluster(*dict.fromkeys(releases))
    first, other = (ClusterSession(cluster, name) for name in releases)
    rejected: list[OtherRunError] = []

    def second() -> None:
        with pytest.raises(OtherRunError) as raised:
            launch(cluster, replace=True, batch=16, session=other)
        rejected.append(raised.value)

    launch(cluster, replace=True, helm=FakeHelm(cluster, second), session=first)
    assert yaml.safe_load((here / "kept.yaml").read_text())["training"]["batchSize"] == 8
    assert first.run().k8s_job == "mine-8"
    holder = f"{run_lease.user_and_host()} (process {os.getpid()})"
    assert str(rejected[0]).startswith(f"{holder} has been using {what} since ")
    assert "Fix: " in str(rejected[0])
    assert (rejected[0].exit_code, cluster.leases) == (4, {})


def test_a_replaced_run_is_not_followed(here: Path) -> None:
    cluster = make_cluster("paddle-training")
    first = ClusterSession(cluster, "paddle-training")
    launch(cluster, replace=True, session=first)
    first.peek_view()
    launch(cluster, replace=True, batch=16)
    with pytest.raises(
        OtherRunError, match=r"run mine-8 was replaced by run mine-16 .*helm history .*--replace"
    ):
        first.peek_view()


@pytest.mark.parametrize("release", ["paddle-training", "new"])
def test_a_missing_claim_is_reported_with_a_fix(here: Path, release: str) -> None:
    cluster = make_cluster("paddle-training")
    cluster.claims = {}
    with pytest.raises(CliError, match=r"the claim paddle-training does not exist .* Fix: create the claim"):
        launch(cluster, replace=True, session=ClusterSession(cluster, release))
    assert not cluster.leases


@pytest.mark.parametrize(
    ("releases", "message"),
    [((), "has no release of this chart yet"), (("one", "two"), "several releases .*--base-release")],
)
def test_a_new_release_needs_another_one_for_image_and_storage(
    here: Path, releases: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CliError, match=message):
        cluster = make_cluster(*releases)
        launch(cluster, session=ClusterSession(cluster, "new"))


def test_a_job_name_of_another_release_on_the_same_storage_is_rejected() -> None:
    cluster = make_cluster("theirs")
    theirs, mine = cluster.config_maps["theirs"], {"jobName": "quick-start"}
    volume = "storage: {type: nfs, nfs: {server: a, path: /x}}"
    cluster.set_storage("theirs", volume)
    session = ClusterSession(cluster, "new")

    def check(base: str, values: dict[str, Any] = mine) -> None:
        merged = merge_values(yaml.safe_load(base), values)
        launch_training.check_job_name_is_free(session, merged)

    same = volume.replace("}}", "}, hostPath: {path: /}}")
    for place in ("paddle", "elsewhere"):
        theirs["metadata"]["namespace"] = place
        with pytest.raises(UsageError, match=f"release theirs in namespace {place} .* release new .*Fix"):
            check(same)
    check(same, {"jobName": "other"})
    for damaged in ("{", "[]"):
        cluster.config_maps["theirs"] = {**theirs, "data": {**theirs["data"], "run.json": damaged}}
        check(same)
    cluster.config_maps["theirs"] = theirs
    check(same.replace("/x", "/y"))
    check(same, {**mine, "storage": {"nfs": {"server": "b"}}})
    claim = "storage: {type: existingClaim, existingClaim: {name: shared}}"
    cluster.set_storage("theirs", claim)
    check(claim)  # a claim with that name in another namespace
    theirs["metadata"]["namespace"] = "paddle"
    with pytest.raises(UsageError):
        check(claim)


def test_a_sweep_rejects_a_release_of_another_job() -> None:
    cluster = make_cluster("quick-start", "line-2")
    sweep.check_releases_are_free(cluster, ["quick-start", "line-1"])
    with pytest.raises(UsageError, match=r"release line-2 .* has job quick-start"):
        sweep.check_releases_are_free(cluster, ["line-1", "line-2"])
    cluster.config_maps["line-2"]["data"]["run.json"] = "{"
    with pytest.raises(
        UsageError, match=r"release line-2 .* has job \(unknown: another version of the chart"
    ):
        sweep.check_releases_are_free(cluster, ["line-2"])


def test_ctrl_c_stops_following_and_says_how_to_follow_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), explain_interrupt(lambda: describe_following(["--release", "mine"])):
        raise SystemExit(128 + signal.SIGINT)
    assert (
        "continues on the cluster. Show it: python -m launcher status --release mine;"
        in capsys.readouterr().err
    )


def test_a_file_that_run_did_not_write_is_not_overwritten(here: Path) -> None:
    (here / "kept.yaml").write_text("trainers: 3\n")
    with pytest.raises(UsageError, match=r"kept\.yaml exists, and `run` did not write it"):
        launch(make_cluster("paddle-training"), replace=True)
    assert (here / "kept.yaml").read_text() == "trainers: 3\n"


def test_base_prints_the_values_of_the_cluster_and_not_of_the_training(
    cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster("paddle-training")
    cluster.add_release(base="image: x\nextraEnv: [{name: A, value: b}, {name: PYTHONPATH, value: .}]\n")
    monkeypatch.setattr("launcher.cli.shared_options.connect", lambda *_: cluster)
    given = {**cluster.values["paddle-training"], "training": {"passes": 9}}
    monkeypatch.setattr(Helm, "read_values", lambda *_: given)
    code, out, _ = cli("base")
    assert (code, yaml.safe_load(out)) == (0, {"image": "x", "extraEnv": [{"name": "A", "value": "b"}]})


def test_a_release_of_an_earlier_chart_is_not_upgraded_to_the_defaults_of_image_and_storage(
    here: Path,
) -> None:
    """Its ConfigMap does not say which of its values describe the cluster."""
    cluster = make_cluster("paddle-training")
    cluster.add_release(clusterValues=None)
    with pytest.raises(CliError, match=r"another version of the chart.*Fix: upgrade the release"):
        launch(cluster, replace=True)
    assert not (here / "kept.yaml").exists()


# `scale` of an elastic run.

RANGE = {"minTrainers": 2, "maxTrainers": None}


def scale_release(
    monkeypatch: pytest.MonkeyPatch, trainers: int, training: dict[str, Any], **job: Any
) -> list[dict[str, Any]]:
    """Scale a release of 3 trainers whose values have this section `training`; return the values of the upgrades.

    `job` are arguments of `make_job`.
    """
    cluster, upgrades = make_cluster("demo"), []
    cluster.jobs = [make_job("mine-8", **job)]
    cluster.add_release("demo", base="image: x\n", k8sJob="mine-8")
    cluster.values["demo"] = {"trainers": 3, "training": {"batchSize": 8, **training}}

    class RecordingHelm(FakeHelm):
        def upgrade(self, release: str, values: dict[str, Any], description: str) -> None:
            assert description == f"scale to {trainers} trainers"
            upgrades.append(values)

    monkeypatch.setattr(stop_command, "Helm", RecordingHelm)
    stop_command.change_trainers(ClusterSession(cluster, "demo"), trainers)
    return upgrades


def test_scale_changes_the_trainers_and_keeps_the_largest_number_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [values] = scale_release(monkeypatch, 2, RANGE)
    assert values == {"trainers": 2, "training": {"batchSize": 8, "minTrainers": 2, "maxTrainers": 3}}


@pytest.mark.parametrize(
    ("trainers", "training", "labels", "message"),
    [
        (2, {}, {}, "is not elastic.* is fixed: 3. Fix: start it with --set training.minTrainers"),
        (4, RANGE, {}, "--trainers is 4, but must be 2 to 3 .*Fix: choose such a number"),
        (1, RANGE, {}, "--trainers is 1, but must be 2 to 3 "),
        (2, {**RANGE, "batchSize": 9}, {}, "cannot scale mine-8: .* would start another Job, mine-9"),
        # Kueue rejects another parallelism of a running Job with partial admission, after helm began the upgrade.
        (2, RANGE, QUEUE, r"mine-8: Kueue admitted its pods \(queue research\).*Fix: start a new run"),
    ],
)
def test_scale_rejects_what_the_run_cannot_have_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    trainers: int,
    training: dict[str, Any],
    labels: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        scale_release(monkeypatch, trainers, training, labels=labels)
