"""Explanations of why pods wait and why they failed."""

import pytest

from launcher.cli.cluster import object_states

from .conftest import make_job, make_pod


def waiting(reason, message="", image="localhost/x:1"):
    return {"name": "train", "image": image, "state": {"waiting": {"reason": reason, "message": message}}}


def test_an_unschedulable_pod_is_explained_by_the_scheduler():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient memory.",
    }
    pod = make_pod("p", phase="Pending", conditions=[condition])
    assert (
        object_states.explain_pending(pod) == "Unschedulable: 0/3 nodes are available: 3 Insufficient memory."
    )


@pytest.mark.parametrize("key", ["containerStatuses", "initContainerStatuses"])
def test_an_image_that_cannot_be_pulled_is_in_the_reason(key):
    entry = waiting("ImagePullBackOff", "Back-off pulling image")
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    pod = make_pod("p", phase="Pending", conditions=scheduled, **{key: [entry]})
    assert (
        object_states.explain_pending(pod) == "ImagePullBackOff (image localhost/x:1): Back-off pulling image"
    )
    assert object_states.unusual_wait(pod)[0] in object_states.PERMANENT_WAITS


def test_a_missing_secret_is_in_the_reason():
    entry = waiting("CreateContainerConfigError", 'secret "aws" not found')
    pod = make_pod("p", phase="Pending", containerStatuses=[entry])
    assert object_states.explain_pending(pod) == 'CreateContainerConfigError: secret "aws" not found'


def test_a_failed_mount_is_explained_by_its_newest_event():
    pod = make_pod(
        "p",
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "True"}],
        containerStatuses=[waiting("ContainerCreating")],
    )
    events = [
        {"type": "Normal", "reason": "Scheduled", "message": "assigned"},
        {"type": "Warning", "reason": "FailedMount", "message": "hostPath type check failed\n"},
        {"type": "Normal", "reason": "Pulled", "message": "pulled"},
    ]
    assert object_states.explain_pending(pod, events) == "FailedMount: hostPath type check failed"


def test_a_running_init_container_is_in_the_reason():
    pod = make_pod(
        "p",
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "True"}],
        initContainerStatuses=[{"name": "await-data", "state": {"running": {}}}],
        containerStatuses=[waiting("PodInitializing")],
    )
    assert object_states.explain_pending(pod) == "init container await-data is running"


def test_a_termination_message_is_the_reason_of_a_failed_pod():
    ended = {"name": "train", "state": {"terminated": {"exitCode": 70, "message": "rank 1: trainer died\n"}}}
    assert (
        object_states.explain_failure(make_pod("p", phase="Failed", containerStatuses=[ended]))
        == "rank 1: trainer died"
    )


def test_a_container_killed_for_memory_is_explained():
    ended = {"name": "train", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    explanation = object_states.explain_failure(make_pod("p", phase="Failed", containerStatuses=[ended]))
    assert "exit code 137 (SIGKILL)" in explanation
    assert "more memory than its limit" in explanation


def test_an_evicted_pod_without_containers_is_explained_by_its_status():
    pod = make_pod("p", phase="Failed", reason="Evicted", message="The node was low on disk.")
    assert object_states.explain_failure(pod) == "Evicted: The node was low on disk."


def test_job_states_follow_their_conditions():
    assert object_states.job_state(None) == ("missing", "")
    assert object_states.job_state(make_job("j")) == ("running", "")
    assert object_states.job_state(make_job("j", ("Complete", "", ""))) == ("complete", "")
    failed = make_job("j", ("Failed", "PodFailurePolicy", "exit code 70"))
    assert object_states.job_state(failed) == ("failed", "PodFailurePolicy: exit code 70")
    assert object_states.job_state(make_job("j", suspended=True))[0] == "suspended"


def test_an_unbound_claim_is_explained_by_its_newest_event():
    claim = {"status": {"phase": "Pending"}, "spec": {"volumeName": "paddle-pv"}}
    events = [{"reason": "FailedBinding", "message": "volume paddle-pv is bound to another claim"}]
    explanation = object_states.explain_claim(claim, "paddle", events)
    assert "Pending, not Bound (it requests paddle-pv)" in explanation
    assert "bound to another claim" in explanation
    assert object_states.explain_claim({"status": {"phase": "Bound"}}, "paddle") == ""
    assert object_states.explain_claim(None, "paddle") == "the claim paddle does not exist"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (69, "another pod of this rank has taken its place"),
        (71, "it is replaced"),
        (143, "stopped by SIGTERM"),
        (137, "SIGKILL"),
    ],
)
def test_an_exit_code_that_does_not_fail_the_run_is_described(code, words):
    for message in ("", "the log's last line"):
        ended = {"name": "train", "state": {"terminated": {"exitCode": code, "message": message}}}
        explanation = object_states.explain_failure(make_pod("p", phase="Failed", containerStatuses=[ended]))
        assert explanation.startswith(f"container train exited with exit code {code} (")
        assert words in explanation
        assert explanation.endswith(message)


def test_a_scheduler_message_about_a_claim_being_bound_is_no_failure():
    message = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    events = [{"type": "Warning", "reason": "FailedScheduling", "message": message}]
    waits = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    pod = make_pod("p", phase="Pending", conditions=waits)
    assert object_states.explain_pending(pod, events) == "its storage claim is not bound yet"
    pod = make_pod("p", phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert object_states.explain_pending(pod, events) == "its containers are starting"
    assert "FailedScheduling" in object_states.explain_pending(make_pod("p", phase="Pending"), events)


@pytest.mark.parametrize(
    ("message", "is_driver"),
    [
        ("3 node(s) had untolerated taint {efs.csi.aws.com/agent-not-ready: }.", True),
        ("3 node(s) had untolerated taint(s).", True),
        ("driver name efs.csi.aws.com not found in the list of registered CSI drivers", True),
        ("3 Insufficient memory.", False),
    ],
)
def test_explain_pending_storage_driver_that_is_not_ready_has_fix(message, is_driver):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    event = {"type": "Warning", "reason": "FailedMount", "message": message}
    for pod, events in (
        (make_pod("p", phase="Pending", conditions=[condition]), []),
        (make_pod("p", phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}]), [event]),
    ):
        explanation = object_states.explain_pending(pod, events)
        assert message.rstrip(".") in explanation
        assert ("kubectl delete pod -n kube-system -l app=efs-csi-node" in explanation) is is_driver
