"""Find training programs: the examples in launcher/programs, and the users' own folders."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import SettingsError

CONFIG = "trainer_config.py"
"""The main file of a program, unless the user specifies another."""
BUILT_IN = Path(__file__).parents[1] / "programs"
"""The folder of the example programs that come with the launcher."""


def built_in_programs() -> list[str]:
    """Return the names of the example programs, sorted."""
    return sorted(path.parent.name for path in BUILT_IN.glob(f"*/{CONFIG}"))


def find_program_folder(given: Path) -> Path:
    """Return the folder of a program.

    Args:
        given: the folder, or the name of an example program.

    Raises:
        SettingsError: there is neither such a folder nor such an example.
    """
    for folder in (given, BUILT_IN / given):
        if folder.is_dir():
            return folder
    raise _not_found(given)


def find_program_file(given: Path) -> Path:
    """Return the absolute path of a program's file.

    Args:
        given: the file, its folder (with a trainer_config.py), or the name of an example program.

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
