"""Tests of the lease that `run` holds on a release: taken over, lost, and renewed although an answer was lost."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import launch_training, run_lease
from launcher.cli.cluster_api import NotFoundError
from launcher.cli.errors import CliError, OtherRunError
from launcher.cli.job_sessions import ClusterSession
from testkit.waiting import until

from .conftest import K8S_JOB
from .test_run_command_changes_a_release import launch, make_cluster


def test_an_expired_lease_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, now = make_cluster(), [0.0]
    cluster.create("lease", {"metadata": {"name": "mine-run"}, "spec": {"holderIdentity": "eve@gone:1"}})

    def sleep(seconds: float) -> None:
        assert cluster.leases["mine-run"]["spec"]["holderIdentity"] == "eve@gone:1"
        now[0] += seconds

    monkeypatch.setattr(run_lease, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with run_lease.hold_lease(cluster, "mine"):
        assert now[0] >= run_lease.EXPIRED_SECONDS
        assert cluster.leases["mine-run"]["spec"]["holderIdentity"].startswith(run_lease.user_and_host())
    assert not cluster.leases


def test_a_lease_in_a_namespace_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster()

    def reject(*_: object) -> None:
        raise NotFoundError('namespaces "paddel" not found')

    def sleep(_: float) -> None:
        pytest.fail("it waits for a namespace that nobody creates")

    monkeypatch.setattr(cluster, "create", reject)
    monkeypatch.setattr(run_lease, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    with (
        pytest.raises(CliError, match='"paddel" not found'),
        run_lease.hold_lease(cluster, "x"),
    ):
        pass


def test_a_run_that_lost_its_lease_changes_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lease, "RENEW_SECONDS", 0.05)
    cluster = make_cluster("paddle-training")

    def taken_over(*_: object) -> None:
        lease = cluster.leases["paddle-training-run"]
        spec = {**lease["spec"], "holderIdentity": "eve@there:1"}
        cluster.leases["paddle-training-run"] = {**lease, "spec": spec}
        until(lambda: sum(one.name == "lease" for one in threading.enumerate()) == 1, "the renewal's end")

    monkeypatch.setattr(launch_training, "_upload", taken_over)
    with pytest.raises(
        OtherRunError, match=r"another command took it over\. The release was not changed\. Fix"
    ):
        launch(cluster, replace=True)
    assert ClusterSession(cluster, "paddle-training").run().k8s_job == K8S_JOB
    assert cluster.leases, "it is another's"


def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lease, "RENEW_SECONDS", 0.02)
    cluster = make_cluster()
    patch, sent = cluster.patch, []

    def lose_the_first_answer(*given: Any) -> Any:
        sent.append(patch(*given))
        if len(sent) == 1:
            raise CliError("the connection was closed")
        return sent[-1]

    monkeypatch.setattr(cluster, "patch", lose_the_first_answer)
    with run_lease.hold_lease(cluster, "mine") as check:
        until(lambda: len(sent) > 2, "more renewals")
        check()
    assert not cluster.leases, "it is deleted at the end"
