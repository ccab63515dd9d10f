"""Why pods wait and why they ended."""

import pytest

from launcher.cli import reasons


def waiting(reason, message="", image="localhost/x:1"):
    return {"name": "train", "image": image, "state": {"waiting": {"reason": reason, "message": message}}}


def test_an_unschedulable_pod_says_what_the_scheduler_says(api):
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient memory.",
    }
    pod = api.pod("p", phase="Pending", conditions=[condition])
    assert reasons.pending_reason(pod) == "Unschedulable: 0/3 nodes are available: 3 Insufficient memory."


@pytest.mark.parametrize("key", ["containerStatuses", "initContainerStatuses"])
def test_an_image_that_cannot_be_pulled_is_named(api, key):
    entry = waiting("ImagePullBackOff", "Back-off pulling image")
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    pod = api.pod("p", phase="Pending", conditions=scheduled, **{key: [entry]})
    assert reasons.pending_reason(pod) == "ImagePullBackOff (image localhost/x:1): Back-off pulling image"
    assert reasons.stuck_waiting(pod)[0] in reasons.HOPELESS


def test_a_missing_secret_is_told(api):
    entry = waiting("CreateContainerConfigError", 'secret "aws" not found')
    pod = api.pod("p", phase="Pending", containerStatuses=[entry])
    assert reasons.pending_reason(pod) == 'CreateContainerConfigError: secret "aws" not found'


def test_a_mount_that_fails_is_told_by_its_newest_event(api):
    pod = api.pod(
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
    assert reasons.pending_reason(pod, events) == "FailedMount: hostPath type check failed"


def test_an_init_container_at_work_is_named(api):
    pod = api.pod(
        "p",
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "True"}],
        initContainerStatuses=[{"name": "await-data", "state": {"running": {}}}],
        containerStatuses=[waiting("PodInitializing")],
    )
    assert reasons.pending_reason(pod) == "init container await-data is at work"


def test_a_termination_message_is_the_reason_of_a_failed_pod(api):
    ended = {"name": "train", "state": {"terminated": {"exitCode": 70, "message": "rank 1: trainer died\n"}}}
    assert (
        reasons.termination(api.pod("p", phase="Failed", containerStatuses=[ended])) == "rank 1: trainer died"
    )


def test_a_container_killed_for_memory_is_said_so(api):
    ended = {"name": "train", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    told = reasons.termination(api.pod("p", phase="Failed", containerStatuses=[ended]))
    assert "exit code 137 (SIGKILL)" in told
    assert "more memory than its limit" in told


def test_an_evicted_pod_without_containers_tells_its_own_reason(api):
    pod = api.pod("p", phase="Failed", reason="Evicted", message="The node was low on disk.")
    assert reasons.termination(pod) == "Evicted: The node was low on disk."


def test_job_states_follow_their_conditions(api):
    assert reasons.job_state(None) == ("missing", "")
    assert reasons.job_state(api.job("j")) == ("running", "")
    assert reasons.job_state(api.job("j", ("Complete", "", ""))) == ("complete", "")
    failed = api.job("j", ("Failed", "PodFailurePolicy", "exit code 70"))
    assert reasons.job_state(failed) == ("failed", "PodFailurePolicy: exit code 70")
    suspended = {**api.job("j"), "spec": {"suspend": True}}
    assert reasons.job_state(suspended)[0] == "suspended"


def test_an_unbound_claim_tells_the_newest_event():
    claim = {"status": {"phase": "Pending"}, "spec": {"volumeName": "paddle-pv"}}
    events = [{"reason": "FailedBinding", "message": "volume paddle-pv is bound to another claim"}]
    told = reasons.claim_reason(claim, "paddle", events)
    assert "Pending, not Bound (it wants paddle-pv)" in told
    assert "bound to another claim" in told
    assert reasons.claim_reason({"status": {"phase": "Bound"}}, "paddle") == ""
    assert reasons.claim_reason(None, "paddle") == "the claim paddle does not exist"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (69, "another pod of its rank has its place"),
        (71, "another one of its rank may"),
        (143, "told to stop"),
        (137, "SIGKILL"),
    ],
)
def test_an_exit_code_that_is_not_the_runs_end_is_told_in_words(api, code, words):
    for message in ("", "the log's last line"):
        ended = {"name": "train", "state": {"terminated": {"exitCode": code, "message": message}}}
        told = reasons.termination(api.pod("p", phase="Failed", containerStatuses=[ended]))
        assert told.startswith(f"container train ended with exit code {code} (")
        assert words in told
        assert told.endswith(message)


def test_what_the_scheduler_said_of_a_claim_that_is_being_bound_is_no_failure(api):
    said = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    events = [{"type": "Warning", "reason": "FailedScheduling", "message": said}]
    waits = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]
    pod = api.pod("p", phase="Pending", conditions=waits)
    assert reasons.pending_reason(pod, events) == "its storage claim is not bound yet"
    pod = api.pod("p", phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert reasons.pending_reason(pod, events) == "its containers are being made"
    assert "FailedScheduling" in reasons.pending_reason(api.pod("p", phase="Pending"), events)
