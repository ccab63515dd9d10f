"""Prepare Go sources without the parts of Pulumi and its provider that the stacks of this project never use.

Left out are backends and secrets in Google Cloud, Azure and Vault, `pulumi logs`, and provider components
that need one Go type per Kubernetes kind: a quarter of the code that would be compiled.
`local/tools/left-out/` has one folder per trimmed module. A folder with a go.mod replaces the whole module;
the files of other folders replace the files of the module at the same path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from local.errors import LocalError
from local.toolchain.pinned_tools import SOURCES

MODULES = {
    "gocloud": "gocloud.dev",
    "google-api": "google.golang.org/api",
    "hashivault": "gocloud.dev/secrets/hashivault",
    "kubernetes-provider": "github.com/pulumi/pulumi-kubernetes/provider/v4",
    "kubernetes-sdk": "github.com/pulumi/pulumi-kubernetes/sdk/v4",
    "pulumi": "github.com/pulumi/pulumi/pkg/v3",
}


def create_source_folder(work: Path, go: Callable[..., str]) -> None:
    """Create the folder `work`, or replace it: a copy of `local/tools/` whose go.mod replaces the trimmed modules.

    `go` runs Go with the given arguments in the folder `cwd` and returns its output.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCES, work)
    for name, module in MODULES.items():
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
