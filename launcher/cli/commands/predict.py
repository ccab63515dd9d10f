"""`predict`: predict rows with a trained model, in this process. `serve`: serve a model over HTTP."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.cli.errors import UsageError
from launcher.cli.shared_options import Format
from launcher.cli.terminal import print_json, print_line, report
from launcher.errors import DataError


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder that `results --to` copied, or its model/.")
    ],
    cells: Annotated[
        list[str] | None,
        typer.Argument(metavar="COLUMN=VALUE…", help="The columns of one row; the label may be omitted."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="More rows: Parquet, or one JSON object on each line; -: stdin."),
    ] = None,
    output: Format = "text",
) -> None:
    """Print the prediction for each row: the text of the program's describe(), else the predicted numbers."""
    predictions = predict_rows(model, cells or [], rows)
    if output == "json":
        print_json(predictions)
        return
    for one in predictions:
        print_line(_prediction_text(one))
    unknown = [f"{count} of {table}" for table, count in predictions[0]["unknownIds"].items() if count]
    if unknown:
        report(f"ids that the model does not contain, treated as zeros: {', '.join(unknown)}")


def predict_rows(folder: Path, cells: Sequence[str], rows: Path | None) -> list[dict[str, Any]]:
    """Return the prediction for each row; the parameters are the arguments of the command `predict`.

    A prediction is {"prediction": list of numbers, "words": text of describe() or None, "unknownIds": {embedding table:
    number of ids that the table does not contain}}. "unknownIds" counts the ids of all rows together, so it is the same
    in each prediction.

    Raises:
        UsageError: there is no row, or an argument is invalid.
        DataError: a row or the model is invalid.
    """
    # Imported here because it loads numpy, which the other commands do not need.
    from launcher.serving.paddle_served import Model, ServedError
    from launcher.serving.paddle_served.model import read_description

    inputs: list[dict[str, Any]] = [_parse_row(cells)] if cells else []
    if rows is not None:
        inputs += _read_rows(rows)
    if not inputs:
        raise UsageError("there is no row to predict", "give COLUMN=VALUE, or --rows FILE")
    os.environ.setdefault("GLOG_minloglevel", "2")  # without Paddle's messages about its executors
    if not (folder / "model.json").exists() and (folder / "model").is_dir():
        folder = folder / "model"
    try:
        read_description(folder)  # reports a wrong folder before Paddle is loaded
        answer = Model(folder).answer(inputs)
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


def _prediction_text(answer: dict[str, Any]) -> str:
    """Return the prediction for one row as text: what the program's describe() returned, else the predicted numbers."""
    value = answer["prediction"]
    if answer["words"] is not None:
        return str(answer["words"])
    is_vector = isinstance(value, list) and all(isinstance(item, float) for item in value)
    return " ".join(f"{number:.6g}" for number in value) if is_vector else json.dumps(value)


def _parse_row(cells: Sequence[str]) -> dict[str, str]:
    if wrong := [cell for cell in cells if "=" not in cell]:
        raise UsageError(f"{wrong[0]!r} is not COLUMN=VALUE", "write for example text='what a lovely day'")
    return dict(cell.partition("=")[::2] for cell in cells)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix in (".parquet", ".arrow", ".feather"):
        from launcher.trainer.trial_data import RowFormat, read_rows

        return [dict(row) for row in read_rows(path, RowFormat("parquet")) if not isinstance(row, str)]
    try:
        content = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except OSError as error:
        problem = (
            "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        )
        raise UsageError(f"--rows {path}: {problem}", "give the path of a file, or - for stdin") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"--rows {path} is not UTF-8 text: {error}. Fix: convert the file to UTF-8"
        ) from error
    rows = []
    for number, line in enumerate(io.StringIO(content), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"--rows {path}, line {number} is not JSON: {error}. Fix: write one JSON object on each line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f'--rows {path}, line {number} is not a JSON object. Fix: write a row such as {{"text": "…"}}'
            )
        rows.append(row)
    return rows


def serve(context: typer.Context) -> None:
    """Serve a model (--model DIR or --model s3://BUCKET/PREFIX) over HTTP until the process is stopped.

    POST /predict returns predictions. /healthz and /metrics are for monitoring, /docs describes the API.
    """
    from launcher.serving import serve as server

    raise typer.Exit(server.main(context.args))
