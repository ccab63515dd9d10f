"""Tests of damaged and foreign files in an output folder, without Paddle: a reason, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import EXIT_UNFIT, DataError, LauncherError
from launcher.io import checkpoints, files
from launcher.paths import OutputPaths, Position

from .test_checkpoint_folder import prune, write, write_chain

OLDER, NEWEST = Position(1), Position(2)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def flips(path: Path, every: int = 1) -> Iterator[bytes]:
    """Yield the content of `path` with one bit flipped, for each byte in turn, or for one of `every` bytes."""
    content = path.read_bytes()
    for place in range(0, len(content), every):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        yield bytes(flipped)


def unsealed(path: Path) -> dict[str, Any]:
    """Return the object in `path` as an older launcher wrote it: without a checksum."""
    value: dict[str, Any] = json.loads(path.read_text())
    value.pop("checksum", None)
    return value


def damages(value: Any) -> Iterator[Callable[[], object]]:
    """Yield functions that change one key or value in a copy of `value`."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        for other in (None, [], {}, "x", -1.5):
            yield lambda v, key=key, other=other: v.__setitem__(key, other)  # type: ignore[misc]
        if isinstance(value, dict):
            yield lambda v, key=key: v.__setitem__(f"{key}x", v.pop(key))  # type: ignore[misc]
        if isinstance(value[key], dict | list):
            for inner in damages(value[key]):
                yield lambda v, key=key, inner=inner: inner(v[key])  # type: ignore[misc, call-arg]


@pytest.mark.slow
def test_a_flipped_bit_in_contents_json_is_harmless_or_makes_only_that_checkpoint_unusable(
    output: Path,
) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / "contents.json"
    intact = path.read_bytes()
    as_saved = checkpoints.read_contents(path.parent)
    unusable = 0
    for content in flips(path):
        path.write_bytes(content)
        found = checkpoints.newest_checkpoint(output)
        if found == NEWEST:  # white space, or the name of the checksum
            assert checkpoints.read_contents(path.parent) == as_saved
        else:
            assert found == OLDER
            unusable += 1
    assert unusable > 0.7 * len(intact)


def test_every_changed_key_and_value_of_contents_json_is_rejected_with_a_reason(output: Path) -> None:
    """Uses a file without checksum, as older launchers wrote it."""
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / "contents.json"
    path.write_text(json.dumps(unsealed(path)))
    assert checkpoints.newest_checkpoint(output) == NEWEST, "an older launcher's checkpoint is usable"
    intact = path.read_text()
    reasons = set()
    for damage in damages(json.loads(intact)):
        value = json.loads(intact)
        damage(value)  # type: ignore[call-arg]
        path.write_text(json.dumps(value))
        found = checkpoints.newest_checkpoint(output)
        if found == OLDER:
            reasons.add(str(checkpoints.unusable_reason(path.parent)))
        else:
            assert found == NEWEST
    assert any("'bytes'" in reason for reason in reasons)
    assert all("contents.json" in reason or "missing" in reason or "bytes" in reason for reason in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["contents.json", "rejected.json"])
def test_a_damaged_member_of_a_chain_makes_only_later_members_unusable(output: Path, name: str) -> None:
    base, first, second, third = write_chain(output)
    if name == "rejected.json":
        checkpoints.reject(output / second.folder, "other bytes", 1)
    path = output / second.folder / name
    for content in flips(path, every=3):  # all bits: 3 and 8 have no common divisor
        path.write_bytes(content)
        assert checkpoints.newest_checkpoint(output) in (first, second), (
            "never the third one, which continues it"
        )
    path = output / third.folder / "contents.json"
    shutil.rmtree(output)
    write_chain(output)
    value = unsealed(path)
    for folder in ("", "..", "a/b", "pass-1", 7):
        value["chain"][0]["folder"] = folder
        path.write_text(json.dumps(value))
        assert checkpoints.newest_checkpoint(output) == second
    assert base.passes == 1


def test_a_rejected_checkpoint_stays_rejected_when_refused_json_is_damaged(output: Path) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / checkpoints.REJECTED
    for content in (b"", b"\xff\xfe", b"[]", b"{}", b'{"reason": 1}'):
        path.write_bytes(content)
        assert checkpoints.newest_checkpoint(output) == OLDER


def test_a_copied_checkpoint_folder_is_unusable_and_not_counted_by_pruning(output: Path) -> None:
    last = write(output, OLDER)
    shutil.copytree(output / OLDER.folder, output / "pass-99999")
    assert checkpoints.newest_checkpoint(output) == OLDER
    reason = str(checkpoints.unusable_reason(output / "pass-99999"))
    assert "contents.json describes the end of pass 1, not the end of pass 100000" in reason
    assert prune(last, 1) == [], "the copy is not counted"
    shutil.rmtree(output / OLDER.folder)
    with pytest.raises(DataError, match=r"pass-99999: contents.json describes"):
        checkpoints.newest_checkpoint(output)


def test_a_checkpoint_of_another_output_is_unusable(output: Path) -> None:
    for folder, own in ((output, "a" * 16), (output.with_name("other"), "b" * 16)):
        folder.mkdir()
        files.write_json(OutputPaths(folder).run_json, files.with_checksum({"outputId": own}))
    last = write(output, OLDER)
    for at in (NEWEST, Position(3)):
        write(output.with_name("other"), at)
        shutil.copytree(output.with_name("other") / at.folder, output / at.folder)
    assert checkpoints.newest_checkpoint(output) == OLDER
    assert prune(last, 2) == []
    assert checkpoints.newest_checkpoint(output) == OLDER, (
        "copies from another output do not count for keepCheckpoints"
    )
    (output / OLDER.folder / "done").unlink()
    with pytest.raises(
        DataError, match=r"pass-00001: contents.json has outputId b+, but run.json next to the folder has a+"
    ):
        checkpoints.newest_checkpoint(output)


def test_pruning_keeps_the_checkpoint_that_a_run_resumed_from_before_a_truncated_one(output: Path) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    part = next((output / NEWEST.folder).rglob("part-*"))
    part.write_bytes(part.read_bytes()[:-1])
    assert checkpoints.newest_checkpoint(output) == OLDER
    inside = Position(1, 4)
    last = write(output, inside, 1)
    assert prune(last, 1) == [OLDER.folder]
    assert checkpoints.newest_checkpoint(output) == inside, "the truncated one is not counted"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_publish_replaces_a_link_or_file_under_the_final_name(
    output: Path, tmp_path: Path, kind: str
) -> None:
    write(output, OLDER)
    write(tmp_path / "elsewhere", NEWEST)
    there = tmp_path / "elsewhere" / NEWEST.folder
    if kind == "link":
        (output / NEWEST.folder).symlink_to(there)
    else:
        (output / NEWEST.folder).touch()
    assert checkpoints.newest_checkpoint(output) == OLDER
    last = write(output, NEWEST, 1)
    assert (there / "done").is_file()
    assert checkpoints.newest_checkpoint(output) == NEWEST
    assert prune(last, 1) == [OLDER.folder]


def test_a_damaged_checkpoint_is_an_error_with_the_exit_code_for_another_attempt(output: Path) -> None:
    """The next attempt resumes from the checkpoint before; exit code 65 would end the run."""
    write(output, NEWEST)
    (output / NEWEST.folder / "contents.json").write_text("{")
    with pytest.raises(LauncherError, match=r"contents\.json") as caught:
        checkpoints.read_contents(output / NEWEST.folder)
    assert caught.value.exit_code == EXIT_UNFIT
