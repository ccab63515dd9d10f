"""Write files and executable scripts for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write texts or bytes to files by their paths below `folder`, whose folders are created; return `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def write_script(path: Path, text: str) -> Path:
    """Write an executable script, such as a stand-in for a program on PATH; return its path."""
    write_files(path.parent, {path.name: text})
    path.chmod(0o755)
    return path
