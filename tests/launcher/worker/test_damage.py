"""Damaged and foreign files in an output folder, without Paddle: refused by name, and never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import files
from launcher.errors import EXIT_UNFIT, DataError, LauncherError
from launcher.layout import Output, Position
from launcher.reporting.curve import parse_metrics
from launcher.worker import checkpoint, outputs
from launcher.worker.books import add_metrics

from .test_outputs import write, write_chain

OLDER, NEWEST = Position(1), Position(2)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def flips(path: Path) -> Iterator[bytes]:
    """The content of `path` with one bit flipped, each byte in turn; every bit has its turn."""
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        yield bytes(flipped)


def unsealed(path: Path) -> dict[str, Any]:
    """The object in `path` as an older launcher wrote it: without a checksum."""
    value: dict[str, Any] = json.loads(path.read_text())
    value.pop("checksum", None)
    return value


def damages(value: Any) -> Iterator[Callable[[], object]]:
    """For each key and value below `value`: a change in place, to be called on a fresh copy's path."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        for other in (None, [], {}, "x", -1.5):
            yield lambda v, key=key, other=other: v.__setitem__(key, other)  # type: ignore[misc]
        if isinstance(value, dict):
            yield lambda v, key=key: v.__setitem__(f"{key}x", v.pop(key))  # type: ignore[misc]
        if isinstance(value[key], dict | list):
            for inner in damages(value[key]):
                yield lambda v, key=key, inner=inner: inner(v[key])  # type: ignore[misc, call-arg]


def test_every_flipped_bit_of_a_checkpoints_contents_is_harmless_or_costs_that_checkpoint_alone(
    output: Path,
) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / "contents.json"
    whole = path.read_bytes()
    as_saved = outputs.contents(path.parent)
    refused = 0
    for content in flips(path):
        path.write_bytes(content)
        found = outputs.newest_save(output)
        if found == NEWEST:  # white space, or the name of the checksum
            read = dict(outputs.contents(path.parent))
            assert {key: read[key] for key in as_saved} == as_saved
        else:
            assert found == OLDER
            refused += 1
    assert refused > 0.7 * len(whole)


def test_every_other_key_and_value_in_an_older_contents_file_is_refused_by_name(output: Path) -> None:
    """Without a checksum, as launchers before wrote it."""
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / "contents.json"
    path.write_text(json.dumps(unsealed(path)))
    assert outputs.newest_save(output) == NEWEST, "an older launcher's checkpoint is still good"
    whole = path.read_text()
    refused = set()
    for damage in damages(json.loads(whole)):
        value = json.loads(whole)
        damage(value)  # type: ignore[call-arg]
        path.write_text(json.dumps(value))
        found = outputs.newest_save(output)
        if found == OLDER:
            refused.add(str(outputs.fault(path.parent)))
        else:
            assert found == NEWEST
    assert any("'bytes'" in reason for reason in refused)
    assert all("contents.json" in reason or "missing" in reason or "bytes" in reason for reason in refused)


@pytest.mark.parametrize("name", ["contents.json", "refused.json"])
def test_a_damaged_member_of_a_chain_costs_only_what_continues_it(output: Path, name: str) -> None:
    base, first, second, third = write_chain(output)
    if name == "refused.json":
        checkpoint.refuse(output / second.folder, "other bytes", 1)
    path = output / second.folder / name
    for content in flips(path):
        path.write_bytes(content)
        assert outputs.newest_save(output) in (first, second), "never the third, which continues it"
    path = output / third.folder / "contents.json"
    shutil.rmtree(output)
    write_chain(output)
    value = unsealed(path)
    for folder in ("", "..", "a/b", "pass-1", 7):
        value["chain"][0]["folder"] = folder
        path.write_text(json.dumps(value))
        assert outputs.newest_save(output) == second
    assert base.passes == 1


def test_a_refused_checkpoint_stays_refused_whatever_becomes_of_the_file_that_says_so(output: Path) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / outputs.REFUSED
    for content in (b"", b"\xff\xfe", b"[]", b"{}", b'{"reason": 1}'):
        path.write_bytes(content)
        assert outputs.newest_save(output) == OLDER


def test_a_folder_copied_by_hand_is_refused_by_name_and_costs_no_checkpoint(output: Path) -> None:
    last = write(output, OLDER)
    shutil.copytree(output / OLDER.folder, output / "pass-99999")
    assert outputs.newest_save(output) == OLDER
    reason = str(outputs.fault(output / "pass-99999"))
    assert "contents.json is of the end of pass 1, not the end of pass 100000" in reason
    assert last.prune(1) == [], "it does not count for one of the newest"
    shutil.rmtree(output / OLDER.folder)
    with pytest.raises(DataError, match=r"pass-99999: contents.json is of"):
        outputs.newest_save(output)


def test_a_checkpoint_of_another_output_is_refused_by_name(output: Path) -> None:
    for folder, own in ((output, "a" * 16), (output.with_name("other"), "b" * 16)):
        folder.mkdir()
        files.write_json(Output(folder).run_json, files.sealed({"outputId": own}))
    last = write(output, OLDER)
    for at in (NEWEST, Position(3)):
        write(output.with_name("other"), at)
        shutil.copytree(output.with_name("other") / at.folder, output / at.folder)
    assert outputs.newest_save(output) == OLDER
    assert last.prune(2) == []
    assert outputs.newest_save(output) == OLDER, "copies from another output take no place of keepSaves"
    (output / OLDER.folder / "done").unlink()
    with pytest.raises(DataError, match=r"pass-00001: contents.json is of output b+, but run.json of a+"):
        outputs.newest_save(output)


def test_pruning_keeps_the_checkpoint_that_a_run_resumed_from_before_a_truncated_one(output: Path) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    part = next((output / NEWEST.folder).rglob("part-*"))
    part.write_bytes(part.read_bytes()[:-1])
    assert outputs.newest_save(output) == OLDER
    inside = Position(1, 4)
    last = write(output, inside, 1)
    assert last.prune(1) == [OLDER.folder]
    assert outputs.newest_save(output) == inside, "the truncated one does not count for one of the newest"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_stands_in_a_checkpoints_way_is_replaced_and_no_link_is_followed(
    output: Path, tmp_path: Path, kind: str
) -> None:
    write(output, OLDER)
    write(tmp_path / "elsewhere", NEWEST)
    there = tmp_path / "elsewhere" / NEWEST.folder
    if kind == "link":
        (output / NEWEST.folder).symlink_to(there)
    else:
        (output / NEWEST.folder).touch()
    assert outputs.newest_save(output) == OLDER
    last = write(output, NEWEST, 1)
    assert (there / "done").is_file()
    assert outputs.newest_save(output) == NEWEST
    assert last.prune(1) == [OLDER.folder]


def test_a_worker_that_finds_a_damaged_checkpoint_asks_for_another_attempt(output: Path) -> None:
    """The launcher then takes the one before; 65 would end the run."""
    write(output, NEWEST)
    (output / NEWEST.folder / "contents.json").write_text("{")
    with pytest.raises(LauncherError, match=r"contents\.json") as caught:
        outputs.contents(output / NEWEST.folder)
    assert caught.value.exit_code == EXIT_UNFIT


RANKS = [(100, 2.0, 0.5), (90, 1.0, 0.6)]


def test_every_flipped_bit_of_metrics_csv_keeps_the_other_rows_and_the_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for number in range(3):
        add_metrics(tmp_path, number, 0, RANKS, {"error": 0.25})
    whole = path.read_text().splitlines()
    set_aside = 0
    for content in flips(path):
        path.write_bytes(content)
        add_metrics(tmp_path, 3, 0, RANKS, {"error": 0.2})
        lines = path.read_text().splitlines()
        assert lines[0] == whole[0]
        assert lines[-2:] == ["3,0,0,100,2.000,50.0,0.5,0.2", "3,1,0,90,1.000,90.0,0.6,"]
        assert len(set(whole[1:]) - set(lines)) <= 2, "one row, or two that became one"
        for damaged in tmp_path.glob("metrics.csv.damaged-*"):
            assert damaged.read_bytes() == content
            damaged.unlink()
            set_aside += 1
        assert {p.name for p in tmp_path.iterdir()} == {"metrics.csv"}
    assert set_aside > len(whole[0]), "not a digit that became another one"


def test_damaged_metrics_are_set_aside_each_under_a_name_of_its_own_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    for content in (b"\xff\xfe\0", b"pars,rank\n0,0\n"):
        path.write_bytes(content)
        add_metrics(tmp_path, 0, 0, RANKS, {})
    assert (tmp_path / "metrics.csv.damaged-1").read_bytes() == b"\xff\xfe\0"
    assert (tmp_path / "metrics.csv.damaged-2").read_bytes() == b"pars,rank\n0,0\n"
    assert "metrics.csv.damaged-2" in caplog.text


def test_readers_of_damaged_metrics_show_the_rows_that_are_left(tmp_path: Path) -> None:
    for number in range(3):
        add_metrics(tmp_path, number, 0, RANKS, {"error": 0.25})
    for content in flips(tmp_path / "metrics.csv"):
        assert 4 <= len(parse_metrics(content.decode(errors="replace"))) <= 6
