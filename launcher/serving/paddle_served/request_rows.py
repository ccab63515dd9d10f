"""Parse and check the body of a request to /predict. This takes seconds for a large body, so run it in a thread."""

from __future__ import annotations

import json
import threading
from typing import Any

from .errors import RowError
from .model import Model

MAX_ROWS = 10_000
_parsing = threading.Lock()
"""Held while a body is parsed: the values of a hostile body need 30 times as much memory as its text."""


def read_rows(body: bytes, model: Model, form: str) -> list[dict[str, Any]]:
    """Return the rows in the body of a request.

    Rows with a column that the model does not know are rejected before any row is predicted. `form` is an example of a
    body, for messages.

    Raises:
        RowError: the body is invalid; the message describes the first problem.
    """

    def require(condition: bool, problem: str) -> None:
        if not condition:
            raise RowError(f"{problem}. Fix: send {form}")

    require(bool(body), "the body: is empty")
    try:
        with _parsing:
            value = json.loads(body)
    except json.JSONDecodeError as error:
        raise RowError(
            f"the body: is not JSON ({error.msg}, character {error.pos}). Fix: send {form}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"the body is not JSON in UTF-8, or has too many levels or digits. Fix: send {form}"
        ) from error
    require(value is not None, "the body: is null")
    require(isinstance(value, dict), "the body: is no JSON object")
    require("rows" in value, "rows: Field required")
    rows: list[dict[str, Any]] = value["rows"]
    require(isinstance(rows, list), "rows: Input should be a valid list")
    require(len(rows) > 0, "rows: List should have at least 1 item")
    require(len(rows) <= MAX_ROWS, f"rows: List should have at most {MAX_ROWS} items, not {len(rows)}")
    known = set(model.program.columns)
    for number, row in enumerate(rows):
        require(isinstance(row, dict), f"rows.{number}: Input should be a valid dictionary")
        if unknown := row.keys() - known:
            raise RowError(
                f"row {number + 1} has the column {min(unknown)[:60]!r}, which the model does not know: its columns "
                f"are {', '.join(model.program.columns)}. Fix: leave that column out, or correct its name"
            )
        for column, text in row.items():
            is_plain = type(text) in (str, int, float)  # not bool
            require(is_plain, f"rows.{number}.{column}: Input should be a text or a number")
    return rows
