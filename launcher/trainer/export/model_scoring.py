"""Calculate the metrics of an exported model with nothing but its folder and a test set."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import DataError
from launcher.io import files
from launcher.serving.paddle_served.errors import ServedError
from launcher.serving.paddle_served.model import CHUNK, Model
from launcher.trainer import program_loader
from launcher.trainer.evaluation import evaluate
from launcher.trainer.records.record_files import INDEX, Records
from launcher.trainer.records.row_parsing import record_dtype


def score_model(folder: Path, test: Path) -> dict[str, float]:
    """Return the metrics of the model in `folder`: metric → value.

    Raises:
        DataError: the model or the test set cannot be read.
    """
    try:
        model = Model(folder)
    except ServedError as error:
        raise DataError(str(error)) from error
    options = tuple(f"--{key}={value}" for key, value in model.about["options"].items())
    program = program_loader.load_program(
        folder / "program" / model.about["config"], folder / "tables", options
    )
    key = (files.read_json(test / INDEX) or {}).get("key", "")
    records = Records.open(test, record_dtype(program.inputs), key)
    if records is None:
        raise DataError(
            f"{test} has no complete records (parsed rows) of {program.path.name}. Fix: delete that folder; the next "
            "start parses the rows again"
        )
    return evaluate(program, lambda rows: model.predict_arrays(rows).predictions, records.blocks(CHUNK))
