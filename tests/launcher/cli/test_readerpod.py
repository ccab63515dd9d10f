"""The reader pod's object, which old ones go, and what a refused API call is told as."""

import pytest

from launcher.cli import problems, readerpod, session, view


@pytest.fixture
def run(api):
    return view.Run.of("paddle-training", "paddle", api.run)


def pod_of(run, writable=False, template=None):
    return readerpod.reader_pod(run, "r-1", "host:1", seconds=300, writable=writable, template=template)


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
def test_the_claim_is_mounted_read_only_unless_something_is_pushed(run, writable):
    spec = pod_of(run, writable)["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": run.claim, "readOnly": not writable}
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "jobs", "mountPath": run.job_path, "readOnly": not writable}
    ]


def test_the_pod_is_of_the_run_s_image_user_and_release_and_tolerates_what_the_training_does(run):
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
def test_a_reader_pod_is_stale_when_it_or_its_maker_has_ended(owner, phase, stale):
    pod = {"metadata": {"annotations": {readerpod.OWNER: owner}}, "status": {"phase": phase}}
    assert readerpod.is_stale(pod, "here", lambda pid: pid == 1) is stale


def test_a_refusal_names_the_missing_verb_and_resource():
    body = (
        '{"kind":"Status","message":"pods is forbidden: User \\"eve\\" cannot create resource \\"pods\\" in '
        'API group \\"\\" in the namespace \\"paddle\\"","code":403}'
    )
    told = str(problems.api_problem(403, body, "start the reader pod", "context local"))
    assert "eve may not create pods on context local (403)" in told
    assert "role with verb create on pods" in told


def test_a_pod_that_pod_security_refuses_is_told_in_the_servers_words():
    body = '{"message":"pods \\"r\\" is forbidden: violates PodSecurity \\"restricted:latest\\""}'
    assert "violates PodSecurity" in str(problems.api_problem(403, body, "start the reader pod", "c"))


def test_expired_credentials_are_told_as_such():
    assert "does not accept the credentials (401)" in str(problems.api_problem(401, "Unauthorized", "x", "c"))


def test_a_refused_websocket_is_read_from_the_clients_text():
    text = (
        "Handshake status 403 Forbidden -+-+- {'audit-id': 'x'} -+-+- "
        'b\'{"kind":"Status","message":"cannot","code":403}\\n\''
    )
    assert problems.handshake(text) == (403, '{"kind":"Status","message":"cannot","code":403}')
    assert problems.handshake("connection refused") is None


def test_a_release_that_is_not_there_names_those_that_are():
    told = session.nothing_found("a", "one", [("two", "b"), ("three", "c")], "context local")
    assert told == (
        "no release a of this chart in namespace one on context local. There is: --release b --namespace "
        "two; "
        "--release c --namespace three"
    )
    assert "may not be listed" in session.nothing_found("a", "one", None, "c")
    assert "none in any namespace" in session.nothing_found("a", "one", [], "c")
