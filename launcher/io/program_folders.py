"""Find training programs, the examples in launcher/programs or the users' own folders, and check their modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.machinery import all_suffixes
from pathlib import Path

from launcher.errors import SettingsError
from launcher.io.files import folder_files

CONFIG = "trainer_config.py"
"""The main file of a program, unless the user specifies another."""
BUILT_IN = Path(__file__).parents[1] / "programs"
"""The folder of the example programs that come with the launcher."""
TAKEN = sys.stdlib_module_names.union(
    ("launcher", "sitecustomize", "usercustomize"),
    # Modules of the packages in launcher/requirements.lock.
    """PIL _distutils_hack annotated_doc annotated_types anyio astor boto3 botocore certifi click contourpy cycler
    dateutil decorator fastapi fontTools google h11 httpcore httpx idna jmespath kiwisolver matplotlib mpl_toolkits
    numpy opentelemetry opt_einsum packaging paddle paddle_served pkg_resources prometheus_client pyarrow pydantic
    pydantic_core pylab pyparsing s3transfer setuptools six starlette tensorboardX typing_extensions typing_inspection
    urllib3 uvicorn yaml _yaml""".split(),  # noqa: SIM905
)
"""Names of modules that Python or the launcher may import while a program runs. A program's modules cannot have these
names."""
TEXT_BYTES = 128 << 10
"""Largest size in bytes of the program's files whose texts are in program.json, all files together."""


def module_names(folder: Path) -> dict[str, str]:
    """Return the modules that a program can import from its folder: name → name of the file or folder."""
    names = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if any(path.glob("*.py")):
                names[path.name] = f"{path.name}/"
        elif suffix := max((end for end in all_suffixes() if path.name.endswith(end)), key=len, default=""):
            names[path.name.removesuffix(suffix)] = path.name
    return {name: file for name, file in names.items() if name != "__main__"}


def check_module_names(folder: Path) -> None:
    """Raise `SettingsError` if a module in a program's folder has the same name as a module of Python or the launcher.

    The names of other installed packages that this process has imported are rejected, too. Python would import one of
    the two modules where the other one is meant.
    """
    names, ours = module_names(folder), folder.resolve()
    files = {name: Path(getattr(sys.modules.get(name), "__file__", None) or "/").resolve() for name in names}
    other = {
        name for name in names if "site-packages" in files[name].parts and ours not in files[name].parents
    }
    if taken := [file for name, file in names.items() if name in TAKEN | other]:
        raise SettingsError(
            f"the program's folder {folder} has {', '.join(taken)}, but Python or the launcher has a module of this "
            f"name, and imports would get the wrong one. Fix: rename it, for example to my_{taken[0]}, and change the "
            "program's imports"
        )


def read_program_texts(folder: Path) -> dict[str, str]:
    """Return the texts of a program's .py files by name.

    A file is left out if the size of all returned files would exceed TEXT_BYTES with it.
    """
    texts, left = {}, TEXT_BYTES
    for path in folder_files(folder):
        if path.suffix == ".py" and path.stat().st_size <= left:
            texts[path.relative_to(folder).as_posix()] = path.read_text("utf-8", "replace")
            left -= path.stat().st_size
    return texts


def is_script_file(name: str) -> bool:
    """Return whether the script `name` of `training.config` is a file, and no module (`python -m PACKAGE.MODULE`)."""
    return name.endswith(".py")


def built_in_programs() -> list[str]:
    """Return the names of the example programs, sorted."""
    return sorted(path.parent.name for path in BUILT_IN.glob(f"*/{CONFIG}"))


def find_program_folder(given: Path) -> Path:
    """Return a program's folder; `given` is the folder, or the name of an example program.

    Raises:
        SettingsError: there is no such program, or it is a file.
    """
    if given.is_file():
        raise SettingsError(
            f"program {given} is a file, but the pods need its folder. Fix: give the folder, and the file with "
            f"--script: {given.parent} --script {given.name}"
        )
    return _first(given, Path.is_dir, (given, BUILT_IN / given))


def find_program_file(given: Path) -> Path:
    """Return the absolute path of a program's file; `given` is the file, its folder, or the name of an example program.

    Raises:
        SettingsError: there is no such program.
    """
    paths = (given, given / CONFIG, BUILT_IN / given, BUILT_IN / given / CONFIG)
    return _first(given, Path.is_file, paths).resolve()


def _first(given: Path, exists: Callable[[Path], bool], paths: Iterable[Path]) -> Path:
    if found := next(filter(exists, paths), None):
        return found
    raise SettingsError(
        f"program {given} does not exist: it is neither a file, nor a folder with a {CONFIG}, nor one of the "
        f"example programs. Fix: give the path of your program, or one of {', '.join(built_in_programs())}."
    )
