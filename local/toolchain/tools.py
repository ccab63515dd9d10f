"""The pinned Go tools of `local/tools/`; pure apart from reading that folder.

One Go module holds all but one: what several of them use (Kubernetes' clients, gRPC, Pulumi's SDK, helm) has
one version there, and is compiled once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from local.paths import CLONE, cache

SOURCES = CLONE / "local" / "tools"
KUBERNETES = "1.35.4"
PULUMI = "3.259.0"
PROVIDER = "4.25.0"
HELM = "3.20.2"
_SDK = "github.com/pulumi/pulumi/sdk/v3"
_COMPONENT = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.split(".")
# Go variables that are set at link time: the versions that tools print. Who lacks one ignores it.
VARIABLES = {
    f"{_COMPONENT}.gitVersion": f"v{KUBERNETES}",
    f"{_COMPONENT}.gitMajor": _MAJOR,
    f"{_COMPONENT}.gitMinor": _MINOR,
    "helm.sh/helm/v3/internal/version.version": f"v{HELM}",
    # the Kubernetes that `helm template` and `helm lint` stand for when there is no cluster
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": _MAJOR,
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": _MINOR,
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": _MAJOR,
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": _MINOR,
    f"{_SDK}/go/common/version.Version": PULUMI,
    "github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version": PROVIDER,
}


@dataclass(frozen=True)
class Tool:
    """Programs that are of use together, in one folder of the cache.

    packages: Go packages; each becomes a program with the last part of its name.
    names: more names of the first program, as links (what it does depends on the name).
    copies: files beside the programs: a Go package as the main go.mod has it, and the path in its module.
    module: folder of `local/tools/` with the go.mod.
    """

    name: str
    packages: tuple[str, ...]
    names: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    module: str = "."

    @property
    def programs(self) -> list[str]:
        return [package.rpartition("/")[2] for package in self.packages]

    @property
    def folder(self) -> Path:
        """Where the built programs are, below the cache."""
        key = hashlib.sha256(repr((sources_digest(), VARIABLES, self)).encode()).hexdigest()[:12]
        return cache() / "tools" / f"{self.name}-{key}"

    def built(self) -> bool:
        return self.folder.is_dir()  # folders appear whole, by rename


@once
def sources_digest(folder: Path = SOURCES) -> str:
    """sha256 over names and content of all files of the Go module."""
    total = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
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

# In the order in which they are built: the cluster starts while the rest is compiled.
TOOLS = (
    Tool("kubernetes", ("./kubernetes",), names=_KUBERNETES),
    Tool("coredns", ("./coredns",)),
    Tool("helm", ("helm.sh/helm/v3/cmd/helm",)),
    Tool("pulumi", ("github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", "./pulumi-resource-kubernetes")),
    Tool("helm-unittest", ("github.com/helm-unittest/helm-unittest/cmd/helm-unittest",)),
    Tool("helm-docs", ("github.com/norwoodj/helm-docs/cmd/helm-docs",)),
    # The newest language host that is a plain module; it does not build with the engine's own SDK. The script
    # that it starts is the engine's.
    Tool(
        "language",
        (f"{_SDK}/python/cmd/pulumi-language-python",),
        copies=((f"{_SDK}/go/pulumi", "python/cmd/pulumi-language-python-exec"),),
        module="language",
    ),
)


def tool(name: str) -> Tool:
    return next(one for one in TOOLS if one.name == name)
