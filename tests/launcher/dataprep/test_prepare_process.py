"""Tests of `python -m launcher prepare` as a process: signals, exit codes, two at once, another user."""

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
from tests.launcher.dataprep.conftest import LINES, Pod

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


def test_a_folder_of_another_user_is_reported_with_owner_and_fix(pod: Pod) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    pod.source(LINES)
    pod.job.mkdir(mode=0o755)
    for path in (pod.storage, *pod.storage.parents):
        if path.stat().st_mode & 0o5 != 0o5 and path.stat().st_uid == 0:
            path.chmod(0o755)
    script = (
        "import os, sys; os.setgid(10001); os.setuid(10001)\n"
        "from launcher.dataprep import data_job as prepare; from launcher.settings import DataSettings\n"
        "from launcher.errors import LauncherError\n"
        "try: prepare.main(DataSettings.from_environ())\n"
        "except LauncherError as e: print(e); sys.exit(e.exit_code)\n"
    )
    import_first = "import numpy, launcher.dataprep.data_job, launcher.settings\n" + script
    done = subprocess.run(
        [sys.executable, "-c", import_first],
        cwd=ROOT,
        env=pod.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "runs as 10001:10001" in done.stdout
    assert "belongs to 0:0 with mode 0755" in done.stdout
    assert "chown" in done.stdout
