"""The pinned Go tool modules of `local/tools/` and what each builds; pure apart from reading those
folders."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from local.paths import CLONE, cache

SOURCES = CLONE / "local" / "tools"
KUBERNETES = "1.35.4"
PULUMI = "3.259.0"
PROVIDER = "4.25.0"
_COMPONENT = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """One folder of `local/tools/`.

    programs: binary → Go package. variables: Go variable → value, set at link time (the versions that tools
    print).
    copies: name beside the binaries → (Go module of this go.mod or its replacement, version, path inside it).
    minutes: about what the build takes with a cold cache on two cores, for the first message only.
    """

    name: str
    programs: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    copies: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    minutes: float = 1

    @property
    def sources(self) -> Path:
        return SOURCES / self.name

    @property
    def ldflags(self) -> str:
        return " ".join(["-s -w", *(f"-X {key}={value}" for key, value in sorted(self.variables.items()))])

    def digest(self) -> str:
        """First 12 hex digits of the sha256 over the module's files and everything else that decides its
        binaries."""
        total = hashlib.sha256()
        for file in sorted(p for p in self.sources.iterdir() if p.is_file()):
            data = file.read_bytes()
            total.update(f"{file.name} {len(data)}\n".encode() + data)
        total.update(
            repr((sorted(self.programs.items()), self.ldflags, sorted(self.copies.items()))).encode()
        )
        return total.hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Where the built binaries are, below the cache."""
        return cache() / "tools" / f"{self.name}-{self.digest()}"

    def built(self) -> bool:
        return self.folder.is_dir()  # folders appear whole, by rename


_SDK = "github.com/pulumi/pulumi/sdk/v3"

MODULES = (
    Module(
        "kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kubectl",
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
            )
        },
        {
            f"{_COMPONENT}.gitVersion": f"v{KUBERNETES}",
            f"{_COMPONENT}.gitMajor": KUBERNETES.split(".", maxsplit=1)[0],
            f"{_COMPONENT}.gitMinor": KUBERNETES.split(".")[1],
        },
        minutes=7,
    ),
    Module("coredns", {"coredns": "github.com/coredns/coredns"}, minutes=3),
    Module(
        "helm", {"helm": "helm.sh/helm/v3/cmd/helm"}, {"helm.sh/helm/v3/internal/version.version": "v3.19.4"}
    ),
    Module(
        "pulumi",
        {"pulumi": "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"},
        {f"{_SDK}/go/common/version.Version": PULUMI},
        minutes=4,
    ),
    Module(
        # The newest language host that is a plain module; with it goes the helper script of the engine's own
        # version.
        "language",
        {"pulumi-language-python": f"{_SDK}/python/cmd/pulumi-language-python"},
        copies={
            "pulumi-language-python-exec": (
                _SDK,
                f"v{PULUMI}",
                "python/cmd/pulumi-language-python-exec",
            )
        },
    ),
    Module(
        "provider",
        {"pulumi-resource-kubernetes": "."},
        {"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version": PROVIDER},
        minutes=8,
    ),
    Module("helm-unittest", {"untt": "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"}, minutes=2),
    Module("helm-docs", {"helm-docs": "github.com/norwoodj/helm-docs/cmd/helm-docs"}),
)


def module(name: str) -> Module:
    return next(m for m in MODULES if m.name == name)
