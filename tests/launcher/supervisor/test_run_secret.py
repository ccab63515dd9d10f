"""Tests of the secret with which the ranks of a run authenticate: nobody finds it in what others may read."""

from __future__ import annotations

import contextlib
import http.client
import json
import stat
from pathlib import Path

import pytest

from launcher.supervisor.peers.coordinator_link import Rank0Locator
from launcher.supervisor.shared_storage.output_lease import build_credential
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import LoopbackGang, build_coordinator, train_settings

pytestmark = pytest.mark.slow


def find_files_with(text: str, folder: Path) -> list[Path]:
    """Return the files below `folder` that contain `text`, as paths relative to it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.relative_to(folder) for path in files if text.encode() in path.read_bytes()]


def post_state(gang: LoopbackGang, secret: str) -> int:
    """Return the HTTP status of rank 0's answer to an empty state from a sender that knows `secret`."""
    settings = train_settings(gang.root, PADDLE_LAUNCHER_K8S_JOB=gang.run)
    headers = {"Authorization": f"Bearer {build_credential(settings, secret)}"}
    connection = http.client.HTTPConnection(gang.addresses[0], settings.peer_port, timeout=20)
    connection.request("POST", "/state", b"{}", headers)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


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


def test_nothing_that_others_may_read_contains_the_secret_of_a_run(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2, report=True, FAKE_PASS_SECONDS="0.5") as gang:
        gang.start().wait_until(gang.reports_training)
        secret_file = gang.job / ".run-secret"
        secret = secret_file.read_text()
        assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
        assert find_files_with(secret, gang.job) == [Path(".run-secret")]
        lock, record = gang.read_json("run.lock"), gang.read_json("run.json")
        for known in (lock["token"], record["holder"], *record["incarnations"], ""):
            assert post_state(gang, known) == 401
        assert post_state(gang, secret) == 400, "the credential is right; only the state is not one"
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        assert find_files_with(secret, gang.job) == [Path(".run-secret")]
        assert secret not in gang.pod_log(0) + gang.pod_log(1)
        assert json.loads((gang.output / "run.copy.json").read_text())["holder"] == record["holder"]
    with LoopbackGang(tmp_path, trainers=2, run="quick-start-ffffffff", batch_size=7) as gang:
        gang.start().wait_until(gang.reports_training)
        assert (gang.job / ".run-secret").read_text() != secret, "each start has another secret"
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
    assert list((gang.job / "runs").iterdir())
    assert find_files_with(secret, gang.job) == []
