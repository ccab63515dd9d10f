"""A daemon is known by pid and start time; a recycled number is never signalled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from local.cluster import processes
from local.errors import LocalError


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "RECORDS", tmp_path / "run")
    monkeypatch.setattr(processes, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(processes, "MARK", f"PADDLE_TRAINING_TEST_{os.getpid()}")
    yield
    processes.stop_all(processes.marked(), seconds=0)


def test_the_start_time_is_read_past_a_name_with_spaces_and_brackets():
    before = "42 (a) b (c)) S " + " ".join(str(n) for n in range(4, 22))
    assert processes.start_ticks(f"{before} 777 0 0") == 777


def test_a_daemon_is_started_once_and_found_again():
    assert processes.start("sleeper", ["sleep", "60"])
    first = processes.record("sleeper")
    assert not processes.start("sleeper", ["sleep", "60"])
    assert processes.record("sleeper") == first
    processes.stop("sleeper")
    assert processes.record("sleeper") is None
    assert processes.marked("sleeper") == []


def test_a_recycled_pid_is_not_taken_for_the_daemon_and_not_killed():
    with subprocess.Popen(["sleep", "60"]) as stranger:
        real = processes.identify(stranger.pid)
        stale = replace(real, start=real.start - 1)
        processes.RECORDS.mkdir()
        (processes.RECORDS / "gone.json").write_text(json.dumps(asdict(stale)))
        assert processes.record("gone") is None
        processes.stop("gone")
        processes.stop_all([stale], seconds=0)
        assert stranger.poll() is None
        stranger.kill()


def test_a_record_of_another_boot_names_nobody():
    me = processes.identify(os.getpid())
    assert processes.alive(me)
    assert not processes.alive(replace(me, boot="another"))


def test_a_daemon_whose_record_was_lost_is_replaced_not_doubled():
    processes.start("sleeper", ["sleep", "60"])
    lost = processes.record("sleeper")
    (processes.RECORDS / "sleeper.json").unlink()
    processes.start("sleeper", ["sleep", "60"])
    assert not processes.alive(lost)
    assert processes.marked("sleeper") == [processes.record("sleeper")]


def test_a_torn_record_counts_as_none(tmp_path):
    processes.RECORDS.mkdir()
    (processes.RECORDS / "torn.json").write_text('{"pid": 1')
    assert processes.record("torn") is None


def test_a_daemon_that_ignores_term_is_killed():
    stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    processes.start("stubborn", [sys.executable, "-c", stubborn])
    while "1" not in (processes.LOGS / "stubborn.log").read_text():
        processes.check("stubborn")
    processes.stop("stubborn", seconds=0.2)
    assert processes.marked("stubborn") == []


def test_a_daemon_that_ended_is_reported_with_its_last_words():
    processes.start("brief", [sys.executable, "-c", "import time; print('no such flag'); time.sleep(0.2)"])
    while processes.record("brief"):
        for child in processes._children.values():
            child.poll()
    with pytest.raises(LocalError, match="no such flag"):
        processes.check("brief")


def test_daemons_inherit_neither_kubeconfig_nor_credentials(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/elsewhere")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert not {"KUBECONFIG", "AWS_SECRET_ACCESS_KEY"} & set(processes._clean_environment())
