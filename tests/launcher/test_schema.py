"""Tests of converting dataclasses of launcher/schema/ to JSON values and back."""

from __future__ import annotations

import json
from typing import Any, TypedDict

import pytest

from launcher import schema
from launcher.paths import Position
from launcher.schema import (
    CheckpointContents,
    CheckpointFile,
    CheckpointRows,
    CheckpointScores,
    CheckpointTable,
)

FULL: dict[str, Any] = {
    "version": 7,
    "position": Position(1, 20),
    "attempt": 2,
    "servers": 2,
    "shards": 60,
    "ranks": [[1.0, 2.5, 3.0]],
    "tables": {"words": CheckpointTable(4, "adam")},
    "files": {"params.npz": CheckpointFile(10, "cd"), "path.txt": CheckpointFile(5)},
    "rows": {"words": CheckpointRows([7], [[0.5, 0.0, 0.0, 1.0]])},
}


def test_to_json_uses_the_keys_of_the_file_and_leaves_out_defaults() -> None:
    value = schema.to_json(CheckpointContents(**FULL))
    assert value["position"] == {"pass": 1, "batch": 20}
    assert value["files"] == {"params.npz": {"bytes": 10, "sha256": "cd"}, "path.txt": {"bytes": 5}}
    assert value["tables"] == {"words": {"width": 4, "rule": "adam"}}
    assert not {"outputId", "output_id", "scores"} & set(value)


def test_from_json_returns_what_to_json_was_given() -> None:
    more = {
        "output_id": "here",
        "scores": CheckpointScores("auc", [[1, 0.5], [2, None]]),
    }
    for contents in (CheckpointContents(**FULL), CheckpointContents(**FULL, **more)):
        text = json.dumps(schema.to_json(contents))
        assert schema.from_json(CheckpointContents, json.loads(text)) == contents


def test_from_json_ignores_unknown_keys() -> None:
    assert schema.from_json(CheckpointFile, {"bytes": 1, "sha256": "b", "later": 1}) == CheckpointFile(1, "b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": {"pass": 1}}, "position has no 'batch'"),
        ({"files": {"a": {"bytes": "10"}}}, "files.a.bytes is '10'"),
        ({"rows": {"words": {"ids": [True], "values": []}}}, "rows.words.ids.0 is True"),
        ({"version": None}, "version is None"),
    ],
)
def test_from_json_raises_for_a_missing_key_or_a_wrong_type(change: dict[str, Any], message: str) -> None:
    value = schema.to_json(CheckpointContents(**FULL)) | change
    with pytest.raises(ValueError, match=message):
        schema.from_json(CheckpointContents, value)


class Flags(TypedDict, total=False):
    on: bool
    maybe: bool | None
    many: list[bool]
    named: dict[str, bool]
    number: int


FITTING: list[dict[str, Any]] = [{"on": True}, {"on": False}, {"maybe": None}, {"maybe": True}]
FITTING += [{"many": [True, False]}, {"named": {"a": True}}]
OTHER: list[dict[str, Any]] = [{"on": 1}, {"on": "true"}, {"on": None}, {"maybe": 0}, {"many": [1]}]
OTHER += [{"named": {"a": 0}}, {"number": True}]


@pytest.mark.parametrize(
    ("value", "fits"), [*((value, True) for value in FITTING), *((value, False) for value in OTHER)]
)
def test_only_booleans_fit_bool_and_they_fit_no_number(value: dict[str, Any], fits: bool) -> None:
    """Regression: `mismatch` rejected every boolean."""
    assert (schema.mismatch(value, Flags) is None) == fits
