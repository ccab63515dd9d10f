"""Names and numbers in JSON files on the storage that somebody else wrote: contents.json, manifest.json, run.json."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from launcher import schema
from launcher.dataprep import prepared_data
from launcher.errors import CheckpointError, DataError
from launcher.io import checkpoints, files
from launcher.paths import JobPaths, OutputPaths, Position, is_safe_name, position
from launcher.supervisor.shared_storage import output_folder
from tests.launcher.test_schema import FULL

NAMES = [
    "../evil",
    "/evil",
    "a/../../evil",
    "a/..",
    ".",
    "..",
    "",
    "a//b",
    "a/",
    "a\\b",
    "a\0b",
    "\ud800",
    "x" * 300,
]
NUMBERS = [-1, True, 1.5, "1", 2**53, 10**400]


OTHER_NAMES = ["a", "a/b", "...", "..a/b..", "ü/名", "a b\n", "~", "C:", "%2e%2e", "-rf"]


@pytest.mark.parametrize(
    ("name", "safe"), [*((name, False) for name in NAMES), *((name, True) for name in OTHER_NAMES)]
)
def test_only_a_name_that_is_a_path_below_a_folder_is_safe(name: str, safe: bool) -> None:
    assert is_safe_name(name) is safe


@pytest.mark.parametrize(
    "name",
    ["pass-" + "\u0660" * 5, "pass-" + "9" * 19, "pass-" + "9" * 5000, "pass-00001-batch-" + "9" * 5000],
)
def test_a_folder_name_with_other_digits_or_too_many_is_no_checkpoint(name: str) -> None:
    assert position(name) is None


def write_contents(output: Path, **changed: Any) -> Path:
    """Write the contents.json of a checkpoint with a correct checksum; keys with dots change inner values."""
    folder = OutputPaths(output).checkpoint(Position(1, 20))
    folder.mkdir(parents=True)
    value = json.loads(json.dumps(schema.to_json(schema.CheckpointContents(**FULL))))
    for key, new in changed.items():
        *parents, last = key.split(".")
        inner = value
        for parent in parents:
            inner = inner[parent]
        inner[last] = new
    files.write_json(folder / "contents.json", files.with_checksum(value))
    return folder


def test_the_contents_before_a_change_are_accepted(tmp_path: Path) -> None:
    assert checkpoints.read_contents(write_contents(tmp_path)).shards == 60


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("files", {name: {"bytes": 1, "sha256": "0"}}) for name in NAMES),
        *((key, number) for key in ("shards", "servers", "attempt") for number in NUMBERS),
        *(("tables.words.width", number) for number in NUMBERS),
        *(("files", {"a": {"bytes": number}}) for number in NUMBERS),
        ("shards", 0),
        ("shards", 10**9),
        ("ranks", [[1.0]]),
        ("rows", {"words": {"ids": [2**63], "values": [[0.0] * 4]}}),
        ("rows", {"words": {"ids": [1], "values": [[0.0] * 3]}}),
        ("rows", {"other": {"ids": [1], "values": [[0.0] * 4]}}),
    ],
)
def test_contents_with_a_hostile_value_are_one_reason(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_contents(tmp_path, **{key: value})
    (folder / "done").touch()
    with pytest.raises(CheckpointError, match=r"contents\.json"):
        checkpoints.read_contents(folder)
    assert "contents.json" in str(checkpoints.unusable_reason(folder))


@pytest.mark.parametrize("name", NAMES)
def test_a_scripts_checkpoint_with_a_hostile_name_is_not_used(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pass-00000"
    folder.mkdir()
    value = {"script": 1, "position": {"pass": 1, "batch": 0}, "attempt": 0, "files": {name: {"bytes": 0}}}
    files.write_json(folder / "contents.json", files.with_checksum(value))
    assert "contents.json" in str(checkpoints.unusable_reason(folder))


SHARD = {"index": 0, "bytes": 2, "sha256": "0", "lines": 1}
MANIFEST: dict[str, Any] = {
    "version": 2,
    "content": "0" * 64,
    "shards": [SHARD],
    "tables": [{"name": "t", "bytes": 1, "sha256": "0"}],
    "test": {"bytes": 0, "sha256": "0", "lines": 0},
}


@pytest.mark.parametrize(
    "changed",
    [
        *({"tables": [{"name": name, "bytes": 1, "sha256": "0"}]} for name in NAMES),
        *({"tables": [{"name": "t", "bytes": number, "sha256": "0"}]} for number in NUMBERS),
        *({"shards": [{**SHARD, "index": number}]} for number in [*NUMBERS, "../evil"]),
        *({"content": name} for name in [*NAMES, 1]),
        {"tables": ["../evil"]},
        {"shards": {"../evil": SHARD}},
        {"test": "../evil"},
    ],
)
def test_a_manifest_with_a_hostile_value_lists_no_files(tmp_path: Path, changed: dict[str, Any]) -> None:
    layout = JobPaths(tmp_path, "job")
    assert prepared_data.PreparedData(layout, MANIFEST).listed_files()
    with pytest.raises((DataError, KeyError, TypeError, ValueError)):
        prepared_data.PreparedData(layout, {**MANIFEST, **changed}).listed_files()


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_a_shard_have_names_below_its_folder(tmp_path: Path, name: str) -> None:
    data = prepared_data.PreparedData(JobPaths(tmp_path, "job"), MANIFEST)
    data.paths.shard(0).mkdir(parents=True)
    content = json.dumps({"files": [{"name": name, "bytes": 1, "sha256": "0"}]}).encode()
    (data.paths.shard(0) / prepared_data.LIST).write_bytes(content)
    shard = {"index": 0, "bytes": 1, "parts": 1, "sha256": hashlib.sha256(content).hexdigest()}
    with pytest.raises(DataError, match=r"files\.json is damaged"):
        data.shard_files(shard)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e400", "9" * 5000, "NaN"])
def test_a_number_that_no_float_can_hold_makes_a_file_unreadable(number: str) -> None:
    """A time or size of run.json becomes a float, which failed with OverflowError."""
    with pytest.raises(files.UnreadableError, match="is not JSON"):
        files.parse_json_object("run.json", f'{{"started": {number}}}'.encode(), schema.RunFile)
    assert files.parse_json_object("x", b'{"a": 18446744073709551615}') == {"a": 2**64 - 1}


def test_an_earlier_run_that_is_a_link_is_not_moved_to_the_output(tmp_path: Path) -> None:
    layout = JobPaths(tmp_path, "job")
    (tmp_path / "host").mkdir()
    layout.runs.mkdir(parents=True)
    layout.run("real").mkdir()
    layout.run("linked").symlink_to(tmp_path / "host")
    found = [output.root.name for output, _ in output_folder.read_earlier_runs(layout, lambda _: None)]
    assert found == ["real"]


@pytest.mark.parametrize("run_id", ["../../evil", "/evil", "..", ".", "", "a\0b", "x" * 10_000, "\ud800"])
def test_the_run_id_of_a_record_never_leads_out_of_the_folder_of_runs(tmp_path: Path, run_id: str) -> None:
    layout = JobPaths(tmp_path, "job")
    path = output_folder._find_free_path(layout, run_id)
    path.mkdir(parents=True)
    assert path.parent == layout.runs
    assert output_folder._find_free_path(layout, run_id) != path
