"""The pinned Go tools of `local/tools/`: packages, versions and folders in the cache, and the build of missing tools.

One Go module contains most tools, so that packages which several tools use (Kubernetes clients, gRPC, Pulumi's SDK,
Helm 3) have one version and are compiled once. Two tools have their own modules: Helm 4 needs newer Kubernetes clients,
and Pulumi's language host needs an older SDK.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as once
from itertools import groupby
from pathlib import Path

from local import console
from local.external_commands import LocalError, indent_last_lines, run_command
from local.files_and_locks import create_folder_atomically, hold_file_lock, require_free_space
from local.paths import CLONE, cache

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
"""Tools that the local cluster needs. The cluster starts while the other tools are still being built."""
_STACK = ("helm", "pulumi", "language")  # what a stack needs on every cluster
_TESTS = ("helm3", "helm-unittest", "helm-docs")
_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false")  # no debug information: it takes a tenth of the time
_BUILD_GB = 9.0  # Go's module and build caches; they are deleted when all tools are built
_PROGRESS_SECONDS = 30.0  # between two progress lines
OLDEST_GO = (1, 21)
"""The oldest usable version of Go. Older versions cannot read the module files, and cannot download the newer toolchain
that the module files require.
"""

SOURCES = CLONE / "local" / "tools"
KUBERNETES = "1.35.4"
PULUMI = "3.259.0"
PROVIDER = "4.25.0"
HELM = "4.3.1"
HELM3 = "3.20.2"
_SDK = "github.com/pulumi/pulumi/sdk/v3"
_COMPONENT = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.split(".")
# Go variables set at link time: the versions that the tools print. Tools without a variable ignore it.
VARIABLES = {
    f"{_COMPONENT}.gitVersion": f"v{KUBERNETES}",
    f"{_COMPONENT}.gitMajor": _MAJOR,
    f"{_COMPONENT}.gitMinor": _MINOR,
    "helm.sh/helm/v4/internal/version.version": f"v{HELM}",
    "helm.sh/helm/v3/internal/version.version": f"v{HELM3}",
    # the Kubernetes version that `helm template` and `helm lint` assume without a cluster
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": _MAJOR,
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": _MINOR,
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": _MAJOR,
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": _MINOR,
    f"{_SDK}/go/common/version.Version": PULUMI,
    "github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version": PROVIDER,
}


@dataclass(frozen=True)
class Tool:
    """One or more programs that are built and cached together."""

    name: str
    packages: tuple[str, ...]
    """Go packages, each with one program. The program has the last part of the package's name."""
    names: tuple[str, ...] = ()
    """Further names of the first program, created as links. The program behaves according to the name of the link."""
    copies: tuple[tuple[str, str], ...] = ()
    """Files to copy next to the programs: (Go package, path of the file in the module that contains the package)."""
    module: str = "."
    """Folder in `local/tools/` whose go.mod is used for the build."""
    is_on_path: bool = True
    """Whether the folder of the programs is on PATH. If not, tests run the programs by their paths."""

    @property
    def programs(self) -> list[str]:
        """Return the file names of the programs built from `packages`."""
        return [package.rpartition("/")[2] for package in self.packages]

    @property
    def folder(self) -> Path:
        """Return the folder of the built programs in the cache.

        Its name contains a digest of the sources, the versions and the properties of this tool, so a change of any of
        them leads to a new build.
        """
        key = hashlib.sha256(repr((module_digest(self.module), VARIABLES, self)).encode()).hexdigest()[:12]
        return cache() / "tools" / f"{self.name}-{key}"

    def is_built(self) -> bool:
        """Return whether the programs exist."""
        return self.folder.is_dir()  # created by rename, so never incomplete


@once
def module_digest(module: str) -> str:
    """Return the digest of the sources of one Go module in `local/tools/`. The module `.` is the folder itself.

    The digest of a module leaves out the other modules, so that a change of one module does not rebuild the tools of
    the others. A build of all tools takes ten minutes.
    """
    others = [SOURCES / one.module for one in TOOLS if one.module not in (".", module)]
    return sources_digest(SOURCES / module, others)


def sources_digest(folder: Path, without: Sequence[Path] = ()) -> str:
    """Return the SHA-256 digest of the names and contents of all files in `folder`, except in the folders `without`."""
    total = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file())
    for file in sorted(path for path in files if not any(path.is_relative_to(other) for other in without)):
        data = file.read_bytes()
        total.update(f"{file.relative_to(folder)} {len(data)}\n".encode() + data)
    return total.hexdigest()


_KUBERNETES = (
    "kubectl",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
)

# In build order: the cluster starts while the tools after the first two are compiled.
TOOLS = (
    Tool("kubernetes", ("./kubernetes",), names=_KUBERNETES),
    Tool("coredns", ("./coredns",)),
    Tool("helm", ("helm.sh/helm/v4/cmd/helm",), module="helm"),
    Tool("pulumi", ("github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", "./pulumi-resource-kubernetes")),
    Tool("helm-unittest", ("github.com/helm-unittest/helm-unittest/cmd/helm-unittest",)),
    Tool("helm-docs", ("github.com/norwoodj/helm-docs/cmd/helm-docs",)),
    Tool("helm3", ("helm.sh/helm/v3/cmd/helm",), is_on_path=False),
    # The newest Python language host that is available as a plain module. It does not compile with the SDK
    # version of the engine, but starts the script of that version.
    Tool(
        "language",
        (f"{_SDK}/python/cmd/pulumi-language-python",),
        copies=((f"{_SDK}/go/pulumi", "python/cmd/pulumi-language-python-exec"),),
        module="language",
    ),
)


def find_tool(name: str) -> Tool:
    """Return the pinned tool called `name`, which must be one of TOOLS."""
    return next(one for one in TOOLS if one.name == name)


Build = Callable[[Sequence[Tool]], None]


def tools_to_build(cluster: bool = True, tests: bool = False) -> list[Tool]:
    """Return the tools that a command needs.

    Args:
        cluster: Whether the command uses the local cluster instead of a cluster of the user.
        tests: Whether the tools for chart tests and chart documentation are needed too.
    """
    names = {*_STACK, *(CLUSTER if cluster else ()), *(_TESTS if tests else ())}
    return [one for one in TOOLS if one.name in names]


def path_folders() -> list[Path]:
    """Return the folders with built tools that belong on PATH."""
    return [one.folder for one in TOOLS if one.is_on_path and one.is_built()]


def ensure_tools(tools: Sequence[Tool]) -> None:
    """Build those of `tools` that are not built yet. For errors see `tool_builder`."""
    with tool_builder(tools) as make:
        make(tools)


@contextlib.contextmanager
def tool_builder(tools: Sequence[Tool]) -> Iterator[Build]:
    """Prepare the build of `tools`, and yield a function that builds a part of them.

    The function takes a list of tools, all of which must be in `tools`, and builds those that are missing. It may be
    called several times, so that the caller can start work as soon as the first tools exist.

    Go's caches are deleted when the block succeeds. After a failure they stay, so that the next call continues from
    there.

    Raises:
        LocalError: Go is missing or too old, the disk is full, or a download or build failed. After a failed build, the
            message contains the last errors that `go build` printed.
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
            create_source_folder(_source_folder())
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
            "newer if it may download a newer toolchain)"
        )
    require_free_space(cache(), _BUILD_GB, "Building the tools")
    shutil.rmtree(_temporary_folder(), ignore_errors=True)  # of a build that was killed
    _temporary_folder().mkdir(parents=True)


def _build_folder() -> Path:
    return cache() / "build"


def _temporary_folder() -> Path:
    """Return the folder for Go's temporary files. A killed `go` leaves files in it."""
    return _build_folder() / "tmp"


def _source_folder() -> Path:
    return _build_folder() / "src"


def _go_environment() -> dict[str, str]:
    """Return the environment variables of `go`: no C compiler, and all caches in folders that can be deleted."""
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
    """Return (source folder, packages, tools) for each group of successive tools that are in the same Go module.

    The same module can have several groups, because the order of the tools is kept.
    """
    modules = [(module, list(some)) for module, some in groupby(tools, lambda one: one.module)]
    return [
        (_source_folder() / module, [p for one in some for p in one.packages], some)
        for module, some in modules
    ]


def _build(tools: Sequence[Tool]) -> None:
    """Build the tools. One run of `go build` for each group of tools compiles and links its packages in parallel.

    For the groups see `_group_by_go_module`.
    """
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
                    module = find_module_folder(package, _source_folder())
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


def create_source_folder(work: Path) -> None:
    """Create the folder `work` with the sources of the tools; an existing folder is replaced.

    The folder is a copy of `local/tools/`, in whose go.mod the trimmed modules (TRIMMED) replace the original modules.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCES, work)
    for name, module in TRIMMED.items():
        folder = work / "left-out" / name
        if not (folder / "go.mod").exists():
            package = next(folder.rglob("*.go")).parent.relative_to(folder)
            link_missing_files(folder, find_module_folder(f"{module}/{package}", work))
        _run_go("mod", "edit", f"-replace={module}=./left-out/{name}", cwd=work)


def find_module_folder(package: str, work: Path) -> Path:
    """Return the folder of the Go module that contains `package`. The go.mod in `work` selects its version."""
    return Path(_run_go("list", "-find", "-f", "{{.Module.Dir}}", package, cwd=work).strip())


def link_missing_files(folder: Path, original: Path) -> None:
    """Complete the trimmed module in `folder`: add hard links to all files of the module `original` that it lacks.

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
