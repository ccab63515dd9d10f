"""Explanations of why pods wait and why they failed."""

import pytest

from launcher.cli import object_states

from .conftest import DONE, FAILED, make_job, make_pod, unscheduled

SCHEDULED = [{"type": "PodScheduled", "status": "True"}]
EVENTS = [
    {"type": "Normal", "reason": "Scheduled", "message": "assigned"},
    {"type": "Warning", "reason": "FailedMount", "message": "hostPath type check failed\n"},
    {"type": "Normal", "reason": "Pulled", "message": "pulled"},
]


def waiting(reason, message=""):
    state = {"waiting": {"reason": reason, "message": message}}
    return [{"name": "train", "image": "localhost/x:1", "state": state}]


def explain_failure(status=None, **terminated):
    ended = {"name": "train", "state": {"terminated": terminated}}
    pod = make_pod("p", phase="Failed", containerStatuses=[ended], **(status or {}))
    return object_states.explain_failure(pod)


@pytest.mark.parametrize(
    ("status", "events", "expected"),
    [
        ({"conditions": unscheduled("3 Insufficient memory.")}, [], "Unschedulable: 3 Insufficient memory."),
        (
            {"containerStatuses": waiting("ImagePullBackOff", "Back-off")},
            [],
            "ImagePullBackOff (image localhost/x:1): Back-off",
        ),
        (
            {"initContainerStatuses": waiting("ImagePullBackOff")},
            [],
            "ImagePullBackOff (image localhost/x:1)",
        ),
        (
            {"containerStatuses": waiting("CreateContainerConfigError", 'secret "aws" not found')},
            [],
            'CreateContainerConfigError: secret "aws" not found',
        ),
        (
            {"containerStatuses": waiting("ContainerCreating")},
            EVENTS,
            "FailedMount: hostPath type check failed",
        ),
        (
            {
                "initContainerStatuses": [{"name": "await-data", "state": {"running": {}}}],
                "containerStatuses": waiting("PodInitializing"),
            },
            [],
            "init container await-data is running",
        ),
    ],
)
def test_a_pending_pod_is_explained_by_its_scheduler_container_or_event(status, events, expected):
    pod = make_pod("p", phase="Pending", **{"conditions": SCHEDULED, **status})
    assert object_states.explain_pending(pod, events) == expected


def test_job_states_follow_their_conditions():
    assert object_states.job_state(None) == ("missing", "")
    assert object_states.job_state(make_job("j")) == ("running", "")
    assert object_states.job_state(make_job("j", DONE)) == ("complete", "")
    failed = make_job("j", FAILED)
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


@pytest.mark.parametrize("message", ["", "the log's last line"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (69, "another pod of this rank has taken its place"),
        (71, "it is replaced"),
        (143, "stopped by SIGTERM"),
        (137, "SIGKILL), OOMKilled: it used more memory than its limit"),
    ],
)
def test_an_exit_code_that_does_not_fail_the_run_is_described(code, words, message):
    reason = {"reason": "OOMKilled"} if code == 137 else {}
    explanation = explain_failure(exitCode=code, message=message, **reason)
    assert explanation.startswith(f"container train exited with exit code {code} (")
    assert words in explanation
    assert explanation.endswith(message)


def test_a_scheduler_message_about_a_claim_being_bound_is_no_failure():
    message = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    events = [{"type": "Warning", "reason": "FailedScheduling", "message": message}]
    pod = make_pod("p", phase="Pending", conditions=unscheduled(message))
    assert object_states.explain_pending(pod, events) == "its storage claim is not bound yet"
    pod = make_pod("p", phase="Pending", conditions=SCHEDULED)
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
    event = {"type": "Warning", "reason": "FailedMount", "message": message}
    for pod, events in (
        (make_pod("p", phase="Pending", conditions=unscheduled(message)), []),
        (make_pod("p", phase="Pending", conditions=SCHEDULED), [event]),
    ):
        explanation = object_states.explain_pending(pod, events)
        assert message.rstrip(".") in explanation
        assert ("kubectl delete pod -n kube-system -l app=efs-csi-node" in explanation) is is_driver


FULL = 'Usage of EmptyDir volume "work" exceeds the limit "12Mi". '
LOW_MEMORY = "The node was low on resource: memory. Container train was using 2Gi."
GONE = {"type": "DisruptionTarget", "status": "True"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            {"reason": "Evicted", "message": FULL},
            f"Evicted: {FULL.rstrip(' .')}. Fix: increase workDir.sizeLimit",
        ),
        (
            {
                "reason": "Evicted",
                "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            },
            "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. Fix: increase "
            "workDir.sizeLimit, which is also the pod's request for disk, or use nodes with more disk",
        ),
        ({"reason": "Evicted", "message": LOW_MEMORY}, f"Evicted: {LOW_MEMORY}"),
        ({"reason": "DeadlineExceeded", "message": "Pod was active"}, "DeadlineExceeded: Pod was active"),
        ({"reason": "NodeLost"}, "NodeLost"),
        (
            {"conditions": [{**GONE, "reason": "PreemptionByScheduler", "message": "for another"}]},
            "PreemptionByScheduler: for another",
        ),
        (
            {"conditions": [{**GONE, "reason": "DeletionByTaintManager", "message": "a taint"}]},
            "DeletionByTaintManager: a taint",
        ),
    ],
)
@pytest.mark.parametrize("code", [143, 137, 71])
def test_a_pod_that_kubernetes_ended_is_explained_by_that_and_not_by_its_exit_code(status, expected, code):
    assert explain_failure(status, exitCode=code, message="received SIGTERM") == expected


@pytest.mark.parametrize("status", [{}, {"reason": "Evicted", "message": FULL}])
def test_the_message_of_a_final_error_is_the_cause_although_the_pod_was_evicted_afterwards(status):
    assert explain_failure(status, exitCode=65, message="the loss is NaN\n") == "the loss is NaN"
