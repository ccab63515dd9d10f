"""The packaged charts: equal charts give equal archives. tests/local/test_release.py pushes and pulls them."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from chart_tools import ROOT

from local.package_charts import NAMES, package_chart


@pytest.mark.parametrize("name", NAMES)
def test_archive_depends_only_on_the_chart(name: str, tmp_path: Path) -> None:
    copy = tmp_path / name
    shutil.copytree(ROOT / "charts" / name, copy)
    for path in copy.rglob("*"):
        os.utime(path, (0, 0))
    first, other = (
        package_chart(ROOT / "charts" / name, tmp_path / "first"),
        package_chart(copy, tmp_path / "other"),
    )
    assert first.read_bytes() == other.read_bytes()
    with tarfile.open(first) as archive:
        assert {member.mtime for member in archive} == {0}, "helm's own would have the time of the day"
