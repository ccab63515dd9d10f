"""Choose the checkpoint to resume from, and the one that the exported model is made of.

The launcher's supervisor imports this module too, so it must not import numpy or Paddle.
"""

from __future__ import annotations

from pathlib import Path

from launcher import metrics
from launcher.io import files
from launcher.io.checkpoint_checks import find_newest_usable, finished_checkpoints
from launcher.paths import OutputPaths, Position
from launcher.trainer.checkpoint.contents_file import unusable_reason

MODEL_FILES = ("network.pdmodel", "network.pdiparams", "interface.py", "model.json", "score.json")


def newest_checkpoint(output_dir: Path) -> Position | None:
    """Return the newest checkpoint that training can resume from; None when none was ever finished.

    Raises:
        DataError: there are finished checkpoints, but training can resume from none of them.
    """
    return find_newest_usable(output_dir, unusable_reason)


def is_model_complete(folder: Path) -> bool:
    """Return whether `folder` has all MODEL_FILES; an export gives the folder its name only when it is complete."""
    with files.storage_errors(folder):
        return all((folder / name).is_file() for name in MODEL_FILES)


def model_checkpoint(folder: Path) -> str:
    """Return the folder name of the checkpoint that a model was made from; "" when there is no complete model."""
    try:
        about = files.read_json(folder / "model.json") if is_model_complete(folder) else None
    except files.UnreadableError:  # the model is exported again
        about = None
    return str((about or {}).get("checkpoint") or "")


def choose_model_checkpoint(
    output_dir: Path, metric: str, scored: metrics.Scores, passes: int, made: str
) -> Position | None:
    """Return the checkpoint that the exported model has to be made of: the best pass, else the last pass.

    A checkpoint that is unusable or was removed is skipped, unless the present model was `made` from it. If all are
    skipped, the result is None.
    """
    finished = finished_checkpoints(output_dir)
    for at in map(Position, [*metrics.rank_passes(metric, scored), passes]):
        usable = at in finished and unusable_reason(OutputPaths(output_dir).checkpoint(at)) is None
        if made == at.folder or usable:
            return at
    return None
