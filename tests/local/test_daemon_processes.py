"""Tests that daemons are identified by pid and start time, so that a reused pid is never signalled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from local.cluster import daemon_processes
from local.errors import LocalError


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon_processes, "RECORDS", tmp_path / "run")
    monkeypatch.setattr(daemon_processes, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(daemon_processes, "MARK", f"PADDLE_TRAINING_TEST_{os.getpid()}")
    yield
    daemon_processes.terminate_processes(daemon_processes.find_marked_processes(), seconds=0)


def test_parse_start_ticks_with_spaces_and_brackets_in_the_name():
    before = "42 (a) b (c)) S " + " ".join(str(n) for n in range(4, 22))
    assert daemon_processes.parse_start_ticks(f"{before} 777 0 0") == 777


def test_start_daemon_does_not_start_a_running_daemon_again():
    assert daemon_processes.start_daemon("sleeper", ["sleep", "60"])
    first = daemon_processes.running_daemon("sleeper")
    assert not daemon_processes.start_daemon("sleeper", ["sleep", "60"])
    assert daemon_processes.running_daemon("sleeper") == first
    daemon_processes.stop_daemons("sleeper")
    assert daemon_processes.running_daemon("sleeper") is None
    assert daemon_processes.find_marked_processes("sleeper") == []


def test_a_process_that_reused_the_pid_is_not_taken_for_the_daemon_and_not_killed():
    with subprocess.Popen(["sleep", "60"]) as stranger:
        real = daemon_processes.identify_process(stranger.pid)
        stale = replace(real, start=real.start - 1)
        daemon_processes.RECORDS.mkdir()
        (daemon_processes.RECORDS / "gone.json").write_text(json.dumps(asdict(stale)))
        assert daemon_processes.running_daemon("gone") is None
        daemon_processes.stop_daemons("gone")
        daemon_processes.terminate_processes([stale], seconds=0)
        assert stranger.poll() is None
        stranger.kill()


def test_a_record_of_another_boot_matches_no_process():
    me = daemon_processes.identify_process(os.getpid())
    assert daemon_processes.is_alive(me)
    assert not daemon_processes.is_alive(replace(me, boot="another"))


def test_a_daemon_whose_record_was_lost_is_stopped_before_it_is_started_again():
    daemon_processes.start_daemon("sleeper", ["sleep", "60"])
    lost = daemon_processes.running_daemon("sleeper")
    (daemon_processes.RECORDS / "sleeper.json").unlink()
    daemon_processes.start_daemon("sleeper", ["sleep", "60"])
    assert not daemon_processes.is_alive(lost)
    assert daemon_processes.find_marked_processes("sleeper") == [daemon_processes.running_daemon("sleeper")]


def test_an_incomplete_record_counts_as_missing(tmp_path):
    daemon_processes.RECORDS.mkdir()
    (daemon_processes.RECORDS / "torn.json").write_text('{"pid": 1')
    assert daemon_processes.running_daemon("torn") is None


def test_a_daemon_that_ignores_sigterm_is_killed():
    stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    daemon_processes.start_daemon("stubborn", [sys.executable, "-c", stubborn])
    while "1" not in (daemon_processes.LOGS / "stubborn.log").read_text():
        daemon_processes.check_daemon_runs("stubborn")
    daemon_processes.stop_daemons("stubborn", seconds=0.2)
    assert daemon_processes.find_marked_processes("stubborn") == []


def test_an_exited_daemon_is_reported_with_the_end_of_its_log():
    daemon_processes.start_daemon(
        "brief", [sys.executable, "-c", "import time; print('no such flag'); time.sleep(0.2)"]
    )
    while daemon_processes.running_daemon("brief"):
        for child in daemon_processes._children.values():
            child.poll()
    with pytest.raises(LocalError, match="no such flag"):
        daemon_processes.check_daemon_runs("brief")


def test_daemons_inherit_neither_kubeconfig_nor_credentials(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/elsewhere")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert not {"KUBECONFIG", "AWS_SECRET_ACCESS_KEY"} & set(daemon_processes._clean_environment())
