"""The Go sources to build from: the pinned modules without what a stack never uses here.

Left out are the clouds of Google and Azure and Vault as backends and for secrets, `pulumi logs`, and the
provider's components that need a Go type for each kind of Kubernetes: a quarter of all that would be
compiled. `local/tools/left-out/` has a folder for each module that is cut: a whole one (with a go.mod) stands
for the module, the files of another one for those of the same path in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from local.errors import LocalError
from local.toolchain.tools import SOURCES

MODULES = {
    "gocloud": "gocloud.dev",
    "google-api": "google.golang.org/api",
    "hashivault": "gocloud.dev/secrets/hashivault",
    "kubernetes-provider": "github.com/pulumi/pulumi-kubernetes/provider/v4",
    "kubernetes-sdk": "github.com/pulumi/pulumi-kubernetes/sdk/v4",
    "pulumi": "github.com/pulumi/pulumi/pkg/v3",
}


def lay(work: Path, go: Callable[..., str]) -> None:
    """Make `work` a copy of `local/tools/` whose go.mod names the cut modules.

    go: runs `go` with these words in a folder (`cwd`), and returns what it prints.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCES, work)
    for name, module in MODULES.items():
        folder = work / "left-out" / name
        if not (folder / "go.mod").exists():
            package = next(folder.rglob("*.go")).parent.relative_to(folder)
            fill(folder, module_folder(f"{module}/{package}", work, go))
        go("mod", "edit", f"-replace={module}=./left-out/{name}", cwd=work)


def module_folder(package: str, work: Path, go: Callable[..., str]) -> Path:
    """Where the module with this Go package lies, seen from `work`."""
    return Path(go("list", "-find", "-f", "{{.Module.Dir}}", package, cwd=work).strip())


def fill(folder: Path, whole: Path) -> None:
    """Complete `folder` by the module at `whole`, with links; its own files stay.

    Raises:
        LocalError: one of its own files has no counterpart in the module.
    """
    for file in (path for path in folder.rglob("*") if path.is_file()):
        if not (whole / file.relative_to(folder)).is_file():
            raise LocalError(
                f"local/tools/left-out/{folder.name}/{file.relative_to(folder)} stands for a file that "
                f"{whole.name} does not have: the module's version has changed, and the file must follow."
            )
    for path, _, files in os.walk(whole):
        here = folder / Path(path).relative_to(whole)
        here.mkdir(exist_ok=True)
        for name in files:
            if not (here / name).exists():
                os.link(Path(path) / name, here / name)
