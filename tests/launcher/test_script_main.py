"""Tests of the program that runs a user's script: what the script sees, and how errors end it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher import script_main

SCRIPT = """
import atexit, os, sys
import helper
atexit.register(print, "at exit")
print(sys.argv, sys.path[0], __name__, __file__, sys.modules["__main__"].__dict__ is globals())
"""


def run(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this text in `folder` as runtime ps does."""
    (folder / "tools").mkdir()
    (folder / "tools" / "helper.py").touch()
    (folder / "tools" / "train.py").write_text(text)
    argv = [sys.executable, script_main.__file__, "tools/train.py", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "-c", "a b")
    path = str(tmp_path / "tools")
    assert done.stdout == f"['tools/train.py', '-c', 'a b'] {path} __main__ tools/train.py True\nat exit\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_sees_what_python_would_show_it(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "helper.py").touch()
    (tmp_path / "tools" / "train.py").write_text(SCRIPT)
    shown = []
    for program in ("-m", script_main.__file__), ():
        argv = [sys.executable, *program[1:], "-m", "tools.train", "--x"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        shown.append(done.stdout)
    assert shown[0] == shown[1], "as `python -m tools.train --x`"


@pytest.mark.parametrize(
    ("ending", "code", "last_line"),
    [
        ("raise ValueError('bad row 7')", 1, "ValueError: bad row 7"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no data')", 1, "no data"),
        ("import missing_module", 1, "ModuleNotFoundError: No module named 'missing_module'"),
        ("def f(", 1, "SyntaxError: '(' was never closed"),
    ],
)
def test_after_an_error_the_process_exits_at_once_with_the_traceback(
    tmp_path: Path, ending: str, code: int, last_line: str
) -> None:
    """A process that is connected to Paddle's servers crashes if Python ends in the usual way."""
    done = run(tmp_path, SCRIPT + ending)
    assert done.returncode == code
    assert (done.stderr.splitlines() or [""])[-1] == last_line
    assert "at exit" not in done.stdout
    assert "script_main" not in done.stderr, "only frames of the script"
    assert "runpy" not in done.stderr


@pytest.mark.parametrize("ending", ["sys.exit()", "sys.exit(0)", "sys.exit(None)"])
def test_a_script_that_exits_with_0_ends_as_usual(tmp_path: Path, ending: str) -> None:
    done = run(tmp_path, SCRIPT + ending)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("at exit\n")


@pytest.mark.paddle
def test_libraries_that_decompress_can_be_imported_after_paddle(tmp_path: Path) -> None:
    """Paddle 2.6.2 exports the functions of its own zlib, of another version."""
    text = "import paddle, pyarrow, zlib; print(zlib.decompress(zlib.compress(b'a' * 1000)) == b'a' * 1000)"
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
