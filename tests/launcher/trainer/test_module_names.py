"""Tests of file names in a program's folder: each works, or is rejected before anything runs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import uploads
from launcher.errors import SettingsError
from launcher.io.program_folders import TAKEN
from launcher.serving.paddle_served import model as served_model
from local.paths import CLONE

from .conftest import STUBS, load, write_program

PROGRAM = (
    STUBS
    + """
COLUMNS = ("label",)
def inputs(job): return {"words": Ids(1), "label": Real()}
def parse(row, job): ...
"""
)
NAMES = ["types", "typing", "dataclasses", "hashlib", "pathlib", "abc", "re", "queue", "random", "this", "_thread",
         "site", "sitecustomize", "usercustomize", "launcher", "numpy", "paddle", "paddle_served", "google", "PIL",
         "click", "six", "matplotlib"]  # fmt: skip
FILES = [
    *(f"{name}.py" for name in NAMES),
    *(f"{name}/__init__.py" for name in NAMES),
    "types/only.py",
    "types.pyc",
    "types.abi3.so",
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write_program(tmp_path / "own", PROGRAM)


@pytest.mark.parametrize("file", FILES)
def test_a_name_of_python_or_of_the_launcher_is_rejected_in_the_pod_and_before_an_upload(
    program: Path, file: str
) -> None:
    path = program.parent / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    first = path.relative_to(program.parent).parts[0]
    name = re.escape(first)
    message = rf"own has {name}/?, but Python or the launcher .*rename it, for example to my_{name}"
    for check in (lambda: load(program), lambda: uploads.plan_program(program.parent)):
        with pytest.raises(SettingsError, match=message):
            check()


def test_a_name_of_any_loaded_package_is_rejected(program: Path) -> None:
    (program.parent / "pytest.py").write_text("")
    with pytest.raises(SettingsError, match=r"own has pytest\.py"):
        load(program)


def test_a_program_inside_an_installed_package_can_be_checked_after_its_own_modules_are_loaded(
    tmp_path: Path,
) -> None:
    """An installed launcher has the example programs in site-packages."""
    path = write_program(tmp_path / "site-packages" / "own", "from its_helper import VALUE\n" + PROGRAM)
    (path.parent / "its_helper.py").write_text("VALUE = 1\n")
    for _ in range(2):
        load(path)
        assert uploads.plan_program(path.parent).values["training.config"] == "own/trainer_config.py"


def test_other_names_work(program: Path) -> None:
    folder = program.parent
    odd = ["-x.py", "with space.py", "a.b.py", "__init__.py", "__main__.py", "test.py", "import.py", "ä.py"]
    for name in odd:
        (folder / name).write_text("raise AssertionError('it is imported')\n")
    (folder / "json").mkdir()
    (folder / "json" / "rows.json").write_text("[]")
    (folder / "mine").mkdir()
    (folder / "mine" / "part.py").write_text("VALUE = 3\n")
    (folder / "types.txt").write_text("no module")
    program.write_text(
        "import json\nfrom mine.part import VALUE\nassert json.loads('3') == VALUE\n" + PROGRAM
    )
    load(program)
    assert uploads.plan_program(folder).values["training.config"] == "own/trainer_config.py"
    import json

    (folder / "interface.py").write_text((CLONE / "launcher/program.py").read_text())
    served_model._load(program, folder / "interface.py")
    assert sys.modules["json"] is json, "a folder with data is not a module"
    assert "__main__" in sys.modules


def test_modules_of_two_programs_with_equal_names_do_not_mix(tmp_path: Path) -> None:
    text = "from parts.layer import VALUE\nfrom helper import OTHER\n" + PROGRAM
    found = []
    for value in (1, 2):
        path = write_program(tmp_path / str(value), text)
        (path.parent / "parts").mkdir()
        (path.parent / "parts" / "layer.py").write_text(f"VALUE = {value}\n")
        (path.parent / "helper.py").write_text(f"OTHER = {value}\n")
        loaded = load(path).module
        served = served_model._load(path, CLONE / "launcher/program.py")
        found += [(one.VALUE, one.OTHER) for one in (loaded, served)]
    assert found == [(1, 1), (1, 1), (2, 2), (2, 2)]


def test_the_names_are_those_of_all_locked_packages() -> None:
    lock = (CLONE / "launcher/requirements.lock").read_text()
    packages = {
        re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r"^([\w.-]+)", lock, re.MULTILINE)
    }
    modules = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if packages.intersection(re.sub(r"[-_.]+", "-", owner).lower() for owner in owners)
    }
    assert {"numpy", "paddle"} <= modules <= TAKEN | {"_foo"}, (
        "_foo is a file of Paddle's package without use"
    )


@pytest.mark.slow
def test_modules_in_the_current_folder_do_not_replace_those_of_the_command_line(tmp_path: Path) -> None:
    for name in ("typer", "click", "numpy", "pathlib", "rich"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('the wrong module')\n")
    command = [sys.executable, "-m", "launcher", "try", "--help"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(CLONE), "PATH": "/usr/bin"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
