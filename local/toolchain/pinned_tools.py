"""List of the pinned Go tools of `local/tools/`: packages, versions and folder in the cache.

One Go module contains most tools, so that packages which several tools use (Kubernetes clients, gRPC, Pulumi's SDK,
Helm 3) have one version and are compiled once. Helm 4 needs newer Kubernetes clients, and the language host an older
SDK: they have modules of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from local.paths import CLONE, cache

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
    """Go packages; the program built from a package has the last part of the package's name."""
    names: tuple[str, ...] = ()
    """Further names of the first program, created as links (it behaves according to its name)."""
    copies: tuple[tuple[str, str], ...] = ()
    """Files to copy next to the programs, as (Go package, path in the module of that package)."""
    module: str = "."
    """Folder in `local/tools/` with the go.mod to build with."""
    is_on_path: bool = True
    """Whether the programs are put on PATH; tests find the others in their folder."""

    @property
    def programs(self) -> list[str]:
        """Return the file names of the built programs."""
        return [package.rpartition("/")[2] for package in self.packages]

    @property
    def folder(self) -> Path:
        """Return the built programs' folder in the cache; its name has a digest of all that they depend on."""
        key = hashlib.sha256(repr((module_digest(self.module), VARIABLES, self)).encode()).hexdigest()[:12]
        return cache() / "tools" / f"{self.name}-{key}"

    def is_built(self) -> bool:
        """Return whether the programs exist."""
        return self.folder.is_dir()  # created by rename, so never incomplete


@once
def module_digest(module: str) -> str:
    """Return the digest of the sources of one of the Go modules in `local/tools/`; `.` is the module in that folder.

    A change of one module then leaves the tools of the others as they are: building all takes ten minutes.
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
    """Return the pinned tool `name`."""
    return next(one for one in TOOLS if one.name == name)
