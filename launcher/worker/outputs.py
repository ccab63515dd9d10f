"""Which outputs are whole. The launcher's core asks this too, so nothing here loads numpy or Paddle."""

from __future__ import annotations

from pathlib import Path

from launcher import files
from launcher.layout import Output, pass_number

CONTENTS = "contents.json"
MODEL_PARTS = ("network.pdmodel", "network.pdiparams", "model.json", "score.json")


def pass_whole(folder: Path) -> bool:
    """Whether a pass folder has `done` and every file that its list names, in full length."""
    contents = files.read_json(folder / CONTENTS) if (folder / "done").is_file() else None
    if contents is None:
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in contents["files"].items())
    except (OSError, KeyError, AttributeError):
        return False


def pass_bytes(folder: Path) -> int:
    """Bytes of a whole pass; 0 for any other folder."""
    contents = files.read_json(folder / CONTENTS) if pass_whole(folder) else None
    return sum(contents["files"].values()) if contents else 0


def newest_pass(output_dir: Path) -> int | None:
    """The highest pass below `output_dir` that is whole."""
    if not output_dir.is_dir():
        return None
    found = (pass_number(path.name) for path in output_dir.iterdir())
    numbers = sorted((number for number in found if number is not None), reverse=True)
    return next((n for n in numbers if pass_whole(Output(output_dir).pass_dir(n))), None)


def model_whole(folder: Path) -> bool:
    """Whether a model is there; it appears under its name in one step."""
    return all((folder / name).is_file() for name in MODEL_PARTS)
