"""Names, tags and digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import naming


def _folder(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "a.py").write_text("a")
    (root / "sub" / "b.py").write_text("b")
    return root


def test_folder_digest_is_equal_in_all_clones(tmp_path: Path) -> None:
    one, other = _folder(tmp_path / "one"), _folder(tmp_path / "other")
    (other / "__pycache__").mkdir()
    (other / "__pycache__" / "a.cpython-311.pyc").write_text("x")
    (other / "old.pyc").write_text("x")
    (other / ".hidden").write_text("x")
    assert naming.folder_digest(one) == naming.folder_digest(other)


@pytest.mark.parametrize("change", ["content", "name", "more"])
def test_folder_digest_changes_with_files(tmp_path: Path, change: str) -> None:
    folder = _folder(tmp_path / "one")
    before = naming.folder_digest(folder)
    if change == "content":
        (folder / "a.py").write_text("A")
    elif change == "name":
        (folder / "a.py").rename(folder / "c.py")
    else:
        (folder / "more.py").write_text("")
    assert naming.folder_digest(folder) != before


def test_folder_digest_separates_names_and_contents(tmp_path: Path) -> None:
    for name, content in (("one/ab", "c"), ("other/a", "bc")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    assert naming.folder_digest(tmp_path / "one") != naming.folder_digest(tmp_path / "other")


def test_image_reference_replaces_launcher_placeholder(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "launcher")
    assert naming.image_reference("x:{launcher}", folder) == f"x:{naming.folder_digest(folder)[:12]}"
    assert naming.image_reference("x@sha256:1", tmp_path / "absent") == "x@sha256:1"


def test_prefix_has_only_characters_that_aws_accepts() -> None:
    assert naming.prefix("paddle-training", "Org/dev.1") == "paddle-training-org-dev-1"
