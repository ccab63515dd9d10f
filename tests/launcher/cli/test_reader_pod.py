"""The reader pod's object, stale reader pods, and messages for API errors."""

import pytest

from launcher.cli import errors
from launcher.cli.cluster.releases import ReleaseNotFoundError, ReleaseRun
from launcher.cli.storage import reader_pod

from .fake_cluster import FakeCluster


@pytest.fixture
def run(api):
    return ReleaseRun.from_json("paddle-training", "paddle", api.run)


def pod_of(run, writable=False, template=None):
    return reader_pod.build_pod(run, "r-1", "host:1", seconds=300, writable=writable, template=template)


def test_the_pod_meets_restricted_pod_security_and_has_no_token_and_a_deadline(run):
    spec = pod_of(run)["spec"]
    container = spec["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] == 300
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"] == {"cpu": "0", "memory": "0"}, "it fits in a full cluster"
    assert container["resources"]["limits"]["memory"] == "128Mi"


@pytest.mark.parametrize("writable", [False, True])
def test_the_claim_is_mounted_read_only_unless_the_command_writes(run, writable):
    spec = pod_of(run, writable)["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": run.claim, "readOnly": not writable}
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "jobs", "mountPath": run.job_path, "readOnly": not writable}
    ]


def test_the_pod_has_the_runs_image_user_release_and_tolerations(run):
    tolerations = [{"key": "training", "operator": "Exists"}]
    pod = pod_of(run, template={"tolerations": tolerations, "hostNetwork": True})
    assert pod["spec"]["containers"][0]["image"] == run.image
    assert pod["spec"]["securityContext"]["runAsUser"] == run.uid
    assert pod["spec"]["tolerations"] == tolerations
    assert "hostNetwork" not in pod["spec"]
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/name": "paddle-training",
        "app.kubernetes.io/instance": "paddle-training",
        "app.kubernetes.io/component": "reader",
    }


@pytest.mark.parametrize(
    ("owner", "phase", "stale"),
    [
        ("here:1", "Running", False),
        ("here:2", "Running", True),
        ("elsewhere:2", "Running", False),
        ("elsewhere:2", "Failed", True),
        ("", "Running", False),
    ],
)
def test_a_reader_pod_is_stale_when_it_or_its_creator_has_exited(owner, phase, stale):
    pod = {"metadata": {"annotations": {reader_pod.OWNER: owner}}, "status": {"phase": phase}}
    assert reader_pod.is_stale(pod, "here", lambda pid: pid == 1) is stale


def test_a_denied_call_is_reported_with_the_missing_verb_and_resource():
    body = (
        '{"kind":"Status","message":"pods is forbidden: User \\"eve\\" cannot create resource \\"pods\\" in '
        'API group \\"\\" in the namespace \\"paddle\\"","code":403}'
    )
    told = str(errors.api_error(403, body, "start the reader pod", "context local"))
    assert "eve may not create pods on context local (403)" in told
    assert "role with verb create on pods" in told


def test_a_rejection_by_pod_security_is_reported_with_the_servers_message():
    body = '{"message":"pods \\"r\\" is forbidden: violates PodSecurity \\"restricted:latest\\""}'
    assert "violates PodSecurity" in str(errors.api_error(403, body, "start the reader pod", "c"))


def test_expired_credentials_are_reported():
    assert "rejects the credentials (401)" in str(errors.api_error(401, "Unauthorized", "x", "c"))


def test_a_rejected_websocket_is_parsed_from_the_clients_text():
    text = (
        "Handshake status 403 Forbidden -+-+- {'audit-id': 'x'} -+-+- "
        'b\'{"kind":"Status","message":"cannot","code":403}\\n\''
    )
    assert errors.parse_handshake_error(text) == (403, '{"kind":"Status","message":"cannot","code":403}')
    assert errors.parse_handshake_error("connection refused") is None


def test_a_missing_release_is_reported_with_those_that_exist(monkeypatch):
    cluster = FakeCluster()
    problem = "namespace paddle on context test has no release a of this chart"
    assert str(ReleaseNotFoundError(cluster, "a")).startswith(f"{problem}, nor has any other namespace")
    for name, namespace in (("c", "three"), ("b", "two")):
        cluster.add_release(name, namespace)
    options = "--release c --namespace three; --release b --namespace two"
    assert str(ReleaseNotFoundError(cluster, "a")) == f"{problem}. Fix: choose one of: {options}"

    def reject(*_):
        raise errors.CliError("403")

    monkeypatch.setattr(cluster, "list_in_all_namespaces", reject)
    assert "this user may not list which others exist" in str(ReleaseNotFoundError(cluster, "a"))
