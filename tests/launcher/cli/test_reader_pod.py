"""The reader pod's object, stale reader pods, and messages for API errors."""

import pytest

from launcher.cli import storage
from launcher.cli.releases import ReleaseRun

from .conftest import RUN_JSON


@pytest.fixture
def run():
    return ReleaseRun.from_json("paddle-training", "paddle", RUN_JSON)


def pod_of(run, writable=False, template=None):
    return storage.build_pod(run, "r-1", seconds=300, writable=writable, template=template)


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
