"""Tests that a gang on loopback is stopped: after SIGTERM to its benchmark, and by a second interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local.launcher_gang import LauncherGang, find_processes, job_environment
from testkit.waiting import until

BENCHMARK = """
import sys, time
from pathlib import Path
import benchmarks
from testkit.stand_in_gang import StandInGang
with StandInGang(Path(sys.argv[1]), 1).start():
    time.sleep(600)
"""


@pytest.mark.slow
def test_benchmark_that_receives_sigterm_stops_its_gang(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", BENCHMARK, str(tmp_path)]) as process:
        until(lambda: len(find_processes(tmp_path)) > 2, "launcher, pserver and trainer", 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert find_processes(tmp_path) == []


def test_a_second_interrupt_while_a_gang_stops_leaves_no_process(tmp_path: Path) -> None:
    gang = LauncherGang(tmp_path, job_environment(tmp_path, {"trainers": 1}))
    environ = {"PADDLE_LAUNCHER_WORK_DIR": str(gang.work_dir(0))}
    gang.processes[0] = InterruptedProcess(["sleep", "600"], env=environ)
    with pytest.raises(KeyboardInterrupt), gang:
        until(gang.alive, "the process", 10)
        raise SystemExit
    assert gang.alive() == []


class InterruptedProcess(subprocess.Popen[bytes]):
    """A process that ignores signals; the first wait for it is interrupted."""

    interrupts = 1

    def send_signal(self, sig: int) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().wait(timeout)
