"""Tests of watching rank 0's pod and of posting events, with a real HTTPS API server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import DeadlineError, SettingsError
from launcher.io.kubernetes_api import ApiRejectedError, PodApi
from launcher.reporting.notifications import post_event
from launcher.settings import TrainSettings
from launcher.supervisor.peers import coordinator_link
from launcher.supervisor.peers.coordinator_link import Rank0PodWatch
from testkit.fake_api_server import FakeApiServer, create_certificate, make_pod
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ
from tests.launcher.supervisor.wait_for_rank0 import wait_for_rank_0

SOON = {"PADDLE_LAUNCHER_RENDEZVOUS_SECONDS": "2"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """Return an API server on loopback."""
    monkeypatch.setattr(coordinator_link, "RETRY_SECONDS", 0.05)
    server = FakeApiServer(tmp_path)
    yield server
    server.close()


def find_known_address(rank_0: Rank0PodWatch) -> str:
    """Return the address of rank 0, or an empty text if it is not known."""
    try:
        return rank_0.find_address()
    except OSError:
        return ""


def build_settings(**env: str) -> TrainSettings:
    """Return the settings of a training pod that finds rank 0 with the Kubernetes API."""
    return TrainSettings.from_environ(pod_environ(PADDLE_LAUNCHER_RENDEZVOUS="api", **env))


def test_the_running_pod_of_rank_0_is_found_by_its_job_and_index(server: FakeApiServer) -> None:
    server.pods = [make_pod("a", "10.0.0.10")]
    server.hangs.set()
    assert wait_for_rank_0(build_settings(), server.api()) == "10.0.0.10"
    assert server.queries[0]["labelSelector"] == (
        "batch.kubernetes.io/job-name=quick-start-0a1b2c3d,batch.kubernetes.io/job-completion-index=0"
    )
    assert server.queries[0]["path"] == "/api/v1/namespaces/paddle/pods"
    assert set(server.tokens) == {"Bearer token-1"}


def test_a_pending_pod_is_waited_for_with_one_watch(server: FakeApiServer) -> None:
    server.pods = [
        make_pod("old", "10.0.0.2", deleting=True),
        make_pod("dead", "10.0.0.3", phase="Failed"),
        make_pod("new", None, phase="Pending"),
    ]
    server.changes = [
        {"type": "DELETED", "object": make_pod("dead", "10.0.0.3")},
        {"type": "MODIFIED", "object": make_pod("new", "10.0.0.5")},
    ]
    server.hangs.set()
    assert wait_for_rank_0(build_settings(), server.api()) == "10.0.0.5"
    assert [("watch" in query, query.get("resourceVersion")) for query in server.queries] == [
        (False, None),
        (True, "7"),
    ]


def test_of_two_running_pods_the_newer_one_is_used(server: FakeApiServer) -> None:
    """After a forced deletion the old pod may still run and be listed as running for a while."""
    server.pods = [
        make_pod("new", "10.0.0.5", made="2026-01-02T00:00:00Z"),
        make_pod("old", "10.0.0.2", made="2026-01-01T00:00:00Z"),
    ]
    assert wait_for_rank_0(build_settings(), server.api()) == "10.0.0.5"


def test_the_ipv4_address_of_a_dual_stack_pod_is_used(server: FakeApiServer) -> None:
    server.pods = [make_pod("a", "fd00::5", podIPs=[{"ip": "fd00::5"}, {"ip": "10.0.0.5"}])]
    assert wait_for_rank_0(build_settings(), server.api()) == "10.0.0.5"


def test_the_address_of_a_replaced_rank_0_is_known_although_the_api_server_fails(
    server: FakeApiServer,
) -> None:
    """The link asks for the address at each connection attempt, which must not send a request."""
    server.pods = [make_pod("old", "10.0.0.2", made="1")]
    server.changes = [
        {"type": "MODIFIED", "object": make_pod("old", "10.0.0.2", deleting=True, made="1")},
        {"type": "ADDED", "object": make_pod("new", None, phase="Pending", made="2")},
        {"type": "MODIFIED", "object": make_pod("new", "10.0.0.3", made="2")},
    ]
    server.hangs.set()
    rank_0 = Rank0PodWatch(build_settings(), server.api())
    until(lambda: find_known_address(rank_0) == "10.0.0.3")
    assert ["watch" in query for query in server.queries] == [False, True]
    server.answers = [500] * 1000
    server.closing.set()
    until(lambda: len(server.queries) > 4)
    assert rank_0.find_address() == "10.0.0.3"
    rank_0.close()


def test_a_pod_that_the_kubelet_evicted_is_reported_with_the_reason(server: FakeApiServer) -> None:
    full = 'Usage of EmptyDir volume "work" exceeds the limit "12Mi". '
    server.pods = [make_pod("a", "10.0.0.2", phase="Failed", reason="Evicted", message=full)]
    server.hangs.set()
    rank_0 = Rank0PodWatch(build_settings(), server.api())
    until(server.asked.is_set)
    with pytest.raises(
        OSError, match=r'a is Failed .Evicted: Usage of EmptyDir volume "work" exceeds the limit'
    ):
        rank_0.find_address()
    rank_0.close()


def test_a_watch_that_ends_early_is_followed_by_a_new_list(server: FakeApiServer) -> None:
    server.pods = [make_pod("a", None, phase="Pending")]
    server.changes = [{"type": "ERROR", "object": {"code": 410}}]
    rank_0 = Rank0PodWatch(build_settings(), server.api())
    until(server.asked.is_set)
    server.pods = [make_pod("a", "10.0.0.5")]
    until(lambda: find_known_address(rank_0) == "10.0.0.5")
    rank_0.close()


def test_a_stop_interrupts_the_wait_for_the_api_server(server: FakeApiServer) -> None:
    server.pods = [make_pod("a", None, phase="Pending")]
    server.hangs.set()
    rank_0 = Rank0PodWatch(build_settings(), server.api())
    until(server.asked.is_set)
    rank_0.close()
    until(lambda: not any(thread.name == "find rank 0" for thread in threading.enumerate()))


def test_the_deadline_error_contains_what_the_pod_waits_for(server: FakeApiServer) -> None:
    unfit = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    ]
    pulling = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    server.pods = [
        make_pod("b", None, phase="Pending", conditions=unfit),
        make_pod("c", None, phase="Pending", containerStatuses=pulling),
        make_pod("d", "fd00::1"),
    ]
    server.hangs.set()
    with pytest.raises(DeadlineError) as caught:
        wait_for_rank_0(build_settings(**SOON), server.api())
    text = str(caught.value)
    assert "the pod of rank 0 of Job quick-start-0a1b2c3d does not run" in text
    assert "b is Pending (Unschedulable: 0/3 nodes fit)" in text
    assert "c is Pending (ImagePullBackOff)" in text
    assert "d is Running (it has no IPv4 address, only fd00::1)" in text


def test_temporary_errors_of_the_api_server_are_retried(server: FakeApiServer) -> None:
    server.answers = [500, 403, 401]
    server.pods = [make_pod("a", "10.0.0.5")]
    assert wait_for_rank_0(build_settings(), server.api()) == "10.0.0.5"
    assert server.answers == []


def test_a_permanent_403_is_reported_with_the_missing_role(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "REJECTED_SECONDS", 0.2)
    server.answers = [403] * 1000
    with pytest.raises(ApiRejectedError, match=r"403.*pods is forbidden.*list and watch on pods"):
        wait_for_rank_0(build_settings(), server.api())
    assert len(server.queries) > 1


def test_an_api_server_with_another_certificate_is_rejected(server: FakeApiServer, tmp_path: Path) -> None:
    create_certificate(tmp_path, server.account / "ca.crt")
    with pytest.raises(DeadlineError, match="CERTIFICATE_VERIFY_FAILED"):
        wait_for_rank_0(build_settings(**SOON), server.api())
    assert server.queries == []


def test_a_missing_service_account_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"rendezvous 'api' and notify.events need.*no service account"):
        PodApi({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, "paddle", tmp_path)


def test_an_event_refers_to_the_job_by_its_uid(server: FakeApiServer) -> None:
    s = build_settings(PADDLE_LAUNCHER_K8S_JOB_UID="0a-1b")
    post_event(s, server.api(), {"event": "restarted", "id": "1", "text": "ü" * 2000, "time": 0.0})
    (event,) = server.posted
    assert server.queries[0]["path"] == "/api/v1/namespaces/paddle/events"
    assert event["involvedObject"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": "paddle",
        "name": "quick-start-0a1b2c3d",
        "uid": "0a-1b",
    }
    assert (event["metadata"], event["type"], event["reason"]) == (
        {"name": "quick-start-0a1b2c3d.1", "namespace": "paddle"},
        "Warning",
        "TrainingRestarted",
    )
    assert event["lastTimestamp"] == "1970-01-01T00:00:00Z"
    assert len(event["message"].encode()) == 1024, "limit of the events API"


def test_an_event_that_exists_already_is_no_error(server: FakeApiServer) -> None:
    message = {"event": "started", "id": "1", "text": "x", "time": 0.0}
    server.answers = [409]
    post_event(build_settings(), server.api(), message)
    server.answers = [500]
    with pytest.raises(OSError, match="answered 500"):
        post_event(build_settings(), server.api(), message)
