"""Build the missing Go tools and report the progress."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from local import console
from local.external_commands import LocalError, indent_last_lines, run_command
from local.files_and_locks import create_folder_atomically, hold_file_lock, require_free_space
from local.paths import cache
from local.toolchain import installed_tools
from local.toolchain.pinned_tools import SOURCES, TOOLS, VARIABLES, Tool

# Parts of Pulumi and its provider that the stacks of this project never use are left out: backends and secrets in
# Google Cloud, Azure and Vault, `pulumi logs`, and provider components that need one Go type per Kubernetes kind.
# They are a quarter of the code that would be compiled. `local/tools/left-out/` has one folder per trimmed module.
# A folder with a go.mod replaces the whole module; the files of other folders replace the files of the module at
# the same path.
TRIMMED = {
    "gocloud": "gocloud.dev",
    "google-api": "google.golang.org/api",
    "hashivault": "gocloud.dev/secrets/hashivault",
    "kubernetes-provider": "github.com/pulumi/pulumi-kubernetes/provider/v4",
    "kubernetes-sdk": "github.com/pulumi/pulumi-kubernetes/sdk/v4",
    "pulumi": "github.com/pulumi/pulumi/pkg/v3",
}

CLUSTER = ("kubernetes", "coredns")
"""Tools that the local cluster needs; it starts while the others are still being built."""
_REPLACED = {"kubectl": ("kubernetes",), "helm": ("helm",), "pulumi": ("pulumi", "language")}
_TESTS = ("helm", "helm3", "helm-unittest", "helm-docs")  # both Helms, whatever the user has installed
_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false")  # no debug information: it takes a tenth of the time
_BUILD_GB = 9.0  # Go's module and build caches; they are deleted when all tools are built
_PROGRESS_SECONDS = 30.0  # between two progress lines
OLDEST_GO = (1, 21)
"""Older versions can neither read the module files nor download the newer toolchain that these name."""
Build = Callable[[Sequence[Tool]], None]


def tools_to_build(cluster: bool = True, tests: bool = False, fitting: Iterable[str] = ()) -> list[Tool]:
    """Return the tools that a command needs.

    Args:
        cluster: Whether the command uses the local cluster instead of a cluster of the user.
        tests: Whether the tools for chart tests and chart documentation are needed too.
        fitting: Programs that the user has installed in a compatible version.
    """
    have = set(fitting)
    names = {name for program, tools in _REPLACED.items() if program not in have for name in tools}
    names |= {*(CLUSTER if cluster else ()), *(_TESTS if tests else ())}
    return [one for one in TOOLS if one.name in names]


def path_folders(installed: Iterable[str]) -> list[Path]:
    """Return the folders of the built tools, for PATH.

    `installed` are the names of compatible programs that the user has installed; the tools that these replace are
    left out.
    """
    replaced = {name for program in installed for name in _REPLACED[program]}
    return [one.folder for one in TOOLS if one.is_on_path and one.name not in replaced and one.is_built()]


def ensure_tools(tools: Sequence[Tool]) -> None:
    """Build those of `tools` that are missing; see `tool_builder`."""
    with tool_builder(tools) as make:
        make(tools)


@contextlib.contextmanager
def tool_builder(tools: Sequence[Tool]) -> Iterator[Build]:
    """Prepare the build of those `tools` that are missing, and yield a function that builds some of them.

    The function takes a list of tools, each one of `tools`, and builds those that are missing.

    Go's caches are deleted when the block succeeds. After a failure they stay, so that the next call
    continues from there.

    Raises:
        LocalError: Go is missing, the disk is full, or a build failed; with the last lines of the build log.
    """
    if all(one.is_built() for one in tools):
        yield lambda _: None
        return
    with hold_file_lock(cache() / "tools.lock", "the tools"):
        missing = [one for one in tools if not one.is_built()]
        if not missing:
            yield lambda _: None
            return
        names = ", ".join(one.name for one in missing)
        _prepare_build(names)
        with console.timed_step(f"Go modules of {names} (once)"):
            create_source_folder(_source_folder(), _run_go)
        with console.timed_step(f"tools {names} (once)"):
            yield lambda some: _build([one for one in some if not one.is_built()])
        shutil.rmtree(_build_folder(), ignore_errors=True)


def _prepare_build(names: str) -> None:
    missing = "Go is not on PATH" if shutil.which("go") is None else ""
    if not missing:
        version = _run_go("env", "GOVERSION", cwd=cache()).strip()
        found = re.match(r"go(\d+)\.(\d+)", version)
        if found and (int(found[1]), int(found[2])) < OLDEST_GO:
            missing = f"Go on PATH is {version}, which cannot read the modules"
    if missing:
        raise LocalError(
            f"{missing}, but is needed to build {names}. Fix: install Go 1.26 or newer (or 1.21 and "
            "newer if it may download a newer toolchain); or put compatible pulumi, helm (3.14 or newer) and "
            "kubectl on PATH and use your own cluster with CLUSTER_KUBECONFIG=FILE"
        )
    require_free_space(cache(), _BUILD_GB, "Building the tools")
    shutil.rmtree(_temporary_folder(), ignore_errors=True)  # of a build that was killed
    _temporary_folder().mkdir(parents=True)


def _build_folder() -> Path:
    return cache() / "build"


def _temporary_folder() -> Path:
    """Return the folder for Go's temporary files, which a killed `go` does not delete."""
    return _build_folder() / "tmp"


def _source_folder() -> Path:
    return _build_folder() / "src"


def _go_environment() -> dict[str, str]:
    """Return the environment of `go`: no C compiler, and separate folders that can be deleted."""
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(_build_folder() / "gocache"),
        "GOMODCACHE": str(_build_folder() / "gomod"),
        "GOTMPDIR": str(_temporary_folder()),
        "GOFLAGS": "-buildvcs=false -modcacherw -mod=readonly",
        "GOWORK": "off",
    }


def _run_go(*words: str, cwd: Path) -> str:
    return run_command(
        ["go", *words], why="downloading Go modules", env=_go_environment(), cwd=cwd, seconds=1800
    )


def _group_by_go_module(tools: Iterable[Tool]) -> list[tuple[Path, list[str], list[Tool]]]:
    """Return (folder, packages, tools) of each Go module that contains some of the tools."""
    modules = [(module, list(some)) for module, some in groupby(tools, lambda one: one.module)]
    return [
        (_source_folder() / module, [p for one in some for p in one.packages], some)
        for module, some in modules
    ]


def _build(tools: Sequence[Tool]) -> None:
    """Build the tools of each Go module with one `go build`, which links some while it compiles others."""
    for folder, packages, some in _group_by_go_module(tools):
        output_folder = _build_folder() / "bin"
        output_folder.mkdir(parents=True, exist_ok=True)
        _compile(folder, output_folder, packages)
        for one in some:
            with create_folder_atomically(one.folder) as draft:
                for program in one.programs:
                    (output_folder / program).rename(draft / program)
                for name in one.names:
                    (draft / name).symlink_to(one.programs[0])
                for package, path in one.copies:
                    module = find_module_folder(package, _source_folder(), _run_go)
                    shutil.copy(module / path, draft)
                    (draft / Path(path).name).chmod(0o755)


def _compile(folder: Path, output_folder: Path, packages: Sequence[str]) -> None:
    variables = " ".join(f"-X {key}={value}" for key, value in VARIABLES.items())
    # nice: the training that runs at the same time has priority.
    command = ["nice", "-n", "10", "go", "build", "-v", *_FLAGS]
    command += [f"-ldflags=-s -w {variables}", "-o", f"{output_folder}{os.sep}", *packages]
    log = cache() / "logs" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a") as stream,
        subprocess.Popen(
            command,
            cwd=folder,
            env=_go_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        problems, shown = [], time.monotonic()
        try:
            for count, line in enumerate(child.stdout):
                stream.write(line)
                if time.monotonic() - shown > _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    console.info(
                        f"tools: {count:,} packages compiled; Kubernetes and Pulumi have about 3,000"
                    )
                if " " in line and not line.startswith("go: downloading"):  # not a package name: an error
                    problems.append(line)
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise LocalError(
            f"Building {' '.join(packages)} failed with {child.returncode} (complete output: {log}):\n"
            f"{indent_last_lines(''.join(problems))}\n"
            "Fix: check that the Go module proxy is reachable (`go env GOPROXY`), then run `make tools`, which "
            "continues with what is already compiled."
        )


def ensure_all_tools(tests: bool = False) -> None:
    """Build all missing tools except those that the user has installed in a compatible version."""
    ensure_tools(tools_to_build(tests=tests, fitting=installed_tools.report_compatible_tools()))


def create_source_folder(work: Path, go: Callable[..., str]) -> None:
    """Create the folder `work`, or replace it: a copy of `local/tools/` whose go.mod replaces the trimmed modules.

    `go` runs Go with the given arguments in the folder `cwd` and returns its output.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCES, work)
    for name, module in TRIMMED.items():
        folder = work / "left-out" / name
        if not (folder / "go.mod").exists():
            package = next(folder.rglob("*.go")).parent.relative_to(folder)
            link_missing_files(folder, find_module_folder(f"{module}/{package}", work, go))
        go("mod", "edit", f"-replace={module}=./left-out/{name}", cwd=work)


def find_module_folder(package: str, work: Path, go: Callable[..., str]) -> Path:
    """Return the folder of the module that contains the Go package, resolved with the go.mod of `work`."""
    return Path(go("list", "-find", "-f", "{{.Module.Dir}}", package, cwd=work).strip())


def link_missing_files(folder: Path, original: Path) -> None:
    """Complete the trimmed module in `folder` with hard links to the other files of the module in `original`.

    Raises:
        LocalError: A file of `folder` does not exist in the original module.
    """
    for file in (path for path in folder.rglob("*") if path.is_file()):
        if not (original / file.relative_to(folder)).is_file():
            raise LocalError(
                f"local/tools/left-out/{folder.name}/{file.relative_to(folder)} replaces a file that "
                f"{original.name} does not have, because its version has changed. Fix: adapt the file to the "
                f"new version"
            )
    for path, _, files in os.walk(original):
        here = folder / Path(path).relative_to(original)
        here.mkdir(exist_ok=True)
        for name in files:
            if not (here / name).exists():
                os.link(Path(path) / name, here / name)
