"""Find pulumi, helm and kubectl that the user has installed; compatible versions are used, never changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local import console
from local.paths import cache
from local.toolchain import compatible_versions


@dataclass(frozen=True)
class InstalledTool:
    """A program that can replace a built tool: its version command and the check of its version."""

    program: str
    version_arguments: tuple[str, ...]
    is_compatible: Callable[[compatible_versions.Version], bool]


REPLACEABLE = (
    InstalledTool("pulumi", ("version",), compatible_versions.is_compatible_pulumi),
    InstalledTool("helm", ("version", "--short"), compatible_versions.is_compatible_helm),
    InstalledTool("kubectl", ("version", "--client"), compatible_versions.is_compatible_kubectl),
)


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
    for tool in REPLACEABLE:
        path = shutil.which(tool.program, path=path_without_cache())
        if path is None:
            continue
        try:
            result = subprocess.run(
                [path, *tool.version_arguments],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = compatible_versions.parse_version(result.stdout) if result.returncode == 0 else None
        if version is not None and tool.is_compatible(version):
            compatible[tool.program] = Path(path)
    if "pulumi" in compatible and shutil.which("pulumi-language-python", path=path_without_cache()) is None:
        del compatible["pulumi"]  # pulumi without its Python language host cannot run the program
    return compatible
