"""Tests of finding rank 0's pod and of posting events, with a real HTTPS API server on loopback."""

from __future__ import annotations

import contextlib
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.paths import OutputPaths
from launcher.reporting.notifications import post_event
from launcher.settings import TrainSettings
from launcher.supervisor.peers import coordinator_link
from launcher.supervisor.peers.coordinator_link import Rank0, Rank0Locator, Rank0PodWatch
from launcher.supervisor.shared_storage.output_lease import (
    OutputLease,
    build_credential,
    hash_credential,
    write_secret,
)
from launcher.supervisor.timings import Timings
from testkit.fake_api_server import FakeApiServer, create_certificate, make_pod
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import build_coordinator, pod_environ, train_settings


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """Return an API server on loopback."""
    monkeypatch.setattr(coordinator_link, "RETRY_SECONDS", 0.05)
    server = FakeApiServer(tmp_path)
    yield server
    server.close()


Watch = Callable[[], Rank0PodWatch]


@pytest.fixture
def start_watch(server: FakeApiServer) -> Iterator[Watch]:
    """Return a function that starts to watch rank 0's pod through the API server."""
    started: list[Rank0PodWatch] = []

    def start() -> Rank0PodWatch:
        started.append(Rank0PodWatch(build_settings(), server.api()))
        return started[-1]

    yield start
    for watch in started:
        watch.close()


def build_settings(**env: str) -> TrainSettings:
    """Return the settings of a training pod that finds rank 0 with the Kubernetes API."""
    return TrainSettings.from_environ(pod_environ(rendezvous="api", **env))


def await_address(watch: Rank0PodWatch, address: str) -> None:
    """Wait until the watch has found this address of rank 0."""

    def is_found() -> bool:
        with contextlib.suppress(OSError):
            return watch.find_address() == address
        return False

    until(is_found, f"the address {address}")


def await_problem(watch: Rank0PodWatch, *texts: str) -> None:
    """Wait until the watch says with all these texts why rank 0 has no address."""

    def is_reported() -> bool:
        with pytest.raises(
            OSError, match="the pod of rank 0 of Job quick-start-0a1b2c3d does not run"
        ) as caught:
            watch.find_address()
        return all(text in str(caught.value) for text in texts)

    until(is_reported, f"a message with {texts}")


@pytest.mark.parametrize(
    "pods",
    [
        [make_pod("new", "10.0.0.5", made="2"), make_pod("old", "10.0.0.2", made="1")],
        [make_pod("a", "fd00::5", podIPs=[{"ip": "fd00::5"}, {"ip": "10.0.0.5"}])],
    ],
    ids=["newer", "dual-stack"],
)
def test_the_newest_running_pod_of_rank_0_is_found_by_its_job_and_index(
    server: FakeApiServer, start_watch: Watch, pods: list[dict[str, Any]]
) -> None:
    """After a forced deletion the old pod may still run and be listed as running for a while."""
    server.pods = pods
    server.hangs.set()
    await_address(start_watch(), "10.0.0.5")
    assert server.queries[0]["labelSelector"] == (
        "batch.kubernetes.io/job-name=quick-start-0a1b2c3d,batch.kubernetes.io/job-completion-index=0"
    )
    assert server.queries[0]["path"] == "/api/v1/namespaces/paddle/pods"
    assert set(server.tokens) == {"Bearer token-1"}


def test_a_replaced_pod_is_found_with_one_watch_and_known_although_the_api_server_fails(
    server: FakeApiServer, start_watch: Watch
) -> None:
    """The link asks for the address at each connection attempt, which must not send a request."""
    server.pods = [make_pod("old", "10.0.0.2", made="1"), make_pod("dead", "10.0.0.3", phase="Failed")]
    server.changes = [
        {"type": "MODIFIED", "object": make_pod("old", "10.0.0.2", deleting=True, made="1")},
        {"type": "DELETED", "object": make_pod("old", "10.0.0.2", made="1")},
        {"type": "ADDED", "object": make_pod("new", None, phase="Pending", made="2")},
        {"type": "MODIFIED", "object": make_pod("new", "10.0.0.3", made="2")},
    ]
    server.hangs.set()
    watch = start_watch()
    await_address(watch, "10.0.0.3")
    asked = [("watch" in query, query.get("resourceVersion")) for query in server.queries]
    assert asked == [(False, None), (True, "7")]
    server.answers = [500] * 1000
    server.closing.set()
    until(lambda: len(server.queries) > 4)
    assert watch.find_address() == "10.0.0.3"


@pytest.mark.parametrize("rendezvous", ["api", "lease"])
def test_the_lease_of_this_run_has_the_address_of_rank_0_unless_the_api_server_is_asked(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rendezvous: str
) -> None:
    monkeypatch.setattr(coordinator_link, "PodApi", lambda *_: server.api())
    settings = train_settings(tmp_path / "shared", rendezvous=rendezvous)
    settings.layout.output.mkdir(parents=True)
    credential = build_credential(settings, "secret")
    write_secret(settings.layout.run_secret, "secret")
    locator = Rank0Locator(settings)

    def find(run: str = settings.run_id, token: str = hash_credential(credential)) -> Rank0:
        holder = replace(settings, k8s_job=run, pod_name="pod-0")
        lock = OutputPaths(settings.layout.output).lock
        OutputLease(lock, holder, Timings(), token=token, address="10.0.0.1").write_to(lock)
        return locator.find()

    if rendezvous == "api":
        with pytest.raises(OSError, match="the pod of rank 0 of Job quick-start-0a1b2c3d does not run"):
            find()
        server.pods = [make_pod("a", "10.0.0.5")]
        server.hangs.set()
        assert locator._pod_watch is not None
        await_address(locator._pod_watch, "10.0.0.5")
    assert find() == ("10.0.0.5" if rendezvous == "api" else "10.0.0.1", credential)
    with pytest.raises(OSError, match="no pod of this run holds"):
        find(run="another-run")
    with pytest.raises(OSError, match="does not have the secret of the pod pod-0"):
        find(token="of a later pod")
    locator.close()


@pytest.mark.slow
def test_a_late_write_of_an_earlier_rank_0_keeps_no_rank_out(tmp_path: Path) -> None:
    """A storage that hung may write the secret of a pod that lost its lease after that of its successor."""
    settings = train_settings(tmp_path)
    settings.layout.run_secret.parent.mkdir()
    settings.layout.run_secret.touch(0o644)
    rank_0 = build_coordinator(settings, address="10.0.0.1")
    rank_0.acquire_output(lambda: None)
    locator = Rank0Locator(settings)
    assert locator.find() == ("10.0.0.1", rank_0.credential)
    settings.layout.run_secret.write_text("the secret of an earlier pod")
    with pytest.raises(OSError, match="does not have the secret of the pod"):
        locator.find()

    def is_found() -> bool:
        with contextlib.suppress(OSError):
            return locator.find().credential == rank_0.credential
        return False

    until(is_found, "the secret of the pod that holds the lease")
    assert stat.S_IMODE(settings.layout.run_secret.stat().st_mode) == 0o600
    rank_0.lock.release()


def test_a_message_says_what_the_pods_of_rank_0_do_and_a_stop_ends_the_watch(
    server: FakeApiServer, start_watch: Watch
) -> None:
    watch = start_watch()
    await_problem(watch, "Kubernetes has not created it yet")
    gone = make_pod("e", "10.0.0.2", deleting=True)
    server.pods = [make_pod("b", None, phase="Pending"), make_pod("d", "fd00::1"), gone]
    server.hangs.set()
    await_problem(watch, "b is Pending", "d is Running without an IPv4 address", "e is being deleted")
    watch.close()
    until(lambda: not any(thread.name == "find rank 0" for thread in threading.enumerate()))


def test_errors_and_early_ends_of_a_watch_are_followed_by_a_new_list_and_a_403_names_the_missing_role(
    server: FakeApiServer, start_watch: Watch
) -> None:
    server.answers = [500, *[403] * 1000]
    watch = start_watch()
    await_problem(watch, "403", "pods is forbidden", "list and watch on pods")
    server.pods, server.changes = (
        [make_pod("a", None, phase="Pending")],
        [{"type": "ERROR", "object": {"code": 410}}],
    )
    server.answers = []
    await_problem(watch, "a is Pending")
    server.pods = [make_pod("a", "10.0.0.5")]
    await_address(watch, "10.0.0.5")


def test_an_api_server_with_another_certificate_is_rejected(
    server: FakeApiServer, start_watch: Watch, tmp_path: Path
) -> None:
    create_certificate(tmp_path, server.account / "ca.crt")
    await_problem(start_watch(), "CERTIFICATE_VERIFY_FAILED")
    assert server.queries == []


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
