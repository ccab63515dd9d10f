"""Find pulumi, helm and kubectl that the user has installed; suitable versions are used, never changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from packaging.specifiers import SpecifierSet

from local import console
from local.go_tools import KUBERNETES, PULUMI
from local.paths import cache

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_MINOR = int(KUBERNETES.split(".")[1])
SUITABLE = {
    "pulumi": (("version",), SpecifierSet(f">={PULUMI},<{int(PULUMI.split('.')[0]) + 1}")),
    "helm": (
        ("version", "--short"),
        SpecifierSet(">=3.14,<5"),
    ),  # 3.14 has `upgrade --reset-then-reuse-values`
    # within one minor version of the cluster: Kubernetes' skew policy
    "kubectl": (("version", "--client"), SpecifierSet(f">=1.{_MINOR - 1},<1.{_MINOR + 2}")),
}
"""Program that can replace a built tool → the arguments with which it prints its version, and the suitable versions."""


def is_suitable(program: str, printed: str) -> bool:
    """Return whether the first version number in the program's output `printed` is suitable."""
    found = _VERSION.search(printed)
    return found is not None and SUITABLE[program][1].contains(found[0])


def path_without_cache() -> str:
    """Return PATH without folders of the cache, so that a built tool is not mistaken for an installed one."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not Path(folder).is_relative_to(cache()))


def report_compatible_tools() -> dict[str, Path]:
    """Return the result of `find_compatible_tools` and print a line for each tool."""
    compatible = find_compatible_tools()
    for program, path in sorted(compatible.items()):
        console.info(f"{program}: {path} has a compatible version and is used")
    return compatible


def find_compatible_tools() -> dict[str, Path]:
    """Return the path of each program that is on PATH in a suitable version."""
    compatible, search_path = {}, path_without_cache()
    for program, (arguments, _) in SUITABLE.items():
        if (path := shutil.which(program, path=search_path)) is None:
            continue
        # pulumi without its Python language host cannot run the program
        if program == "pulumi" and shutil.which("pulumi-language-python", path=search_path) is None:
            continue
        try:
            argv = [path, *arguments]
            ended = subprocess.run(
                argv, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ended.returncode == 0 and is_suitable(program, ended.stdout):
            compatible[program] = Path(path)
    return compatible
