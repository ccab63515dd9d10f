"""Names, tags and digests."""

from __future__ import annotations

from pathlib import Path

from infra import naming
from testkit.written_files import write_files


def _folder(root: Path) -> Path:
    return write_files(root, {"a.py": "a", "sub/b.py": "b"})


def test_folder_digest_is_equal_in_all_clones(tmp_path: Path) -> None:
    one, other = _folder(tmp_path / "one"), _folder(tmp_path / "other")
    write_files(other, {"__pycache__/a.cpython-311.pyc": "x", "old.pyc": "x", ".hidden": "x"})
    assert naming.folder_digest(one) == naming.folder_digest(other)


def test_folder_digest_changes_with_contents_names_and_number_of_files(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one")
    found = [naming.folder_digest(folder)]
    (folder / "a.py").write_text("A")
    found.append(naming.folder_digest(folder))
    (folder / "a.py").rename(folder / "c.py")
    found.append(naming.folder_digest(folder))
    (folder / "more.py").write_text("")
    found.append(naming.folder_digest(folder))
    assert len(set(found)) == 4


def test_folder_digest_separates_names_and_contents(tmp_path: Path) -> None:
    write_files(tmp_path, {"one/ab": "c", "other/a": "bc"})
    assert naming.folder_digest(tmp_path / "one") != naming.folder_digest(tmp_path / "other")


def test_image_reference_replaces_launcher_placeholder(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "launcher")
    assert naming.image_reference("x:{launcher}", folder) == f"x:{naming.folder_digest(folder)[:12]}"
    assert naming.image_reference("x@sha256:1", tmp_path / "absent") == "x@sha256:1"


def test_prefix_has_only_characters_that_aws_accepts() -> None:
    assert naming.prefix("paddle-training", "Org/dev.1") == "paddle-training-org-dev-1"
