"""`python -m tests.run`: what becomes of a tier in which tests failed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import run

TESTS = """
from pathlib import Path

import pytest

SEEN = Path(__file__).with_name("seen")

@pytest.mark.parametrize("number", range({wrong}))
def test_wrong(number):
    assert False, "so many words of its own:" + "\\n".join(map(str, range(200)))

def test_passes_alone():
    before = SEEN.exists()
    SEEN.touch()
    assert before, "\\n".join(map(str, range(200)))
"""


def ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: int
) -> tuple[int, str, str]:
    """A tier of a test that passes at its second time, and so many that never do: code, stdout, stderr."""
    (tmp_path / "test_it.py").write_text(TESTS.format(wrong=wrong))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    # With CI, pytest's summary has whole assertions, which push the tests' names far up.
    environ = {name: value for name, value in run.ENVIRON.items() if not name.startswith("PYTEST_")}
    monkeypatch.setattr(run, "ENVIRON", environ | {"CI": "true"})
    monkeypatch.setitem(run.TIERS, "unit", ((sys.executable, "-m", "pytest", "-q", "test_it.py"),))
    monkeypatch.setattr(sys, "argv", ["run.py", "unit"])
    code = run.main()
    return code, *capsys.readouterr()


def test_what_passes_alone_is_named_as_unsteady(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(tmp_path, monkeypatch, capsys, wrong=0)
    assert code == 0
    assert "all tiers passed" in out
    assert "unsteady (failed once, passed alone): test_it.py::test_passes_alone" in err


def test_what_fails_twice_is_named_in_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ran(tmp_path, monkeypatch, capsys, wrong=1)
    assert code == 1
    assert err.splitlines()[-1] == "failed: unit test_it.py::test_wrong[0]"
    assert "unsteady (failed once, passed alone): test_it.py::test_passes_alone" in err


def test_more_than_a_few_are_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ran(tmp_path, monkeypatch, capsys, wrong=run.FEW)
    assert code == 1
    assert "unsteady" not in err
    assert len(err.splitlines()[-1].split("test_it.py::")) == 1 + run.FEW + 1


def test_a_fault_test_that_would_begin_too_late_is_skipped_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAULTS_UNTIL", str(time.time() - 90))
    # With the plan alone nothing is broken, even if nothing were skipped.
    argv = [sys.executable, "-m", "pytest", "-q", "--setup-plan", "-p", "no:cacheprovider", "tests/faults"]
    done = subprocess.run(argv, cwd=run.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ skipped in ", done.stdout, re.MULTILINE), done.stdout
    told = r"SKIPPED .* would begin \d+ s after FAULTS_UNTIL; `make test-faults` runs it"
    assert re.search(told, done.stdout), done.stdout
