"""Options and checks for all tests.

`pytest --fast`, which `make check` uses, runs only fast tests: those without a marker of SLOW_MARKERS. An
audit hook fails a fast test that starts Paddle, a Go tool or another slow program, and the summary lists fast
tests that took long, so that a new slow test cannot stay among the fast ones unnoticed.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

SLOW_MARKERS = ("slow", "paddle", "long", "e2e")
SLOW_FOLDERS = ("chart", "infra_emulated")
"""Folders whose tests are all slow: they start helm or pulumi."""
SLOW_PROGRAMS = {
    *("buildah", "chromium", "containerd", "ctr", "debootstrap", "docker-registry", "etcd", "unshare"),
    *("go", "helm", "helm-docs", "helm-unittest", "kubectl", "pulumi"),
}
SLOW_MODULES = (
    "launcher.trainer",
    "launcher.supervisor",
    "mkdocs",
    "pip",
    "tests.launcher.supervisor",
)
"""Modules that run for seconds as `python -m`."""
LONG_SECONDS = 3.0
"""Fast tests that take longer than this are listed in the summary; only a report, since machines differ."""

GC_THRESHOLDS = (100_000, 20, 20)
"""Thresholds of the garbage collector. With Python's defaults, a quarter of the CPU time of the tests with Pulumi's
large SDK would be garbage collection."""

# Several tiers may share two cores: the duration of one hypothesis example says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


class FastTestGuard:
    """Pytest plugin of `--fast`: deselects slow tests and fails fast tests that start slow programs."""

    def __init__(self) -> None:
        self._test: str | None = "collection"
        self.slow_starts: list[str] = []
        """Slow programs that the collection or the running test started although it is not marked as slow."""
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._test is None:
            return
        if event == "subprocess.Popen":
            _, argv, _, env = args
            found = slow_program([argv] if isinstance(argv, str) else [*map(str, argv)], env)
        elif event == "import" and args[0] == "paddle":
            found = "Paddle"
        elif event == "tests.slow_start":
            found = args[0]
        else:
            return
        if found:
            self.slow_starts.append(found)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Fail the collection of a test module whose import started a slow program or imported Paddle."""
        report = yield
        if self.slow_starts and report.passed:
            report.outcome = "failed"
            report.longrepr = (
                f"a test module starts {', '.join(sorted(set(self.slow_starts)))} when it is imported, which is "
                "too slow for `make check`. Fix: import or start it inside of the tests that need it"
            )
            self.slow_starts = []
        return report

    def pytest_collection_finish(self) -> None:
        """After the import of all test modules: ignore what starts until the first test."""
        self._test = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before a test: clear the list of slow programs that the test or its fixtures have started."""
        self._test, self.slow_starts = item.nodeid, []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test if it or its fixtures started a slow program."""
        try:
            return (yield)
        finally:
            self._test = None
            self._check(item)

    def _check(self, item: pytest.Item) -> None:
        if self.slow_starts:
            pytest.fail(
                f"{item.nodeid} started {', '.join(sorted(set(self.slow_starts)))}, which is too slow for "
                "`make check`. Fix: mark the test with pytest.mark.slow",
                pytrace=False,
            )


def slow_program(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str | None:
    """Return the slow program or module that a command starts, or None; a test's own fake is not slow."""
    name = Path(argv[0]).name
    if name in SLOW_PROGRAMS:
        path = shutil.which(argv[0], path=(env or os.environ).get("PATH"))
        return None if path and path.startswith(tempfile.gettempdir()) else name
    if "-m" in argv[:-1]:
        module = argv[list(argv).index("-m") + 1]
        if module.startswith(SLOW_MODULES):
            return f"python -m {module}"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--fast`."""
    text = f"run only fast tests (without a marker of {', '.join(SLOW_MARKERS)}) and fail those that are not"
    parser.addoption("--fast", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Let the garbage collector run less often; with `--fast`, register the guard."""
    gc.set_threshold(*GC_THRESHOLDS)
    if config.getoption("--fast"):
        config.pluginmanager.register(FastTestGuard(), "fast-test-guard")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of Paddle if it is not installed, deselect slow tests with `--fast`, and start with long tests."""
    skip = pytest.mark.skip(reason="paddlepaddle is not installed. Fix: make venv")
    if importlib.util.find_spec("paddle") is None:
        for item in items:
            if item.get_closest_marker("paddle"):
                item.add_marker(skip)
    if config.getoption("--fast"):
        slow = [item for item in items if is_slow(item)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not is_slow(item)]
    items.sort(key=expected_seconds, reverse=True)


def expected_seconds(item: pytest.Item) -> float:
    """Return the rough duration of a test from its marker `seconds`, or 0."""
    mark = item.get_closest_marker("seconds")
    return float(mark.args[0]) if mark else 0.0


def is_slow(item: pytest.Item) -> bool:
    """Return whether a test has a marker of SLOW_MARKERS or is in one of SLOW_FOLDERS."""
    in_slow_folder = any(part in SLOW_FOLDERS for part in item.path.relative_to(item.config.rootpath).parts)
    return in_slow_folder or any(map(item.get_closest_marker, SLOW_MARKERS))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the Paddle version that the tests ran with, and with `--fast` the tests that took long."""
    try:
        version = importlib.metadata.version("paddlepaddle")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed; its tests were skipped"
    terminalreporter.write_line(f"PaddlePaddle: {version}")
    if config.getoption("--fast"):
        for reports in terminalreporter.stats.values():
            for report in reports:
                if getattr(report, "when", "") == "call" and report.duration > LONG_SECONDS:
                    terminalreporter.write_line(
                        f"took {report.duration:.1f} s, consider pytest.mark.slow: {report.nodeid}"
                    )
