"""Model folders and requests that somebody else made: names in model.json, and bodies of requests to /predict."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.serving.paddle_served import ModelError, RowError
from launcher.serving.paddle_served.http_server import read_rows
from launcher.serving.paddle_served.model import read_description

ABOUT: dict[str, Any] = {
    "version": 2,
    "config": "trainer_config.py",
    "columns": ["text", "label"],
    "features": ["words"],
    "label": "label",
    "options": {},
    "lookups": [{"table": "a/b", "ids": "words", "vectors": "v"}],
    "ids": [],
    "tables": {"a/b": {"rows": 1, "width": 2}},
    "files": {"program/trainer_config.py": 0},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a model folder with a model.json, and a file outside of it."""
    (tmp_path / "evil").write_text("")
    model = tmp_path / "model"
    (model / "program").mkdir(parents=True)
    (model / "program" / "trainer_config.py").write_text("")
    (model / "model.json").write_text(json.dumps(ABOUT))
    return model


def test_the_description_before_a_change_is_accepted(folder: Path) -> None:
    assert read_description(folder)["tables"]["a/b"] == {"rows": 1, "width": 2}


@pytest.mark.parametrize(
    "changed",
    [
        *({"config": name} for name in ("../../evil", "/etc/passwd", "", "..", "a\0", 7, None)),
        *(
            {"files": {name: 0}}
            for name in ("../evil", "/etc/passwd", "", "a/../../evil", "a\0b", "model//x")
        ),
        *({"files": {"program/trainer_config.py": size}} for size in (-1, True, 0.0, "0", None, 10**400)),
        *({"tables": {"a/b": {"rows": n, "width": 2}}} for n in (-1, True, 1.5, "1", 10**15 * 10**15)),
        *({"tables": {name: {"rows": 1, "width": 2}}} for name in ("..", ".", "", "other")),
        *({key: value} for key in ABOUT if key not in ("version", "label") for value in (None, 1)),
        *({"columns": value} for value in ([1], [None], [["a"]])),
        *({key: ...} for key in ABOUT if key not in ("version", "label")),  # the key is missing
        {"lookups": [{"table": "a/b"}]},
        {"features": []},
        {"files": ["program/trainer_config.py"]},
    ],
)
def test_a_description_with_a_hostile_value_is_one_message(folder: Path, changed: dict[str, Any]) -> None:
    (folder / "model.json").write_text(
        json.dumps({k: v for k, v in (ABOUT | changed).items() if v is not ...})
    )
    with pytest.raises(
        ModelError, match=r"model\.json (is damaged|cannot be read).* Fix: copy the model again"
    ):
        read_description(folder)


MODEL: Any = SimpleNamespace(program=SimpleNamespace(columns=["text", "size"]))


def read(body: Any) -> list[dict[str, Any]]:
    return read_rows(body if isinstance(body, bytes) else json.dumps(body).encode(), MODEL, "FORM")


def test_rows_with_all_or_some_columns_are_read() -> None:
    rows = [{"text": "\u00e4", "size": 1.5}, {"text": "b"}, {}]
    assert read({"rows": rows, "other": 1}) == rows


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty"),
        (b"null", "the body is no JSON object"),
        (b"[1]", "the body is no JSON object"),
        (b"{}", "rows: Field required"),
        (b"{", "the body is not JSON (Expecting property name"),
        (b'{"rows": [' + b"[" * 500_000, "too many levels"),
        (b'{"rows": ' + b"9" * 10_000 + b"}", "too many levels or digits"),
        (b"\xff\xfe\x00", "not JSON in UTF-8"),
        ({"rows": {"text": "a"}}, "rows: Input should be a valid list"),
        ({"rows": []}, "rows: List should have at least 1 item"),
        ({"rows": [{"text": "a"}] * 10_001}, "at most 10000 items, not 10001"),
        ({"rows": [{"text": "a"}, 7]}, "rows.1: Input should be a valid dictionary"),
        ({"rows": [{"text": None}]}, "rows.0.text: Input should be a text or a number"),
        ({"rows": [{"text": True}]}, "rows.0.text"),
        ({"rows": [{"text": {"a": 1}}]}, "rows.0.text"),
        ({"rows": [{"text": "a"}, {"txet": "a", "size": 1}]}, "row 2 has the column 'txet'"),
        ({"rows": [{"x" * 1000: 1}]}, "which the model does not know: its columns are text, size"),
    ],
)
def test_an_invalid_body_is_one_message_with_a_fix(body: Any, message: str) -> None:
    with pytest.raises(RowError) as caught:
        read(body)
    assert message in str(caught.value)
    assert str(caught.value).count("Fix: ") == 1
    assert len(str(caught.value)) < 400
