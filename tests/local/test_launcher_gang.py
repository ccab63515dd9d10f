"""Tests that a benchmark that receives SIGTERM stops the gang that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local.launcher_gang import find_processes
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
