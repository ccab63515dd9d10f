"""Find training programs: the examples in launcher/programs, and the users' own folders."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import SettingsError
from launcher.io.files import folder_files

CONFIG = "trainer_config.py"
"""The main file of a program, unless the user specifies another."""
BUILT_IN = Path(__file__).parents[1] / "programs"
"""The folder of the example programs that come with the launcher."""
TEXT_BYTES = 128 << 10
"""Limit for the texts of all of a program's files in program.json together."""


def read_program_texts(folder: Path) -> dict[str, str]:
    """Return the texts of a program's .py files by name; files that would exceed TEXT_BYTES together are left out."""
    texts, left = {}, TEXT_BYTES
    for path in folder_files(folder):
        if path.suffix == ".py" and path.stat().st_size <= left:
            texts[path.relative_to(folder).as_posix()] = path.read_text("utf-8", "replace")
            left -= path.stat().st_size
    return texts


def built_in_programs() -> list[str]:
    """Return the names of the example programs, sorted."""
    return sorted(path.parent.name for path in BUILT_IN.glob(f"*/{CONFIG}"))


def find_program_folder(given: Path) -> Path:
    """Return a program's folder; `given` is the folder, or the name of an example program.

    Raises:
        SettingsError: there is no such program.
    """
    for folder in (given, BUILT_IN / given):
        if folder.is_dir():
            return folder
    raise _not_found(given)


def find_program_file(given: Path) -> Path:
    """Return the absolute path of a program's file; `given` is the file, its folder, or the name of an example program.

    Raises:
        SettingsError: there is no such program.
    """
    for path in (given, given / CONFIG, BUILT_IN / given, BUILT_IN / given / CONFIG):
        if path.is_file():
            return path.resolve()
    raise _not_found(given)


def _not_found(given: Path) -> SettingsError:
    return SettingsError(
        f"program {given} does not exist: it is neither a file, nor a folder with a {CONFIG}, nor one of the "
        f"example programs. Fix: give the path of your program, or one of {', '.join(built_in_programs())}."
    )
