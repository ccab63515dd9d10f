"""Upgrades on a real API server: what is kept, what a failed upgrade leaves, and how to remove that.

The pods' image does not exist, so they stay pending and use nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chart_tools import CHART, kubectl, new_namespace, pinned_helm, run, tool
from chart_tools import settings as pod_settings

from infra.settings import merge_values
from launcher.cli.cluster_api import connect
from launcher.cli.errors import CliError
from launcher.cli.releases import Helm
from testkit.object_api import ObjectApi
from testkit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

VALUES = {
    "image": "example.org/nowhere:1",
    "imagePullPolicy": "Never",
    "trainers": 2,
    "data": {"enabled": False, "source": "file://lines.txt"},
    "storage": {"type": "hostPath", "hostPath": {"path": "/srv/paddle"}},
    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "32Mi"}},
}
ELSEWHERE = {"storage": {"hostPath": {"path": "/srv/elsewhere"}}}


@dataclass
class Release:
    """A release in its own namespace, changed by this `helm`."""

    namespace: str
    helm: Path

    def upgrade(self, changes: dict[str, Any] | None = None, *words: str) -> str:
        """Run `helm upgrade --install`; return helm's error message, empty on success."""
        argv = [str(self.helm), "upgrade", "--install", "demo", str(CHART), "-n", self.namespace, "-f", "-"]
        # test_api_server_accepts_chart.py checks what helm would check with the API server's schema, a second of work
        argv.append("--disable-openapi-validation")
        done = run(*argv, *words, stdin=json.dumps(merge_values(VALUES, changes or {})))
        return done.stderr if done.returncode else ""

    def items(self, kind: str) -> list[dict[str, Any]]:
        return ObjectApi().list(kind, self.namespace)

    def wait_for_bound_claim(self) -> None:
        def is_bound() -> bool:
            return self.items("persistentvolumeclaims")[0]["status"]["phase"] == "Bound"

        until(is_bound, "the claim is bound", 60, 0.3)

    def volumes(self) -> set[str]:
        found = ObjectApi().list("persistentvolumes", labels=f"paddle-training/namespace={self.namespace}")
        return {item["metadata"]["name"] for item in found}

    def pods(self) -> set[str]:
        """Return the unique ids of the pods, without those that are being deleted."""
        metadata = [pod["metadata"] for pod in self.items("pods")]
        return {one["uid"] for one in metadata if "deletionTimestamp" not in one}

    def training(self) -> dict[str, Any]:
        """Return the training Job that the release's newest values created."""
        found = ObjectApi().read("configmaps", self.namespace, "demo-run")
        return ObjectApi().read("jobs", self.namespace, json.loads(found["data"]["run.json"])["k8sJob"])

    def suspend(self, job: str, suspended: bool) -> None:
        """Suspend or admit a Job as Kueue does, and wait until the Job controller has reacted.

        On a busy machine it may react seconds later, and delete pods that the test has counted as those of the resumed
        Job.
        """
        ObjectApi().patch("jobs", self.namespace, job, {"spec": {"suspend": suspended}})
        wanted = ("Suspended", str(suspended))

        def has_reacted() -> bool:
            status = ObjectApi().read("jobs", self.namespace, job).get("status", {})
            return wanted in [(each["type"], each["status"]) for each in status.get("conditions", [])]

        until(has_reacted, f"the Job controller reports {wanted}", 60, 0.3)

    def both_pods(self) -> set[str]:
        """Wait until the release has two pods; return their unique ids."""

        def found() -> set[str] | None:
            pods = self.pods()
            return pods if len(pods) == 2 else None

        return until(found, "two pods", 60, 0.3)

    def allow_one_job(self) -> None:
        """Make each upgrade that creates another Job fail, by a quota; it ends with the namespace."""
        kubectl("create", "quota", "jobs", "-n", self.namespace, "--hard=count/jobs.batch=1")

        def is_in_force() -> Any:
            return self.items("resourcequotas")[0].get("status", {}).get("used")

        until(is_in_force, "the quota is in force", 60, 0.3)

    def delete_volumes(self, *names: str) -> None:
        """Delete volumes as docs/how-to/troubleshooting.md says; without names, all of this release."""
        mine = f"app.kubernetes.io/instance=demo,paddle-training/namespace={self.namespace}"
        kubectl("delete", "pv", *(names or ("-l", mine)), "--wait=false")


@pytest.fixture
def release(local_cluster: None) -> Iterator[Release]:
    with new_namespace() as name:
        yield Release(name, pinned_helm(4))
    run(tool("kubectl"), "delete", "pv", "-l", f"paddle-training/namespace={name}", "--wait=false")


@pytest.fixture(params=[4, 3], ids=lambda major: f"helm{major}")
def each_helm(request: pytest.FixtureRequest, release: Release) -> Release:
    """Return the release, once for Helm 4, which applies on the server, and once for Helm 3, which does not."""
    release.helm = pinned_helm(request.param)
    return release


def test_upgrade_without_changes_keeps_pods_and_leaves_suspend_to_kueue(each_helm: Release) -> None:
    queued = {"scheduling": {"queue": "research", "suspend": True}}
    assert not each_helm.upgrade(queued)
    name = each_helm.training()["metadata"]["name"]

    each_helm.suspend(name, True)
    assert not each_helm.upgrade(queued)
    assert each_helm.training()["spec"]["suspend"] is True, "an upgrade does not start a Job before its queue"
    each_helm.suspend(name, False)
    before = each_helm.both_pods()
    for unchanged in (
        {},
        {"networkPolicy": {"enabled": False}},
        {"training": {"deadlineSeconds": 5000}, "ttlSecondsAfterFinished": 100},
        {},
    ):
        assert not each_helm.upgrade({**queued, **unchanged}), unchanged
        assert each_helm.training()["spec"]["suspend"] is False, unchanged
        assert each_helm.pods() == before, unchanged

    assert not each_helm.upgrade({**queued, "training": {"passes": 3}})
    assert each_helm.training()["metadata"]["name"] != name
    assert len(each_helm.volumes()) == 1


def test_suspend_true_without_a_queue_suspends_and_after_a_resume_helm_4_reports_it_and_helm_3_suspends_again(
    each_helm: Release,
) -> None:
    waiting = {"scheduling": {"suspend": True}}
    for changes, suspended in ((waiting, True), ({}, False), (waiting, True)):
        assert not each_helm.upgrade(changes)
        assert each_helm.training()["spec"]["suspend"] is suspended
    resumed = run("python", "-m", "launcher", "resume", "-n", each_helm.namespace, "--release", "demo")
    assert resumed.returncode == 0, resumed.stderr
    error = each_helm.upgrade(waiting)
    if each_helm.helm == pinned_helm(3):
        assert not error
        assert each_helm.training()["spec"]["suspend"] is True
    else:
        assert 'conflict with "paddle-training:' in error, "user and machine of the command `resume`"
        assert ".spec.suspend" in error
        assert each_helm.training()["spec"]["suspend"] is False
    assert not each_helm.upgrade(), "without the value the field is nobody's"
    assert len(each_helm.items("jobs")) == 1, "all this renames no Job"


def test_helm_4_can_roll_back_a_failed_upgrade_and_helm_3_cannot(each_helm: Release) -> None:
    """The chart's README says so."""
    assert not each_helm.upgrade()
    first = each_helm.training()["metadata"]["name"]
    each_helm.allow_one_job()
    assert "exceeded quota" in each_helm.upgrade({"training": {"passes": 3}})
    rolled = run(each_helm.helm, "rollback", "demo", "1", "-n", each_helm.namespace)
    if each_helm.helm == pinned_helm(3):
        assert rolled.returncode == 1
        assert "with the name" in rolled.stderr
    else:
        assert rolled.returncode == 0, rolled.stderr
        assert each_helm.training()["metadata"]["name"] == first


def test_helm_4_names_a_field_that_another_client_has_changed_and_helm_3_sets_it_back(
    each_helm: Release,
) -> None:
    """docs/how-to/troubleshooting.md says what to do then."""
    assert not each_helm.upgrade()
    name = each_helm.training()["metadata"]["name"]
    ObjectApi().patch("jobs", each_helm.namespace, name, {"spec": {"parallelism": 1}})
    error = each_helm.upgrade({"networkPolicy": {"enabled": False}})
    if each_helm.helm == pinned_helm(3):
        assert not error
    else:
        assert "conflict occurred while applying object" in error
        assert ".spec.parallelism" in error
        assert each_helm.training()["spec"]["parallelism"] == 1
        assert not each_helm.upgrade({"networkPolicy": {"enabled": False}}, "--force-conflicts")
    assert each_helm.training()["spec"]["parallelism"] == 2
    kubectl("label", "job", name, "-n", each_helm.namespace, "mine=yes")
    kubectl("annotate", "job", name, "-n", each_helm.namespace, "mine=yes")
    assert not each_helm.upgrade({"networkPolicy": {"enabled": True}}), "a label that the chart does not have"


def test_another_size_of_the_storage_makes_a_claim_of_that_size(release: Release) -> None:
    """The size of an existing claim cannot be changed."""
    assert not release.upgrade()
    (volume,) = release.volumes()
    assert not release.upgrade({"storage": {"size": "7Gi"}})
    until(lambda: len(release.volumes() - {volume}) == 1 == len(release.volumes()), "one volume", 60, 0.3)
    until(lambda: len(release.items("persistentvolumeclaims")) == 1, "the old claim is gone", 60, 0.3)
    (claim,) = release.items("persistentvolumeclaims")
    assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"
    release.wait_for_bound_claim()


def test_manifests_rendered_without_a_cluster_change_nothing_in_a_running_release(release: Release) -> None:
    """Argo CD and Flux render like this, and apply on the server."""
    queued = {"scheduling": {"queue": "research"}}
    assert not release.upgrade(queued)
    name = release.training()["metadata"]["name"]
    values = json.dumps(merge_values(VALUES, queued))
    argv = [tool("helm"), "template", "demo", str(CHART), "-n", release.namespace, "--skip-tests", "-f", "-"]
    alone, asking = (run(*argv, *words, stdin=values) for words in ((), ("--dry-run=server",)))
    assert alone.returncode == asking.returncode == 0, alone.stderr + asking.stderr
    assert alone.stdout == asking.stdout

    def state() -> dict[str, Any]:
        kinds = ("jobs", "persistentvolumeclaims", "services", "configmaps", "networkpolicies")
        found = {kind: release.items(kind) for kind in kinds}
        return {f"{kind} {one['metadata']['name']}": one.get("spec") for kind in found for one in found[kind]}

    for suspended in (True, False):  # as Kueue sets it
        release.suspend(name, suspended)
        before = state()
        for _ in range(2):
            apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller")
            kubectl(*apply, "-n", release.namespace, "-f", "-", stdin=alone.stdout)
        assert state() == before
        assert before[f"jobs {name}"]["suspend"] is suspended


def test_failed_upgrade_can_be_reverted_and_that_of_run_leaves_nothing(release: Release) -> None:
    assert not release.upgrade()
    pods = release.both_pods()
    (volume,) = release.volumes()
    release.allow_one_job()

    failing = {"training": {"passes": 3}, **ELSEWHERE}
    of_run = Helm(connect(None, None, release.namespace))
    with pytest.raises(CliError, match="exceeded quota"):
        of_run.upgrade("demo", merge_values(VALUES, failing), "run by a test")
    until(lambda: release.volumes() == {volume}, "helm has removed the volume that it had made", 60, 0.3)
    assert "exceeded quota" in release.upgrade(failing)
    assert len(release.volumes()) == 2, "without --cleanup-on-fail"
    assert release.pods() == pods

    helm, where = tool("helm"), ("-n", release.namespace)
    good = run(helm, "get", "values", "demo", *where, "--revision", "1", "-o", "json")
    argv = [helm, "upgrade", "demo", str(CHART), *where, "--reset-values", "-f", "-"]
    back = run(*argv, stdin=good.stdout)
    assert back.returncode == 0, back.stderr
    (other,) = release.volumes() - {volume}
    kubectl("delete", "pvc", other, "-n", release.namespace)
    release.delete_volumes(other)
    until(lambda: release.volumes() == {volume}, "the other volume is gone", 60, 0.3)
    assert release.pods() == pods


def test_failed_training_is_started_again_by_resume_and_by_the_same_upgrade_without_its_job(
    release: Release,
) -> None:
    values = {"training": {"deadlineSeconds": 2}}

    def failed_uid(earlier: str = "") -> Any:
        job = release.training()
        conditions = {each["type"] for each in job["status"].get("conditions", [])}
        return "Failed" in conditions and job["metadata"]["uid"] not in earlier and job["metadata"]["uid"]

    assert not release.upgrade(values)
    name, first = release.training()["metadata"]["name"], until(failed_uid, "the Job failed", 60, 0.3)
    assert not release.upgrade(values)
    assert release.training()["metadata"]["uid"] == first, "helm alone does not start a failed Job again"

    resumed = run("python", "-m", "launcher", "resume", "-n", release.namespace, "--release", "demo")
    assert resumed.returncode == 0, resumed.stderr
    second = until(lambda: failed_uid(first), "the Job that resume started", 60, 0.3)

    kubectl("delete", "job", name, "-n", release.namespace)
    assert not release.upgrade(values)
    assert release.training()["metadata"]["uid"] not in (first, second), "the same upgrade created it again"
    assert release.training()["metadata"]["name"] == name


def test_namespace_deleted_during_a_training_terminates_and_can_be_created_again(release: Release) -> None:
    assert not release.upgrade()
    release.both_pods()
    kubectl("delete", "namespace", release.namespace, "--wait=false")
    gone = "deletionTimestamp"
    until(lambda: all(gone in p["metadata"] for p in release.items("pods")), "pods asked to stop", 60, 0.3)
    # docs/how-to/troubleshooting.md: its Jobs hold a finalizer on the object of a lost pod.
    kubectl("delete", "jobs", "--all", "-n", release.namespace)
    release.delete_volumes()
    kubectl("wait", "--for=delete", f"namespace/{release.namespace}", "--timeout=180s")
    until(lambda: not release.volumes(), "its volume goes with it", 60, 0.3)

    kubectl("create", "namespace", release.namespace)
    assert not release.upgrade()
    release.wait_for_bound_claim()


def test_a_replaced_pod_has_the_settings_of_its_own_run_after_upgrades_and_a_rollback(
    release: Release,
) -> None:
    """Also a run of a schedule, whose CronJob an upgrade changes, and while another user has a release of its own."""
    ours: dict[str, Any] = {
        "training": {"schedule": "0 2 1 1 *", "passes": 3},
        "data": {"enabled": True},
        "trainers": 1,
    }

    def settings(of: Release, job: str) -> Any:
        """Return the settings of the only pod of a Job; None while it has none, or more."""
        pods = [one for one in of.items("pods") if "deletionTimestamp" not in one["metadata"]]
        mine = [one for one in pods if one["metadata"]["labels"]["batch.kubernetes.io/job-name"] == job]
        return len(mine) == 1 and pod_settings(mine[0])

    with new_namespace() as other_namespace:
        other = Release(other_namespace, release.helm)
        assert not other.upgrade({"training": {"passes": 7}, "trainers": 1})
        theirs = other.training()["metadata"]["name"]
        other_settings = until(lambda: settings(other, theirs), "the other user's pod", 60, 0.3)
        assert (other_settings["training"]["passes"], other_settings["release"]["name"]) == (7, "demo")

        assert not release.upgrade(ours)
        kubectl("create", "job", "night", "--from=cronjob/paddle-job", "-n", release.namespace)
        first = until(lambda: settings(release, "night"), "the run's pod", 60, 0.3)
        assert (first["training"]["passes"], first["data"]["source"]) == (3, "file://lines.txt")
        assert not release.upgrade(ours | {"training": ours["training"] | {"passes": 5}})
        [before] = release.pods()
        kubectl("delete", "pods", "--all", "-n", release.namespace)
        until(lambda: len(release.pods()) == 1 and release.pods() != {before}, "the replacement", 90, 0.3)
        assert settings(release, "night") == first
        kubectl("create", "job", "next", "--from=cronjob/paddle-job", "-n", release.namespace)
        changed = until(lambda: settings(release, "next"), "the next run's pod", 60, 0.3)
        assert changed == first | {"training": first["training"] | {"passes": 5}}

        back = run(release.helm, "rollback", "demo", "1", "-n", release.namespace)
        assert back.returncode == 0, back.stderr
        kubectl("create", "job", "again", "--from=cronjob/paddle-job", "-n", release.namespace)
        assert until(lambda: settings(release, "again"), "the pod after the rollback", 60, 0.3) == first
        assert settings(other, theirs) == other_settings
        kubectl("delete", "pv", "-l", f"paddle-training/namespace={other_namespace}", "--wait=false")
