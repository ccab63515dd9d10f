"""Read and check `contents.json` of a checkpoint; choose the checkpoints to resume and to export the model from.

The content of a checkpoint's other files is not read.

The launcher's supervisor imports this module too, so it must not import numpy or Paddle.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from launcher import metrics, schema
from launcher.errors import CheckpointError
from launcher.io import files, run_record
from launcher.io.checkpoint_checks import (
    CONTENTS,
    REJECTED,
    check_sizes,
    find_newest_usable,
    finished_checkpoints,
    rejection_reason,
)
from launcher.paths import OutputPaths, Position, position
from launcher.schema import ChainLink, CheckpointContents, CheckpointRows

VERSION = 3
"""Version of contents.json. Version 2 had a number of shards that depended on the number of servers."""
TOTALS = 3
"""Numbers of each rank in `ranks`."""
MAX_SHARDS = 100_000
"""More than any number of parameter servers needs; Paddle reserves memory for each shard."""
INCREMENTAL_VERSION = 4
"""Version of an incremental checkpoint's contents.json. Launchers that do not know incremental checkpoints
reject it, because they would take the checkpoint for a full one."""


def read_contents(folder: Path) -> CheckpointContents:
    """Return a checkpoint's `contents.json`.

    Raises:
        CheckpointError: the file is missing, damaged, of another version, or of another checkpoint. The message
            is only this reason; callers add the folder and a fix.
    """
    content = files.read_bytes(folder / CONTENTS)
    if content is None:
        raise CheckpointError(f"{CONTENTS} is missing")
    try:
        value = files.parse_json_object(CONTENTS, content)
        version = value.get("version")
        if version not in (VERSION, INCREMENTAL_VERSION):
            raise CheckpointError(
                f"{CONTENTS} was written by another version of the launcher: its format is {version}, "
                f"and this launcher reads {VERSION} and {INCREMENTAL_VERSION}"
            )
        contents = schema.from_json(CheckpointContents, value)
    except files.UnreadableError as error:
        raise CheckpointError(str(error)) from error
    except ValueError as error:
        raise CheckpointError(f"{CONTENTS} is damaged: {error}") from error
    at = Position(contents.position.passes, contents.position.batch)
    if at != position(folder.name):
        raise CheckpointError(
            f"{CONTENTS} describes {at}, not {position(folder.name)}: the folder was copied or renamed"
        )
    scores = contents.scores.passes if contents.scores else []
    plausible = {
        "chain": all(position(link.folder) for link in contents.chain),
        "rows": all(_fits_tables(contents, name, rows) for name, rows in contents.rows.items()),
        "ranks": all(len(totals) == TOTALS for totals in contents.ranks),
        "shards": 0 < contents.shards <= MAX_SHARDS,
        "scores": all(len(score) == 2 and score[0] is not None for score in scores),
    }
    if wrong := [key for key, fits in plausible.items() if not fits]:
        raise CheckpointError(f"{CONTENTS} is damaged: the value of {wrong[0]!r} is impossible")
    return contents


def _fits_tables(contents: CheckpointContents, name: str, rows: CheckpointRows) -> bool:
    """Return whether sample rows have int64 ids, and a vector of the table's width for each of them."""
    widths = {len(values) for values in rows.values}
    is_int64 = all(-(2**63) <= number < 2**63 for number in rows.ids)
    known = name in contents.tables and widths <= {contents.tables[name].width}
    return is_int64 and known and len(rows.ids) == len(rows.values)


def read_checked_contents(folder: Path) -> CheckpointContents:
    """Return a checkpoint's `contents.json` after checking that all listed files exist with their sizes.

    The content of the files is not read, and the checkpoints that an incremental one continues are not
    checked.

    Raises:
        CheckpointError: the checkpoint was rejected by an earlier load, has another outputId than
            run.json, or a file is missing or has another size; and as `read_contents`. The message is only this
            reason; callers add the folder and a fix.
    """
    if (reason := rejection_reason(folder)) is not None:
        raise CheckpointError(reason)
    contents = read_contents(folder)
    recorded, present = contents.output_id, read_output_id(folder.parent)
    if recorded and present and recorded != present:
        raise CheckpointError(
            f"{CONTENTS} has outputId {recorded}, but run.json next to the folder has {present}: the checkpoint "
            "was copied from another run, whose parameters may differ"
        )
    check_sizes(folder, contents.files)
    return contents


def unusable_reason(folder: Path) -> str | None:
    """Return why training cannot resume from a finished checkpoint, None when it can.

    The reasons are those of `read_checked_contents`, for the checkpoint itself and for each checkpoint that
    an incremental one continues.
    """
    try:
        contents = read_checked_contents(folder)
    except CheckpointError as error:
        return str(error)
    if (reason := broken_chain_reason(folder, contents)) is not None:
        return reason
    for member in chain_folders(folder, contents)[:-1]:
        try:
            read_checked_contents(member)
        except CheckpointError as error:
            return f"it continues {member.name}: {error}"
    return None


def chain_folders(folder: Path, contents: CheckpointContents) -> list[Path]:
    """Return the folders to load for a checkpoint, in this order: those that it continues, the full one first; its own.

    A full checkpoint continues no other one.
    """
    return [*(folder.with_name(link.folder) for link in contents.chain), folder]


def chain_link(folder: Path) -> ChainLink:
    """Return the entry by which later incremental checkpoints refer to the checkpoint in `folder`."""
    content = files.read_bytes(folder / CONTENTS) or b""
    return ChainLink(folder.name, hashlib.sha256(content).hexdigest())


def broken_chain_reason(folder: Path, contents: CheckpointContents) -> str | None:
    """Return why an incremental checkpoint cannot be applied to the checkpoints that it continues, or None.

    Of those checkpoints, only `done`, `rejected.json` and `contents.json` are read.
    """
    for member, link in zip(chain_folders(folder, contents), contents.chain, strict=False):
        with files.storage_errors(member):
            usable = (member / "done").is_file() and not (member / REJECTED).exists()
        if not usable:
            return f"it continues {member.name}, which is missing, unfinished or rejected"
        if chain_link(member) != link:
            return f"it continues {member.name}, but another checkpoint has replaced it"
    return None


def read_output_id(output_dir: Path) -> str | None:
    """Return `outputId` of the run record; None when the record is missing or damaged (rank 0 repairs it)."""
    return (run_record.read(OutputPaths(output_dir))[0] or {}).get("outputId")


def checkpoint_bytes(folder: Path) -> int:
    """Return the total size in bytes of a checkpoint's files, without those that it continues."""
    return sum(entry.bytes for entry in read_contents(folder).files.values())


def scores_by(contents: CheckpointContents, metric: str) -> list[tuple[int, float]]:
    """Return a checkpoint's scores of `metric` as (finished passes, value); NaN for a pass without a value.

    The list is empty when the checkpoint was saved with another `training.keepBest`.
    """
    if not metric or contents.scores is None or contents.scores.metric != metric:
        return []
    passes = [(at, value) for at, value in contents.scores.passes if at is not None]
    return [(int(at), math.nan if value is None else float(value)) for at, value in passes]


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
