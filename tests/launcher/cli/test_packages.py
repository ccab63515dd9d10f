"""The packages of a program: resolved by the real uv, without a network, from wheels and sources in a folder."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli import reader_commands
from launcher.cli.errors import CliError, UsageError
from launcher.cli.packages import (
    PythonEnvironment,
    find_requirements,
    install_packages,
    pack_files,
    package_files,
)
from launcher.io.files import sha256_file
from launcher.io.helper_protocol import python_environ
from testkit.written_files import write_files

MINOR = sys.version_info.minor
IMAGE = {
    "python": f"3.{MINOR}",
    "machine": "x86_64",
    "glibc": "2.36",
    "packages": {
        "numpy": "1.26.4",
        "pillow": "9.9",
        "paddlepaddle-gpu": "3.0.0.post118",
        "setuptools": "81.0.0",
        "not a name": "1",
        "six": "1\n--index x",
    },
}
BUILD_WITHOUT_TOOLS = """
import os, pathlib, zipfile
def build_wheel(folder, settings=None, metadata=None):
    name = f"NAME-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        record = []
        for file, text in {FILES}.items():
            wheel.writestr(file, text)
            record.append(file + ",,")
        info = "NAME-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "\\n".join(record))
    return name
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that is the only package index for `install`."""
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def write_wheel(index: Path, name: str, tag: str = "py3-none-any", requires: str = "") -> None:
    """Write a wheel with the module NAME to the index."""
    with zipfile.ZipFile(index / f"{name}-1.0-{tag}.whl", "w") as wheel:
        needed = f"Requires-Dist: {requires}\n" if requires else ""
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n")


def write_source(index: Path, name: str, file: str) -> None:
    """Write a source distribution to the index, which is built to a wheel with `file`."""
    texts = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n',
        "build.py": BUILD_WITHOUT_TOOLS.replace("NAME", name).replace("{FILES}", repr({file: ""})),
    }
    with tarfile.open(index / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"{name}-1.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def install(tmp_path: Path, *lines: str) -> list[str]:
    requirements = tmp_path / "requirements.txt"
    here = [] if lines[0].startswith("--") else ["--no-index", f"--find-links {tmp_path / 'index'}"]
    requirements.write_text("\n".join([*here, *lines]))
    return install_packages(requirements, PythonEnvironment.of_image("shop:1", IMAGE), tmp_path / "installed")


def test_packages_of_the_image_are_not_installed_although_no_index_has_them(
    tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(index, "mine", requires="pillow>=9")
    for name in ("setuptools", "numpy"):
        write_wheel(index, name)
    # The image's Paddle for GPUs also satisfies a requirement of the other one, its setuptools one of any version, and
    # its numpy one of an older numpy.
    older = ("setuptools<59", "numpy<1.24")
    found = install(tmp_path, "mine", "pillow", "paddlepaddle>=2.5", "paddlepaddle-gpu", *older)
    assert found == ["mine 1.0"]
    assert "numpy: the 1.26.4 of image shop:1 is used instead of 1.0" in capsys.readouterr().err
    files = package_files(tmp_path / "installed")
    assert [name for name, _ in files if "/" not in name] == ["mine.py"]


@pytest.mark.parametrize("also", [(), ("opencv-python-headless",), ("wants-windows",)])
def test_the_image_gets_opencv_without_windows(tmp_path: Path, index: Path, also: tuple[str, ...]) -> None:
    for name in ("opencv_python", "opencv_python_headless", "opencv_contrib_python"):
        write_wheel(index, name)
    write_wheel(index, "wants_windows", requires="opencv-python>=1")
    found = install(tmp_path, "opencv-python", *also)
    assert sorted(found) == [f"{name} 1.0" for name in sorted({"opencv-python-headless", *also})]
    with_windows = replace(PythonEnvironment.of_image("shop:1", IMAGE), has_windows=True)
    requirements = tmp_path / "requirements.txt"
    assert "opencv-python 1.0" in install_packages(requirements, with_windows, tmp_path / "here")


@pytest.mark.parametrize(
    ("lines", "error", "texts"),
    [
        (
            ["numpy>=2"],
            UsageError,
            ["image shop:1. Nothing was sent", "numpy>=2 and numpy>=1,<=1.26.4", "Fix: change"],
        ),
        (["paddle"], UsageError, ["`paddle`, which is not PaddlePaddle", "Fix: require paddlepaddle"]),
        (["absent"], UsageError, ["absent was not found", "Fix: change requirements.txt"]),
        (
            ["foreign"],
            UsageError,
            ["wheels for other platforms only", "manylinux_2_36", "Fix: require a release"],
        ),
        (["compiled"], UsageError, ["compiled/x.so in it is compiled code", "Fix: require a release"]),
        (
            ["--index-url https://index.invalid/", "absent"],
            CliError,
            ["cannot reach the package index", "HTTPS_PROXY"],
        ),
    ],
)
def test_what_the_image_cannot_use_is_one_error(
    tmp_path: Path, index: Path, lines: list[str], error: type, texts: list[str]
) -> None:
    write_wheel(index, "paddle")
    write_wheel(index, "foreign", f"cp3{MINOR}-cp3{MINOR}-win_amd64")
    write_source(index, "foreign", "foreign.py")
    write_source(index, "compiled", "compiled/x.so")
    with pytest.raises(error) as raised:
        install(tmp_path, *lines)
    assert type(raised.value) is error
    assert [text for text in texts if text not in str(raised.value)] == []


def test_a_source_without_compiled_code_and_the_program_itself_are_installed(
    tmp_path: Path, index: Path
) -> None:
    write_source(index, "plain", "plain.py")
    (tmp_path / "own").mkdir()
    with tarfile.open(index / "plain-1.0.tar.gz") as archive:
        archive.extractall(tmp_path / "own", filter="data")
    found = install(tmp_path, "-e ./own/plain-1.0")
    assert (found, (tmp_path / "installed" / "plain.py").is_file()) == (["plain"], True)
    assert list((tmp_path / "installed").glob("*.pth")) == []  # it is a copy, and no reference to this folder


def test_equal_files_make_equal_archives(tmp_path: Path, index: Path) -> None:
    write_wheel(index, "mine")
    install(tmp_path, "mine")
    files = package_files(tmp_path / "installed")
    digest = pack_files(files, tmp_path / "a.tar.gz")
    for name, path in files:
        path.chmod(0o600) if name == "mine.py" else path.touch()
    assert pack_files(files, tmp_path / "b.tar.gz") == digest


@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        ({"requirements.txt": "a", "pyproject.toml": "[project]"}, None, "requirements.txt"),
        ({"pyproject.toml": "[project]\nname='x'"}, None, "pyproject.toml"),
        ({"pyproject.toml": "[tool.black]"}, None, None),
        ({"requirements.txt": "a"}, "none", None),
        ({"requirements.txt": "a", "more.txt": "b"}, "more.txt", "more.txt"),
        ({}, None, None),
    ],
)
def test_requirements_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    given: str | None,
    expected: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, files)
    assert find_requirements(tmp_path, given) == (tmp_path / expected if expected else None)


def test_a_file_with_packages_that_is_not_read_is_named(tmp_path: Path, capsys) -> None:
    write_files(tmp_path, {"setup.py": "", "pyproject.toml": "[tool.black]"})
    assert find_requirements(tmp_path, None) is None
    assert "setup.py may name are not installed" in capsys.readouterr().err
    (tmp_path / "pyproject.toml").write_text('[tool.poetry.dependencies]\nrich = "^13"\n')
    assert find_requirements(tmp_path, None) is None
    assert "pyproject.toml may name are not installed" in capsys.readouterr().err
    assert find_requirements(tmp_path, "none") is None
    assert capsys.readouterr().err == ""


def test_hashes_of_the_requirements_are_compared_with_the_packages(tmp_path: Path, index: Path) -> None:
    write_wheel(index, "mine")
    line = f"mine==1.0 --hash=sha256:{sha256_file(index / 'mine-1.0-py3-none-any.whl')}"
    assert install(tmp_path, line) == ["mine 1.0"]
    with pytest.raises(UsageError, match=r"has mine 1\.0 with other content than the --hash in"):
        install(tmp_path, line[:-4] + "0000")


def test_an_image_without_glibc_is_rejected() -> None:
    with pytest.raises(CliError, match="cannot be determined"):
        PythonEnvironment.of_image("alpine", IMAGE | {"glibc": ""})


def test_a_process_finds_packages_after_those_of_its_python(tmp_path: Path) -> None:
    hides = "raise SystemExit('it hides the standard library, or the package of the image')\n"
    files = {"json.py": hides, "yaml.py": hides, "mine.py": "WORD = 'own'\n"}
    folder = write_files(tmp_path / "packages", files)
    other = write_files(tmp_path / "image", {"sitecustomize.py": "print('of the image')\n"})
    env = python_environ({"PYTHONPATH": str(other)}, folder)
    code = "import json, yaml, mine, multiprocessing as m; print(mine.WORD)"
    command = [sys.executable, "-c", f"{code}; p = m.get_context('spawn'); import subprocess, sys; "]
    command[2] += "subprocess.run([sys.executable, '-c', 'import mine; print(mine.WORD)'])"
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout.split("\n")[:4], done.stderr) == (["of the image", "own", "of the image", "own"], "")


def test_the_reader_describes_its_python() -> None:
    out = io.BytesIO()
    assert reader_commands.run(["environment"], io.BytesIO(), out) == ""
    assert b'"numpy"' in out.getvalue()
    assert f'"python": "3.{sys.version_info.minor}"'.encode() in out.getvalue()
