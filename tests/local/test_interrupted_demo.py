"""Tests of SIGTERM and Ctrl-C during `make demo`: what they leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.paths import CLONE
from testkit.waiting import until
from testkit.written_files import write_script

# A build that never ends: it has a temporary folder as the real one, a process that compiles, and half of a program.
GO = f"""#!{sys.executable} -IS
import os, signal, subprocess, sys, tempfile
signal.signal(signal.SIGINT, signal.SIG_DFL)
if sys.argv[1] == "list":
    print(sys.argv[-1])
elif sys.argv[1] == "build":
    tempfile.mkdtemp(prefix="go-build", dir=os.environ.get("GOTMPDIR"))
    open(sys.argv[sys.argv.index("-o") + 1] + "kubernetes", "w").write("half")
    subprocess.run(["sleep", "600"])
"""
# The preparation of the demo with the real commands' structure: a thread waits for `sleep`, as for debootstrap.
BUILD = """
import sys
from local import __main__, demo
from local.external_commands import run_command
from local import go_tools
from local.go_tools import find_tool

wait = lambda *_, **__: run_command(["sleep", "601"], why="the image")
go_tools.create_source_folder = lambda work: work.mkdir(parents=True, exist_ok=True)
demo.launcher_image.ensure_image = demo.example_data.ensure_example_data = wait
__main__.cluster_lifecycle.require_root = lambda: None
__main__.steps.run_demo = lambda *_: demo._prepare_local_cluster(
    1, "quick_start", [find_tool("kubernetes"), find_tool("coredns")])
sys.argv[1:] = ["demo"]
__main__.main()
"""


# `pulumi up` that needs a second to release the lock of its state after a signal, and is killed by a second signal.
PULUMI = f"""#!{sys.executable} -IS
import signal, sys, time
def leave(number, _):
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    time.sleep(1)
    open(sys.argv[0] + ".released", "w")
    sys.exit(1)
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, leave)
open(sys.argv[0] + ".locked", "w")
time.sleep(600)
"""
UP = """
import os, sys
from local import __main__, demo

__main__.cluster_lifecycle.require_root = lambda: None
__main__.steps.run_demo = lambda *_: demo._run_pulumi_up(dict(os.environ))
sys.argv[1:] = ["demo"]
__main__.main()
"""
# The Python of `make`: writes the setting NODES and waits.
PYTHON = """#!/bin/sh
echo $NODES > "$0.nodes"
exec sleep 600
"""
NUMBERS = [signal.SIGTERM, signal.SIGINT]


def _processes(mark: Path) -> dict[int, str]:
    """Return id and command line of the running processes with the text `mark` in their environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(mark) in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


@contextlib.contextmanager
def _run(folder: Path, argv: list[str], tool: str, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, with the fake `tool` on PATH."""
    (folder / "temporary").mkdir()
    write_script(folder / "bin" / tool, text)
    env = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PADDLE_TRAINING_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "temporary"),
    }
    # A shell without job control starts background commands with SIGINT ignored, and Python leaves that as it is.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(argv, cwd=CLONE, env=env, process_group=0)
    signal.signal(signal.SIGINT, ignored)
    with process:
        try:
            yield process
        finally:
            for pid in _processes(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _interrupt(demo: subprocess.Popen[bytes], number: int) -> None:
    """Send SIGTERM as `kill` does, or SIGINT to the whole process group, as a terminal does; wait for the end."""
    if number == signal.SIGINT:
        os.killpg(demo.pid, number)
    else:
        demo.send_signal(number)
    assert demo.wait(30) == 128 + number


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupted_build_leaves_no_process_no_tool_and_no_temporary_file(tmp_path: Path, number: int):
    with _run(tmp_path, [sys.executable, "-c", BUILD], "go", GO) as demo:
        until(lambda: str(_processes(tmp_path)).count("sleep 60") == 3, "build, image and data")
        _interrupt(demo, number)
        until(lambda: not _processes(tmp_path), "the end of all processes", 5)
    assert not list((tmp_path / "cache").glob("tools/*"))
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupted_pulumi_up_releases_the_lock_of_its_state(tmp_path: Path, number: int):
    with _run(tmp_path, [sys.executable, "-c", UP], "pulumi", PULUMI) as demo:
        until((tmp_path / "bin" / "pulumi.locked").exists, "pulumi up")
        _interrupt(demo, number)
    assert (tmp_path / "bin" / "pulumi.released").exists()


def test_sigterm_to_make_reaches_the_demo(tmp_path: Path):
    with _run(
        tmp_path, ["make", "demo", "PYTHON=python-of-make", "NODES=4"], "python-of-make", PYTHON
    ) as make:
        nodes = tmp_path / "bin" / "python-of-make.nodes"
        until(lambda: nodes.exists() and nodes.read_text() == "4\n", "NODES=4")
        make.send_signal(signal.SIGTERM)
        make.wait(30)
        until(lambda: not _processes(tmp_path), "the end of the demo", 5)
