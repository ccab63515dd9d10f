"""Builds the Go tools that are missing, and says how far it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from local import say
from local.errors import LocalError
from local.files import locked, need_space, whole_folder
from local.paths import cache
from local.run import run, tail
from local.toolchain import left_out, own, progress
from local.toolchain.tools import TOOLS, VARIABLES, Tool

CLUSTER = ("kubernetes", "coredns")
"""What the local cluster consists of; the rest may still be built when it starts."""
_REPLACED = {"kubectl": ("kubernetes",), "helm": ("helm",), "pulumi": ("pulumi", "language")}
_TESTS = ("helm-unittest", "helm-docs")
_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false")  # no debugger's tables: they are a tenth of the time
_BUILD_GB = 9.0  # Go's caches of modules and of compiled packages; they are dropped when all tools are built
Make = Callable[[Sequence[Tool]], None]


def wanted(cluster: bool = True, tests: bool = False, fitting: Iterable[str] = ()) -> list[Tool]:
    """Tools that a command needs, given a person's own fitting ones.

    cluster: a local cluster is wanted (else a person named one). tests: chart tests and documentation too.
    """
    have = set(fitting)
    names = {name for program, tools in _REPLACED.items() if program not in have for name in tools}
    names |= {*(CLUSTER if cluster else ()), *(_TESTS if tests else ())}
    return [one for one in TOOLS if one.name in names]


def path_folders(fitting: Iterable[str]) -> list[Path]:
    """What goes first on PATH: the built tools' folders, without those that a person's own tools replace."""
    replaced = {name for program in fitting for name in _REPLACED[program]}
    return [one.folder for one in TOOLS if one.name not in replaced and one.built()]


def ensure(tools: Sequence[Tool]) -> None:
    """Have these tools; see `building`."""
    with building(tools) as make:
        make(tools)


@contextlib.contextmanager
def building(tools: Sequence[Tool]) -> Iterator[Make]:
    """Yield what builds those of the given tools that are missing.

    What was compiled is kept until the block ends well, and longer if it does not: the next run goes on from
    there.

    Raises:
        LocalError: no Go, no space, or a build failed; with the last lines of its log.
    """
    if all(one.built() for one in tools):
        yield lambda _: None
        return
    with locked(cache() / "tools.lock", "the tools"):
        missing = [one for one in tools if not one.built()]
        if not missing:
            yield lambda _: None
            return
        names = ", ".join(one.name for one in missing)
        _check(names)
        with say.step(f"Go modules of {names} (once)"):
            left_out.lay(_sources(), _go)
            weights: dict[str, int] = {}
            for folder, packages, _ in _commands(missing):
                listing = ("list", *_FLAGS, "-deps", "-f", progress.LISTING, *packages)
                weights |= progress.weights(_go(*listing, cwd=folder))
        with say.step(f"tools {names} (once)"), progress.shown(progress.Counter(weights)) as show:
            yield lambda some: _build([one for one in some if not one.built()], show)
        shutil.rmtree(_build_folder(), ignore_errors=True)


def _check(names: str) -> None:
    if shutil.which("go") is None:
        raise LocalError(
            f"Go is not on PATH, with which {names} would be built. Install Go (1.26 or newer, or 1.21 and "
            "newer with leave to fetch its own successor), or put fitting pulumi, helm (3.14 or newer) and "
            "kubectl on PATH and name a cluster with CLUSTER_KUBECONFIG."
        )
    need_space(cache(), _BUILD_GB, "Building the tools")


def _build_folder() -> Path:
    return cache() / "build"


def _sources() -> Path:
    return _build_folder() / "src"


def _environment() -> dict[str, str]:
    """What `go` is run with: caches of its own, writable module cache (so that it can be dropped), no C."""
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(_build_folder() / "gocache"),
        "GOMODCACHE": str(_build_folder() / "gomod"),
        "GOFLAGS": "-buildvcs=false -modcacherw -mod=readonly",
        "GOWORK": "off",
    }


def _go(*words: str, cwd: Path) -> str:
    return run(["go", *words], why="asking for Go modules", env=_environment(), cwd=cwd, seconds=1800)


def _commands(tools: Iterable[Tool]) -> list[tuple[Path, list[str], list[Tool]]]:
    """For each Go module that has some of the tools: its folder, its packages, its tools."""
    modules = [(module, list(some)) for module, some in groupby(tools, lambda one: one.module)]
    return [
        (_sources() / module, [p for one in some for p in one.packages], some) for module, some in modules
    ]


def _build(tools: Sequence[Tool], show: Callable[[str], None]) -> None:
    """Build the tools of one Go module by one `go build`: links run beside the compilation of the rest."""
    for folder, packages, some in _commands(tools):
        made = _build_folder() / "bin"
        made.mkdir(parents=True, exist_ok=True)
        _compile(folder, made, packages, show)
        for one in some:
            with whole_folder(one.folder) as draft:
                for program in one.programs:
                    (made / program).rename(draft / program)
                for name in one.names:
                    (draft / name).symlink_to(one.programs[0])
                for package, path in one.copies:
                    module = left_out.module_folder(package, _sources(), _go)
                    shutil.copy(module / path, draft)
                    (draft / Path(path).name).chmod(0o755)


def _compile(folder: Path, made: Path, packages: Sequence[str], show: Callable[[str], None]) -> None:
    variables = " ".join(f"-X {key}={value}" for key, value in VARIABLES.items())
    # nice: what a person sees meanwhile goes first.
    command = ["nice", "-n", "10", "go", "build", "-v", *_FLAGS]
    command += [f"-ldflags=-s -w {variables}", "-o", f"{made}{os.sep}", *packages]
    log = cache() / "logs" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a") as stream,
        subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        problems = []
        try:
            for line in child.stdout:
                stream.write(line)
                show(line)
                if " " in line and not line.startswith("go: downloading"):  # no package's name: an error
                    problems.append(line)
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise LocalError(
            f"Building {' '.join(packages)} failed with {child.returncode} (all of it is in {log}):\n"
            f"{tail(''.join(problems))}\n"
            "Is the Go module proxy reachable (`go env GOPROXY`)? What was compiled stays; `make tools` goes "
            "on from there."
        )


def tools(tests: bool = False) -> None:
    """Have all tools at hand, but those of which a person's own fit."""
    ensure(wanted(tests=tests, fitting=own.told()))
