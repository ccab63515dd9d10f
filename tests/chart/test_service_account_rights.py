"""Rights of the pods' service account on a real API server: find rank 0, create Events, nothing else."""

from __future__ import annotations

import base64
import json
import time
import urllib.parse

import pytest
import yaml
from chart_tools import CHART, kubectl, one, render

from launcher.io.kubernetes_api import ApiRejectedError, PodApi
from launcher.reporting.notifications import post_event
from launcher.settings import TrainSettings
from launcher.supervisor.peers.coordinator_link import Rank0PodWatch
from local.paths import KUBECONFIG
from testkit.local_cluster import find_cluster
from testkit.object_api import ObjectApi
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def job(namespace):
    """Create the suspended Job and the Role as the chart renders them."""
    made = render(
        CHART / "ci" / "api-rendezvous.yaml", values={"scheduling": {"suspend": True}}, namespace=namespace
    )
    job = one(made, "Job", "training")
    wanted = [*(one(made, kind) for kind in ("ServiceAccount", "Role", "RoleBinding")), job]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}))
    return job["metadata"]["name"]


@pytest.fixture
def settings(namespace, job):
    uid = kubectl("get", "job", job, "-n", namespace, "-o", "jsonpath={.metadata.uid}")
    return TrainSettings.from_environ(
        pod_environ(
            JOB_NAMESPACE=namespace,
            PADDLE_LAUNCHER_K8S_JOB=job,
            PADDLE_LAUNCHER_K8S_JOB_UID=uid,
            rendezvous_seconds=60,
        )
    )


@pytest.fixture
def api(namespace, job, tmp_path):
    """Return a client of the API server with the rights of a training pod."""
    cluster = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (tmp_path / "token").write_text(kubectl("create", "token", "trainers", "-n", namespace), encoding="utf-8")
    url = urllib.parse.urlsplit(cluster["server"])
    env = {"KUBERNETES_SERVICE_HOST": url.hostname, "KUBERNETES_SERVICE_PORT_HTTPS": str(url.port)}
    return PodApi(env, namespace, tmp_path)


def test_created_event_is_shown_by_kubectl_describe_of_the_job(settings, api, namespace, job):
    message = {"event": "failed", "id": "1", "text": "rank 1 died", "time": time.time()}
    for _ in range(2):  # the second call is a retry after a lost answer
        post_event(settings, api, message)
    shown = kubectl("describe", "job", job, "-n", namespace)
    lines = [line.split() for line in shown.splitlines() if "rank 1 died" in line]
    assert [(line[0], line[1], line[3]) for line in lines] == [
        ("Warning", "TrainingFailed", "paddle-launcher")
    ]


def test_rank_0_is_found_when_its_pod_runs(settings, api, namespace, job):
    """A real pod would need an image, so the test creates one and sets its phase to Running."""
    labels = {"batch.kubernetes.io/job-name": job, "batch.kubernetes.io/job-completion-index": "0"}
    spec = {"schedulerName": "nobody", "containers": [{"name": "a", "image": "example.org/a"}]}
    find_cluster().apply("Pod", "rank-0", namespace, labels=labels, spec=spec)
    watch = Rank0PodWatch(settings, api)

    def find() -> str:
        try:
            return watch.find_address()
        except OSError as error:
            return str(error)

    until(lambda: "rank-0 is Pending" in find())
    status = {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}
    ObjectApi().patch("pods", namespace, "rank-0", {"status": status}, part="status")
    until(lambda: find() == "10.1.2.3")
    watch.close()


def test_service_account_has_no_other_rights(api, namespace, job):
    with pytest.raises(ApiRejectedError, match="denied POST of pods"):
        api.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})
    may = kubectl(
        "auth", "can-i", "--list", "-n", namespace, f"--as=system:serviceaccount:{namespace}:trainers"
    )
    own = [
        line.split() for line in may.splitlines() if line.startswith(("pods", "events", "secrets", "jobs"))
    ]
    assert sorted((line[0], line[-1]) for line in own) == [("events", "[create]"), ("pods", "watch]")], may
