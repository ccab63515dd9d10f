"""Builds the Go tools that are missing, one after the other (each uses all cores), and says how far it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from local import say
from local.errors import LocalError
from local.files import locked, need_space, whole_folder
from local.paths import cache
from local.run import run, tail
from local.toolchain import own
from local.toolchain.modules import MODULES, Module, module

# Go's build cache and module cache of all tools came to 11 GB; they are dropped when all are built.
_BUILD_GB = 13.0
_NEEDED = {"kubectl": ("kubernetes",), "helm": ("helm",), "pulumi": ("pulumi", "language", "provider")}


def wanted(cluster: bool = True, tests: bool = False, fitting: Iterable[str] = ()) -> list[Module]:
    """Modules that a command needs, given a person's own fitting tools.

    cluster: a local cluster is wanted (else a person named one). tests: chart tests and documentation too.
    """
    have = set(fitting)
    names = [m for program, modules in _NEEDED.items() if program not in have for m in modules]
    if cluster:
        names += ["kubernetes", "coredns"]
    if tests:
        names += ["helm-unittest", "helm-docs"]
    return [m for m in MODULES if m.name in names]


def path_folders(fitting: dict[str, Path]) -> list[Path]:
    """What goes first on PATH: the built modules' folders, without those that a person's own tools
    replace."""
    replaced = {name for program in fitting for name in _NEEDED[program]} - {"kubernetes"}
    folders = [m.folder for m in MODULES if m.name not in replaced and m.built()]
    if "kubectl" in fitting and module("kubernetes").built():
        folders.remove(module("kubernetes").folder)
    return folders


def ensure(modules: list[Module]) -> None:
    """Build those that are not there yet.

    Raises:
        LocalError: no Go, no space, or a build failed; with the last lines of its log.
    """
    if all(m.built() for m in modules):
        return
    with locked(cache() / "tools.lock", "the tools"):
        missing = [m for m in modules if not m.built()]
        if not missing:
            return
        if shutil.which("go") is None:
            raise LocalError(
                f"Go is not on PATH, with which {', '.join(m.name for m in missing)} would be built. "
                "Install Go "
                "(1.26 or newer, or 1.21 and newer with leave to fetch its own successor), or put fitting "
                "pulumi, "
                "helm (3.14 or newer) and kubectl on PATH and name a cluster with CLUSTER_KUBECONFIG."
            )
        need_space(cache(), _BUILD_GB * len(missing) / len(MODULES) + 1, "Building the tools")
        minutes = sum(m.minutes for m in missing)
        say.note(f"{len(missing)} tools to build, once; about {minutes:.0f} minutes on two cores")
        began = time.monotonic()
        for place, one in enumerate(missing, 1):
            with say.step(f"tool {place} of {len(missing)}: {one.name}"):
                _build(one, missing, place, began)
        shutil.rmtree(_go_cache(), ignore_errors=True)


def _go_cache() -> Path:
    return cache() / "build"


def go_environment() -> dict[str, str]:
    """What `go` is run with: caches of its own, writable module cache (so that it can be dropped), no C."""
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(_go_cache() / "gocache"),
        "GOMODCACHE": str(_go_cache() / "gomod"),
        "GOFLAGS": "-buildvcs=false -modcacherw",
        "GOWORK": "off",
    }


def _build(one: Module, missing: list[Module], place: int, began: float) -> None:
    logs = cache() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"build-{one.name}.log"
    # go may rewrite go.mod (it drops what one platform does not need): it works on a copy, the clone stays
    # clean.
    with whole_folder(one.folder) as draft:
        sources = draft / "src"
        shutil.copytree(one.sources, sources)
        for binary, package in one.programs.items():
            command = [
                "go",
                "build",
                "-mod=mod",
                "-trimpath",
                f"-ldflags={one.ldflags}",
                "-o",
                str(draft / binary),
            ]
            _run(
                [*command, package],
                sources,
                log,
                f"{place} of {len(missing)}: {one.name}/{binary}",
                began,
            )
        for name, (path, version, inside) in one.copies.items():
            told = run(
                ["go", "mod", "download", "-json", f"{path}@{version}"],
                why=f"fetching {name}",
                env=go_environment(),
                cwd=sources,
            )
            line = next(line for line in told.splitlines() if '"Dir"' in line)
            shutil.copy(Path(line.split('"')[3]) / inside, draft / name)
            (draft / name).chmod(0o755)
        shutil.rmtree(sources)


def _run(command: list[str], cwd: Path, log: Path, what: str, began: float) -> None:
    with log.open("w") as stream:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=go_environment(),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        said = time.monotonic()
        while child.poll() is None:
            time.sleep(0.2)
            if (
                time.monotonic() - said > 30
            ):  # a line now and then, so that nobody takes a long compile for a hang
                said = time.monotonic()
                say.note(f"  still at {what}, {said - began:.0f} s since the first")
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    if child.returncode:
        raise LocalError(
            f"Building {what} failed with {child.returncode}; the end of {log}:\n"
            f"{tail(log.read_text(errors='replace'))}\n"
            "Is the Go module proxy reachable (`go env GOPROXY`)? What was built stays; `make tools` goes "
            "on from there."
        )


def tools(cluster: bool = True, tests: bool = False) -> dict[str, Path]:
    """Have all tools at hand; the person's own that are used instead of built ones."""
    fitting = own.found()
    for program, path in sorted(fitting.items()):
        say.note(f"{program}: {path} fits and is used")
    ensure(wanted(cluster=cluster, tests=tests, fitting=fitting))
    return fitting
