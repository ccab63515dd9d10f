"""`predict`: what a trained model says of rows, in this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.cli.problems import UsageError
from launcher.errors import DataError


def run(folder: Path, cells: Sequence[str], rows: Path | None) -> list[dict[str, Any]]:
    """For each row {"prediction": list, "words": text or None, "unknownIds": of all rows}.

    `cells`: a row as `column=value`. `rows`: more of them, JSON, one a line; `-`: stdin.
    Raises `UsageError`, or `DataError` for a wrong row or model.
    """
    from launcher.served import Model, ServedError  # loads numpy, which the other commands do without
    from launcher.served.model import description

    asked: list[dict[str, Any]] = [_row(cells)] if cells else []
    if rows is not None:
        asked += _read(rows)
    if not asked:
        raise UsageError("there is no row to predict: give column=value, or --rows FILE.")
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle's notes on its executors
    if not (folder / "model.json").exists() and (folder / "model").is_dir():
        folder = folder / "model"  # what `results --to` made
    try:
        description(folder)  # told before Paddle is loaded
        answer = Model(folder).answer(asked)
    except ServedError as error:
        raise DataError(str(error)) from error
    return [
        {
            "prediction": prediction.tolist(),
            "words": answer.words[number] if answer.words else None,
            "unknownIds": answer.unknown,
        }
        for number, prediction in enumerate(answer.predictions)
    ]


def text(found: dict[str, Any]) -> str:
    """The program's own words, or the whole vector."""
    if found["words"] is not None:
        return str(found["words"])
    value = found["prediction"]
    return " ".join(f"{number:.6g}" for number in value) if _flat(value) else json.dumps(value)


def _flat(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, float) for item in value)


def _row(cells: Sequence[str]) -> dict[str, str]:
    if wrong := [cell for cell in cells if "=" not in cell]:
        raise UsageError(f"{wrong[0]!r} is no column=value. Write for instance text='what a lovely day'.")
    return dict(cell.partition("=")[::2] for cell in cells)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        content = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"--rows {path}: there is no such file.") from None
    except OSError as error:
        raise UsageError(f"--rows {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"--rows {path} is no text in UTF-8: {error}.") from error
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"--rows {path}, line {number} is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise DataError(f'--rows {path}, line {number} is no row, but must be such as {{"text": "…"}}.')
        rows.append(row)
    return rows
