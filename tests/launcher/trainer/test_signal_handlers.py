"""Tests of the signal handlers of processes that have imported Paddle, which installs its own at the import.

Paddle's handlers allocate memory and wait for each other: a pserver was seen to wait for ever for a child that slept in
Paddle's handler of SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local.paths import CLONE
from testkit.waiting import until

from .conftest import run_python, stage, texts

pytestmark = pytest.mark.paddle

SHOW = """
def show():
    caught = next(l.split()[1] for l in open("/proc/self/status") if l.startswith("SigCgt"))
    print("Python's handler" if signal.getsignal(signal.SIGTERM) == mine else "none", int(caught, 16) >> 14 & 1)

def mine(number, frame):
    print("mine", flush=True)
"""


def test_a_fork_server_has_no_handler_of_sigterm_and_a_crash_logs_where_python_was() -> None:
    script = f"""
import ctypes, inspect, signal
from launcher.trainer.__main__ import import_all
{SHOW}
import paddle
show()
import_all()
show()
print("files of modules:", len(inspect.modulesbyfile) > 1000, flush=True)

def crashing_step():
    ctypes.string_at(0)

crashing_step()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CLONE, capture_output=True, text=True, check=False
    )
    assert done.stdout == "none 1\nnone 0\nfiles of modules: True\n"
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "in crashing_step" in done.stderr


def test_a_program_that_imports_paddle_keeps_the_handlers_of_its_process(tmp_path: Path) -> None:
    """A helper such as the one that parses rows must clean up at SIGTERM."""
    script = f"""
import os, signal, sys
from pathlib import Path
from launcher.trainer.program_loader import load_program
{SHOW}
signal.signal(signal.SIGTERM, mine)
load_program(Path(sys.argv[1]), Path(sys.argv[2]))
assert "paddle" in sys.modules
show()
os.kill(os.getpid(), signal.SIGTERM)
"""
    program = CLONE / "launcher" / "programs" / "quick_start" / "trainer_config.py"
    assert run_python(script, str(program), str(tmp_path)) == "Python's handler 1\nmine\n"


def test_try_removes_its_temporary_files_at_sigterm(tmp_path: Path) -> None:
    data = stage(tmp_path / "data", texts(2000, 1), texts(100, 2)) / "train.txt"
    temporary, log = tmp_path / "temporary", tmp_path / "log"
    temporary.mkdir()
    program = CLONE / "launcher" / "programs" / "quick_start"
    options = ["--passes", "1000", "--to", str(tmp_path / "model")]
    argv = [sys.executable, "-m", "launcher", "try", str(program), "--data", str(data), *options]
    with log.open("wb") as out:
        environment = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(argv, cwd=CLONE, env=environment, stdout=out, stderr=out)
    try:
        until(
            lambda: "pass 2:" in log.read_text() or process.poll(), "two trained passes", words=log.read_text
        )
        assert list(temporary.iterdir())
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert list(temporary.iterdir()) == []
