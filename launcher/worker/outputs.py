"""Which outputs are whole. The launcher's core asks this too, so nothing here loads numpy or Paddle."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from launcher import best, files, record
from launcher.errors import CheckpointError, DataError
from launcher.layout import Output, Position, position
from launcher.schema import Contents

CONTENTS = "contents.json"
VERSION = 3  # of contents.json; 2 had as many shards as suited its number of servers
DELTA_VERSION = 4  # of a delta's: a launcher that knows no chains would take it for all rows
REFUSED = "refused.json"
MODEL_PARTS = ("network.pdmodel", "network.pdiparams", "interface.py", "model.json", "score.json")


def contents(folder: Path) -> Contents:
    """Return a checkpoint's `contents.json`.

    Raises:
        CheckpointError: it is missing, damaged, of another version, or of another checkpoint.
        StorageError, StorageFailedError: what the storage answers.
    """
    content = files.read_bytes(folder / CONTENTS)
    if content is None:
        raise CheckpointError(f"{CONTENTS} is missing")
    try:
        version = files.parse_object(CONTENTS, content).get("version")
        if version not in (VERSION, DELTA_VERSION):
            raise CheckpointError(
                f"{CONTENTS} is of another version of the launcher ({version}, not {VERSION})"
            )
        found = cast(Contents, files.parse_object(CONTENTS, content, Contents))
    except files.UnreadableError as error:
        raise CheckpointError(str(error)) from error
    at = Position(found["position"]["pass"], found["position"]["batch"])
    if at != position(folder.name):
        raise CheckpointError(f"{CONTENTS} is of {at}, not {position(folder.name)}: it was copied or renamed")
    plausible = {
        "chain": all(position(member["folder"]) for member in found.get("chain", ())),
        "rows": all(len(rows["ids"]) == len(rows["values"]) for rows in found["rows"].values()),
        "shards": found["shards"] > 0,
        "scores": "scores" not in found
        or all(len(score) == 2 and score[0] is not None for score in found["scores"]["passes"]),
    }
    if wrong := [key for key, fits in plausible.items() if not fits]:
        raise CheckpointError(f"{CONTENTS} is damaged: its {wrong[0]} cannot be so")
    return found


def chain(folder: Path, of: Mapping[str, Any]) -> list[Path]:
    """The saves that the one in `folder`, with these contents, is to be laid over, the base first.

    Empty unless it is a delta.
    """
    return [folder.with_name(member["folder"]) for member in of.get("chain", ())]


def link(folder: Path) -> dict[str, str]:
    """A save as the deltas that continue it name it."""
    found = files.read_bytes(folder / CONTENTS) or b""
    return {"folder": folder.name, "sha256": hashlib.sha256(found).hexdigest()}


def fault(folder: Path) -> str | None:
    """Return why a finished checkpoint cannot be resumed from, None when it can.

    It was refused, is of another output, or a file is missing or has another size; or a delta continues a
    checkpoint of which that is so, or that another one has replaced.
    """
    try:
        found = checked_contents(folder)
    except CheckpointError as error:
        return str(error)
    if (other := chain_fault(folder, found)) is not None:
        return other
    for member in chain(folder, found):
        try:
            checked_contents(member)
        except CheckpointError as error:
            return f"it continues {member.name}: {error}"
    return None


def chain_fault(folder: Path, of: Contents) -> str | None:
    """Why a delta cannot be laid over the saves that it names; their other files are not looked at."""
    for member, named in zip(chain(folder, of), of.get("chain", ()), strict=True):
        with files.storage(member):
            whole = (member / "done").is_file() and not (member / REFUSED).exists()
        if not whole:
            return f"it continues {member.name}, which is not there, not finished or refused"
        if link(member) != named:
            return f"it continues {member.name}, but another save is there now"
    return None


def refusal(folder: Path) -> str | None:
    """Return why nothing in a checkpoint's folder counts: it is a link, or a load has refused it."""
    try:
        with files.storage(folder):
            if folder.is_symlink():
                return "it is a symbolic link"
        refused = files.read_json(folder / REFUSED)
    except files.UnreadableError as error:
        return f"refused, and {error}"
    return None if refused is None else f"refused: {refused.get('reason')}"


def checked_contents(folder: Path) -> Contents:
    """Return a checkpoint's `contents.json` once its files are there in the sizes that it lists.

    No file is read. What a delta continues is not looked at.

    Raises:
        CheckpointError: it was refused, is of another output, or a file is missing or has another size; and
            as `contents`.
        StorageError, StorageFailedError: what the storage answers.
    """
    if (reason := refusal(folder)) is not None:
        raise CheckpointError(reason)
    found = contents(folder)
    its, present = found.get("outputId"), output_id(folder.parent)
    if its and present and its != present:
        raise CheckpointError(
            f"{CONTENTS} is of output {its}, but run.json of {present}: it was copied from another run"
        )
    with files.storage(folder):
        for name, about in found["files"].items():
            try:
                size = (folder / name).stat().st_size
            except files.ABSENT:
                raise CheckpointError(f"{name} is missing") from None
            if size != about["bytes"]:
                raise CheckpointError(f"{name} has {size} bytes, but was saved with {about['bytes']}")
    return found


def output_id(output_dir: Path) -> str | None:
    """Return `outputId` of the run record; None when there is none, or it is damaged: rank 0 repairs it."""
    return (record.read(Output(output_dir))[0] or {}).get("outputId")


def finished(output_dir: Path) -> list[Position]:
    """The saves with `done`, the newest first."""
    with files.storage(output_dir):
        if not output_dir.is_dir():
            return []
        found = {at for path in output_dir.iterdir() if (at := position(path.name))}
        return [at for at in sorted(found, reverse=True) if (Output(output_dir).save(at) / "done").is_file()]


def newest_save(output_dir: Path) -> Position | None:
    """The newest save that is whole and was not refused; None when none was ever finished.

    Raises `DataError` when there are finished saves and none of them is fit.
    """
    faults = []
    for at in finished(output_dir):
        folder = Output(output_dir).save(at)
        found = fault(folder)
        if found is None:
            return at
        faults.append(f"{folder.name}: {found}")
    if faults:
        raise DataError(
            f"none of the saves in {output_dir} can be gone on from, and nothing is begun anew unasked.\n  "
            + "\n  ".join(faults)
            + "\nTo begin anew, remove these folders; to go on, bring a whole one back."
        )
    return None


def save_bytes(folder: Path) -> int:
    """Bytes of a save's files."""
    return sum(int(about["bytes"]) for about in contents(folder)["files"].values())


def model_whole(folder: Path) -> bool:
    """Whether a model is there; it appears under its name in one step."""
    with files.storage(folder):
        return all((folder / name).is_file() for name in MODEL_PARTS)


def scores(of: Mapping[str, Any], metric: str) -> list[tuple[int, float]]:
    """Return the scores that a checkpoint's contents have of this metric, as `launcher/best.py` takes them.

    There are none for passes that were trained with another `training.keepBest`.
    """
    found = of.get("scores") or {}
    if not metric or found.get("metric") != metric:
        return []
    return [(int(at), math.nan if value is None else float(value)) for at, value in found["passes"]]


def model_checkpoint(folder: Path) -> str | None:
    """Return the checkpoint's folder name that a model was made from; None when no complete model is there.

    Empty for a model of a launcher that did not write it.
    """
    try:
        about = files.read_json(folder / "model.json") if model_whole(folder) else None
    except files.UnreadableError:  # it is made again
        return None
    return None if about is None else str(about.get("checkpoint") or "")


def model_source(
    output_dir: Path, metric: str, scored: best.Scores, passes: int, made: str = ""
) -> Position | None:
    """Return the checkpoint that the model has to be of: the best pass's, else that of the last pass.

    One that is damaged or was removed is left out, unless the model was `made` from it. None: none is left.
    """
    complete = finished(output_dir)
    for at in map(Position, [*best.ranked(metric, scored), passes]):
        if made == at.folder or (at in complete and fault(Output(output_dir).save(at)) is None):
            return at
    return None
