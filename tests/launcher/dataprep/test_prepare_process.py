"""Tests of `python -m launcher prepare` as a process: signals and exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.waiting import until
from tests.launcher.dataprep.conftest import Pod

ROOT = Path(__file__).resolve().parents[3]


def start(pod: Pod, **values: str) -> subprocess.Popen[str]:
    environ = {**pod.env(**values), "PATH": os.environ["PATH"]}
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", "prepare"],
        cwd=ROOT,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )


BIG = b"".join(b"%d %s\n" % (n, b"x" * 80) for n in range(800_000))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_data_job_publishes_nothing_and_can_be_started_again(
    pod: Pod, number: signal.Signals
) -> None:
    pod.source(BIG)
    process = start(pod)
    at_work = ".*.tmp/parts/work-*"
    until(lambda: any(path.stat().st_size > 0 for path in pod.data.glob(f"{at_work}/0/train.txt")))
    process.send_signal(number)
    _, log = process.communicate(timeout=30)
    assert not (pod.job / "manifest.json").exists()
    assert not (pod.job / "data-failed.json").exists()
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "received SIGTERM" in log
        assert not list(pod.data.glob(at_work))
    assert pod.work_folder().is_dir(), "parts that are done stay done"
    second = start(pod)
    _, log = second.communicate(timeout=60)
    assert second.returncode == 0, log
    manifest = json.loads((pod.job / "manifest.json").read_text())
    assert manifest["lines"] == 800_000
    assert manifest["sha256"] == hashlib.sha256(BIG).hexdigest()
    assert pod.leftovers() == []


def test_exit_code_and_termination_message_report_the_cause(pod: Pod) -> None:
    pod.source(b"a\nb\n")
    process = start(pod)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 65
    assert "fewer than the 3 shards" in log
    assert "fewer than the 3 shards" in (pod.storage / "termination-log").read_text()
