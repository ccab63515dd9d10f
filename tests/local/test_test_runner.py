"""Tests of `python -m tests.run` (failed and flaky tests) and of `pytest --fast`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import run

TESTS = """
import os
from pathlib import Path

import pytest

SEEN = Path(__file__).with_name("seen")

@pytest.mark.parametrize("number", range({wrong}))
def test_wrong(number):
    assert False, "a long message:" + "\\n".join(map(str, range(200)))

def test_passes_alone():
    before = SEEN.exists()
    SEEN.touch()
    if before and (os.environ["FAULTS_UNTIL"] != "inf" or {skipped}):
        pytest.skip("too late")
    assert before, "\\n".join(map(str, range(200)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "second", "code"), [(0, "passed", 0), (1, "passed", 1), (run.FEW, "", 1), (0, "skipped", 1)]
)
def test_few_failed_tests_are_run_again_and_reported_as_flaky_or_failed(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: int,
    second: str,
    code: int,
) -> None:
    """`wrong` tests fail each time; one more fails too, and the `second` time it passes or is skipped."""
    (tmp_path / "test_it.py").write_text(TESTS.format(wrong=wrong, skipped=second == "skipped"))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    # With CI in the environment pytest's summary contains complete assertions between the tests' names.
    environ = {name: value for name, value in run.ENVIRON.items() if not name.startswith("PYTEST_")}
    environ |= {
        "CI": "true",
        "FAULTS_UNTIL": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # half of pytest's start is its plugins
    monkeypatch.setattr(run, "ENVIRON", environ)
    monkeypatch.setitem(run.TIERS, "unit", ((sys.executable, "-m", "pytest", "-q", "test_it.py"),))
    monkeypatch.setattr(sys, "argv", ["run.py", "unit"])
    assert run.main() == code
    out, err = capsys.readouterr()
    assert ("all tiers passed" in out) == (code == 0)
    is_flaky = second == "passed"
    assert ("flaky (failed once, passed alone): test_it.py::test_passes_alone" in err) == is_flaky
    failed = [f"test_it.py::test_wrong[{number}]" for number in range(wrong)]
    failed += [] if is_flaky else ["test_it.py::test_passes_alone"]
    assert not failed or err.splitlines()[-1] == f"failed: unit {' '.join(failed)}"


@pytest.mark.slow
def test_a_test_that_starts_slow_programs_fails_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text(FAST_TESTS)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setitem(run.ENVIRON, "PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setitem(run.ENVIRON, "PYTEST_ADDOPTS", "-p tests.conftest")
    argv = (sys.executable, "-m", "pytest", "-q", "--fast", "test_it.py")
    monkeypatch.setitem(run.TIERS, "fast", (argv,))
    monkeypatch.setattr(sys, "argv", ["run.py", "fast"])
    assert run.main() == 1
    assert capsys.readouterr().err.splitlines()[-1] == "failed: fast test_it.py::test_starts_helm"


@pytest.mark.slow
def test_fault_tests_are_skipped_with_a_reason_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTS_UNTIL", str(time.time() - 90))
    # --setup-plan executes no test, so no fault is injected even if the skip did not work.
    argv = [sys.executable, "-m", "pytest", "-q", "--setup-plan", "-p", "no:cacheprovider", "tests/faults"]
    done = subprocess.run(argv, cwd=run.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ skipped in ", done.stdout, re.MULTILINE), done.stdout
    reason = r"SKIPPED .* would start \d+ s after FAULTS_UNTIL; `make test-faults` runs it"
    assert re.search(reason, done.stdout), done.stdout


FAST_TESTS = """
import subprocess
import sys

import pytest

def test_fast():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_starts_helm():
    with pytest.raises(OSError):
        subprocess.run(["/nowhere/helm"], check=False)

@pytest.mark.slow
def test_slow():
    raise AssertionError
"""


def run_fast(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in `folder` with `--fast`."""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.conftest")
    argv = [sys.executable, "-m", "pytest", "-q", *plugins, "--fast", *options, str(folder)]
    return subprocess.run(argv, cwd=run.ROOT, capture_output=True, text=True, check=False)


def test_fast_deselects_slow_tests_and_fails_tests_that_start_slow_programs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAST_TESTS)
    done = run_fast(tmp_path)
    assert re.search(r"^1 failed, 1 passed, 1 deselected", done.stdout, re.MULTILINE), done.stdout
    assert "test_starts_helm started helm" in done.stdout
    assert "Fix: mark the test with pytest.mark.slow" in done.stdout


@pytest.mark.parametrize(
    ("workers", "code"),
    [
        ("0", 2),
        pytest.param("1", 1, marks=pytest.mark.slow),
    ],  # pytest's codes for interrupted, and for failed tests
)
def test_fast_rejects_test_modules_that_start_slow_programs_when_imported(
    tmp_path: Path, workers: str, code: int
) -> None:
    text = "import contextlib, subprocess\nwith contextlib.suppress(OSError):\n    subprocess.run(['/nowhere/helm'])\n"
    (tmp_path / "test_it.py").write_text(f"{text}def test_it(): pass\n")
    done = run_fast(tmp_path, "-n", workers)
    assert done.returncode == code, done.stdout
    assert re.search(
        r"ERROR collecting \S*test_it\.py", done.stdout
    )  # its path depends on where the clone is
    assert "a test module starts helm when it is imported" in done.stdout
