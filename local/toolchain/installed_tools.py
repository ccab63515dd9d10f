"""Find pulumi, helm and kubectl that the user has installed; compatible versions are used, never changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from local import console
from local.paths import cache
from local.toolchain.pinned_tools import HELM, KUBERNETES, PULUMI

Version = tuple[int, int, int]
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
OLDEST_HELM: Version = (3, 14, 0)  # the first with `upgrade --reset-then-reuse-values`


def parse_version(text: str) -> Version | None:
    """Return the first version number in the output of a tool, or None."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def is_compatible_pulumi(version: Version) -> bool:
    """Return whether the major version equals that of the locked SDK and the version is not older."""
    wanted = parse_version(PULUMI)
    return wanted is not None and version[0] == wanted[0] and version >= wanted


def is_compatible_helm(version: Version) -> bool:
    """Return whether the version is of Helm 3 or 4 and not older than `OLDEST_HELM`."""
    newest = parse_version(HELM)
    return newest is not None and OLDEST_HELM <= version < (newest[0] + 1, 0, 0)


def is_compatible_kubectl(version: Version) -> bool:
    """Return whether the version is within one minor version of the cluster (Kubernetes' skew policy)."""
    wanted = parse_version(KUBERNETES)
    return wanted is not None and version[0] == wanted[0] and abs(version[1] - wanted[1]) <= 1


REPLACEABLE: dict[str, tuple[tuple[str, ...], Callable[[Version], bool]]] = {
    "pulumi": (("version",), is_compatible_pulumi),
    "helm": (("version", "--short"), is_compatible_helm),
    "kubectl": (("version", "--client"), is_compatible_kubectl),
}
"""Program that can replace a built tool → the arguments with which it prints its version, and the check of that."""


def path_without_cache() -> str:
    """Return PATH without folders of the cache, so that a built tool is not mistaken for an installed one."""
    ours = str(cache())
    return os.pathsep.join(
        p
        for p in os.environ.get("PATH", "").split(os.pathsep)
        if p != ours and not p.startswith(ours + os.sep)
    )


def report_compatible_tools() -> dict[str, Path]:
    """Return the result of `find_compatible_tools` and print a line for each tool."""
    compatible = find_compatible_tools()
    for program, path in sorted(compatible.items()):
        console.info(f"{program}: {path} has a compatible version and is used")
    return compatible


def find_compatible_tools() -> dict[str, Path]:
    """Return the path of each program that is on PATH in a compatible version."""
    compatible = {}
    for program, (arguments, is_compatible) in REPLACEABLE.items():
        path = shutil.which(program, path=path_without_cache())
        if path is None:
            continue
        try:
            result = subprocess.run(
                [path, *arguments],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = parse_version(result.stdout) if result.returncode == 0 else None
        if version is not None and is_compatible(version):
            compatible[program] = Path(path)
    if "pulumi" in compatible and shutil.which("pulumi-language-python", path=path_without_cache()) is None:
        del compatible["pulumi"]  # pulumi without its Python language host cannot run the program
    return compatible
