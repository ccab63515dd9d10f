"""The script of `helm test`: its checks of storage, DNS, rank 0 and policies. Suites of the chart test its pod."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from chart_tools import CHART

from testkit.http_servers import serving

JOB = "moods-0123abcd"


@pytest.fixture(scope="module")
def checks():
    spec = importlib.util.spec_from_file_location("helm_test", CHART / "files" / "helm_test.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rank_0():
    """Serve `/healthz` on loopback as rank 0's launcher does; yield the address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    with serving(Answer) as server:
        yield f"http://127.0.0.1:{server.server_port}/healthz"


@pytest.fixture
def lock(tmp_path):
    file = tmp_path / "run.lock"
    file.write_text(json.dumps({"runId": JOB, "beat": 1}))
    return file


@pytest.fixture
def renewed(lock):
    """Renew the lock in a thread until the end of the test, as a running rank 0 does."""
    stopped = threading.Event()

    def renew():
        beat = 1
        while not stopped.wait(0.05):
            beat += 1
            temporary = lock.with_suffix(".new")
            temporary.write_text(json.dumps({"runId": JOB, "beat": beat}))
            temporary.replace(lock)

    thread = threading.Thread(target=renew)
    thread.start()
    yield lock
    stopped.set()
    thread.join()


def test_storage_check_leaves_no_file_and_fails_for_a_missing_folder(checks, tmp_path):
    assert "can be written and read" in checks.check_storage(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="No such file"):
        checks.check_storage(tmp_path / "absent")


def test_dns_check_fails_for_a_name_that_does_not_exist(checks):
    assert "127.0.0.1" in checks.check_dns("127.0.0.1")
    with pytest.raises(OSError, match=r"\w"):
        checks.check_dns("name.invalid")


@pytest.mark.parametrize(
    ("job", "path"), [(JOB, ""), ("", "?{run}")], ids=["one run", "any run of a schedule"]
)
def test_running_rank_0_is_reached(checks, renewed, rank_0, job, path):
    said = checks.check_rank_0(renewed, job, rank_0 + path, 5, 5)
    assert said == f"rank 0: {rank_0 + path.format(run=JOB)} answered 200"


def test_running_rank_0_that_does_not_answer_fails(checks, renewed):
    with pytest.raises(OSError, match="did not answer for 0 s"):
        checks.check_rank_0(renewed, JOB, "http://127.0.0.1:1/healthz", 5, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no training runs"), ({"runId": JOB}, "has not changed"), ({"runId": "b"}, "another run than")],
)
def test_rank_0_is_not_requested_without_a_training(checks, lock, content, said):
    lock.unlink() if content is None else lock.write_text(json.dumps(content))
    assert said in checks.check_rank_0(lock, JOB, "http://127.0.0.1:1/healthz", 0.3, 0)


def test_failed_check_is_printed_with_its_fix_and_the_others_still_run(checks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checks, "check_dns", lambda name: f"DNS: {name} is fine")
    environ = {"JOB_PATH": str(tmp_path / "absent"), "JOB_NAME": "a", "K8S_JOB": JOB, "RANK_0": ""}
    environ |= {"SERVER": "{run}-0.gang:7164", "REQUIRED": "true"}
    assert checks.main(environ) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("storage failed: ")
    assert "Fix: " in lines[0]
    assert lines[1:3] == ["DNS: kubernetes.default.svc is fine", "rank 0: no training runs"]
    assert lines[3].startswith("policies: not checked, because no running training answered")
    Path(environ["JOB_PATH"]).mkdir()
    assert checks.main(environ) == 0


@pytest.fixture
def server():
    """Listen on loopback as a parameter server does; yield the socket and its address as the pod gets it."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        yield listener, f"127.0.0.1:{listener.getsockname()[1]}"


REACHED = "rank 0: http://rank-0/healthz answered 200"


def test_server_that_the_pod_can_reach_fails_the_test_where_policies_must_be_enforced(checks, lock, server):
    with pytest.raises(
        OSError, match=r"could connect to .*, so the cluster does not enforce NetworkPolicies"
    ):
        checks.check_policy(lock, REACHED, server[1], "true", 1, 5)
    said = checks.check_policy(lock, REACHED, server[1], "false", 1, 5)
    assert said.startswith("policies: WARNING: this pod could connect")
    assert "networkPolicy.requireEnforced is false" in said


def test_server_whose_packets_are_dropped_is_closed(checks, lock):
    with socket.create_server(
        ("127.0.0.1", 0), backlog=0
    ) as full:  # the kernel drops what exceeds the backlog
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            said = checks.check_policy(lock, REACHED, f"127.0.0.1:{address[1]}", "true", 1, 0.5)
    assert said == f"policies: 127.0.0.1:{address[1]} is closed to this pod"


def test_policy_check_says_when_it_could_not_check(checks, lock):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said = checks.check_policy(lock, REACHED, f"127.0.0.1:{port}", "true", 0, 5)
    assert said.startswith(f"policies: not checked, because 127.0.0.1:{port} refused")
    said = checks.check_policy(lock, "rank 0: no training runs", f"127.0.0.1:{port}", "true", 0, 5)
    assert said.startswith("policies: not checked, because no running training answered. Run helm test again")
    lock.unlink()
    said = checks.check_policy(lock, REACHED, f"127.0.0.1:{port}", "true", 0, 5)
    assert said.startswith("policies: not checked"), "the run ended after rank 0 had answered"
    assert "networkPolicy.enabled is false" in checks.check_policy(lock, REACHED, "", "true", 0, 5)
