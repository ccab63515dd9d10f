"""The Python packages that a program needs in addition to the image: uv resolves and installs them on this machine.

The image's packages are constraints, so a conflict with its Paddle or numpy is found here, before anything is sent. The
pods need no package index: they unpack one archive, and Python searches it after the image's own packages.
"""

from __future__ import annotations

import configparser
import contextlib
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import starmap
from pathlib import Path
from typing import Any

from launcher.cli.errors import CliError, UsageError
from launcher.cli.terminal import report
from launcher.io.files import folder_files, sha256_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NONE = "none"
"""Value of `--requirements`: the program needs no packages in addition to the image."""
FILES = ("requirements.txt", "pyproject.toml")
"""The files at the top of a program's folder that say which packages it needs; the first one that exists counts."""
UNREAD_FILES = ("setup.py", "setup.cfg", "environment.yml", "environment.yaml", "Pipfile", "poetry.lock")
"""Other files that may name packages."""
NATIVE = (".so", ".dylib", ".pyd", ".dll")
"""Ends of the names of compiled files, which run on one platform only."""
SAME_MODULES = ("paddlepaddle", "paddlepaddle-gpu")
"""Packages with the same modules: if the image has one of them, it also satisfies requirements for the others."""
BUILD_TOOLS = ("setuptools", "wheel", "pip", "cython", "numpy", "packaging", "typing-extensions")
"""Packages that are imported while a package is built. They get no stub (`_write_stub`), because uv would use the stub
for the build; every package index has them."""
LOOSE_PINS = {"setuptools": "", "numpy": ">={major},<={version}"}
"""Packages of the image that may satisfy requirements for other versions → the versions that may be required instead.
Programs import only pkg_resources from setuptools. A program that requires an older numpy of the same major version
also works with the image's numpy."""
WITH_WINDOWS = ("opencv-python", "opencv-contrib-python")
"""Packages that need libGL, which images do not have. NAME-headless has the same modules without windows."""
SECONDS = 3600.0
"""Longest time for one command of uv, which may download gigabytes."""
_NETWORK = re.compile(
    r"error sending request|Failed to fetch|dns error|timed out|Connection refused|certificate", re.I
)
_INDEX = re.compile(r"(-i|-f|--index-url|--extra-index-url|--find-links|--no-index)\b")
_HASH = re.compile(r"--hash[= ]sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_]*")


@dataclass(frozen=True)
class PythonEnvironment:
    """Where packages will be used: an image, or this machine."""

    where: str
    """The environment's name in messages."""
    options: tuple[str, ...]
    """The options of uv that select the environment's Python and platform."""
    packages: Mapping[str, str]
    """Version of each package that the environment has, by normalized name."""
    has_windows: bool = False
    """Whether a program can open windows in the environment, so that packages of WITH_WINDOWS can be imported."""

    @classmethod
    def of_image(cls, image: str, described: Mapping[str, Any]) -> PythonEnvironment:
        """Return the environment of an image from what `launcher reader environment` printed in it.

        Raises CliError if the image is not Linux with glibc 2.17 or newer, or its machine or Python is unknown.
        """
        libc = re.fullmatch(r"2\.([0-9]{1,3})", str(described.get("glibc")))
        known = [17, 28, *range(31, 41)]  # the versions that uv's --python-platform has
        minor = max((one for one in known if libc and one <= int(libc[1])), default=None)
        machine, version = str(described.get("machine")), str(described.get("python"))
        if minor is None or not re.fullmatch(r"[a-z0-9_]+ 3\.[0-9]+", f"{machine} {version}"):
            raise CliError(
                f"the Python of image {image} cannot be determined (glibc {described.get('glibc')}, {machine}, Python "
                f"{version}), so packages cannot be chosen for it",
                "install the packages into an image of your own, and add --requirements none",
            )
        platform = ("--python-platform", f"{machine}-manylinux_2_{minor}")
        packages = dict(described.get("packages") or {})
        return cls(f"image {image}", ("--python-version", version, *platform), _known_packages(packages))

    @classmethod
    def of_this_machine(cls) -> PythonEnvironment:
        """Return the environment of this process, with Paddle, numpy and what these require as the only packages.

        The other packages of this Python do not count: the command line needs them, not the program.
        """
        found, waiting = dict[str, str](), [*SAME_MODULES, "numpy"]
        while waiting:
            with contextlib.suppress(metadata.PackageNotFoundError):
                one = metadata.distribution(waiting.pop())
                name = str(one.metadata["Name"])
                if name not in found:
                    found[name] = one.version
                    needed = (line for line in one.requires or () if "extra ==" not in line)
                    waiting += [match[0] for line in needed if (match := _NAME.match(line))]
        known = _known_packages(found)
        return cls("Paddle on this machine", ("--python", sys.executable), known, has_windows=True)


def _known_packages(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of each package whose name and version are valid, by normalized name.

    If `found` has one of SAME_MODULES, the result has all of SAME_MODULES.
    """
    known = {
        re.sub(r"[-_.]+", "-", name).lower(): str(version)
        for name, version in found.items()
        if _NAME.fullmatch(name) and _VERSION.fullmatch(str(version))
    }
    same = next((known[name] for name in SAME_MODULES if name in known), "")
    return (dict.fromkeys(SAME_MODULES, same) if same else {}) | known


def find_requirements(folder: Path, given: str | None) -> Path | None:
    """Return the file with a program's requirements; None if the program needs no packages, or has no such file.

    The file is `given`, else the first of FILES that `folder` has. A pyproject.toml without a table `[project]` does
    not count. If the folder has no such file, but one of UNREAD_FILES, this function reports that this file is not
    read.

    `given` is the value of `--requirements`: a path, NONE, or None if the option was not given. Raises UsageError if
    the file `given` does not exist.
    """
    if given == NONE:
        return None
    if given is not None:
        if not Path(given).is_file():
            raise UsageError(
                f"--requirements {given}: there is no such file", f"give a requirements.txt, or {NONE}"
            )
        return Path(given).resolve()
    found = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if found is None or (found.suffix == ".toml" and "[project]" not in found.read_text("utf-8", "replace")):
        # Such a .toml file has the settings of tools only, or the packages in tables of Poetry.
        is_poetry = found is not None and "[tool.poetry." in found.read_text("utf-8", "replace")
        unread_files = (FILES[1], *UNREAD_FILES) if is_poetry else UNREAD_FILES
        if unread := next((name for name in unread_files if (folder / name).is_file()), ""):
            report(
                f"the packages that {folder / unread} may name are not installed; if the program needs some, "
                "list them in requirements.txt"
            )
        return None
    return found.resolve()


def package_files(folder: Path) -> tuple[tuple[str, Path], ...]:
    """Return (name below `folder`, path) of each file of the packages that are installed there, sorted by name.

    The result does not contain uv's own files, byte code, and the folder of scripts: scripts refer to this machine's
    Python.
    """
    found = ((path.relative_to(folder), path) for path in folder_files(folder))
    return tuple((name.as_posix(), path) for name, path in found if name.parts[0] not in ("bin", ".lock"))


def pack_files(entries: Iterable[tuple[str, Path]], archive: Path) -> str:
    """Write files to a compressed tar archive; return the sha256 of the archive. Equal files give equal archives.

    `entries` are (name in the archive, path) of each file.
    """

    def normalize(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    with (
        archive.open("wb") as out,
        gzip.GzipFile("", "wb", 1, out, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in entries:
            tar.add(path, name, filter=normalize)
    return sha256_file(archive)


def install_packages(requirements: Path, environment: PythonEnvironment, folder: Path) -> list[str]:
    """Install what `requirements` need in addition to the packages of `environment` into the new `folder`.

    A package without a wheel is built on this machine, if it has no compiled code. If the environment has no libraries
    for graphical windows, as that of an image, the packages in WITH_WINDOWS are replaced by their variants that need no
    such libraries. They are not replaced if the requirements have hashes. Return name and version of each installed
    package.

    Raises:
        UsageError: the requirements contradict each other or the environment's packages; a package has compiled code
            but no wheel for the environment; or a package must not be installed (`_check_packages`).
        CliError: uv is missing, cannot reach the package index, or does not finish within SECONDS.
    """
    with tempfile.TemporaryDirectory(prefix="paddle-training-packages.") as temporary:
        uv, work, known = _Uv(requirements, environment), Path(temporary), environment.packages
        constraints, stubs = work / "image.txt", work / "stubs"
        constraints.write_text("".join(starmap(_write_pin, known.items())))
        stubs.mkdir()
        for name in known.keys() - BUILD_TOOLS:
            _write_stub(stubs, name, known[name])
        lock = work / "pylock.toml"
        given = ("-c", str(constraints), "--find-links", str(stubs), *environment.options)
        given += _hide(known.keys() - LOOSE_PINS)
        report(f"choosing the packages of {requirements} for {environment.where}")
        packages = uv.compile(requirements, lock, *given)
        _check_packages(packages, requirements)
        loose = {one["name"]: one.get("version", "") for one in packages if one["name"] in known}
        # Without a limit of the requirements, uv chooses the environment's numpy.
        if (numpy := loose.get("numpy", known.get("numpy"))) != known.get("numpy"):
            report(f"numpy: the {known['numpy']} of {environment.where} is used instead of {numpy}")
        replaced = () if environment.has_windows else _write_replacements(packages, requirements, work)
        if loose or replaced:
            packages = uv.compile(requirements, lock, *given, *_hide(loose), *replaced)
        built = {one["name"] for one in packages if not one.get("wheels")}
        if released := [
            f"{one['name']}=={one['version']}" for one in packages if one["name"] in built and "sdist" in one
        ]:
            pins = work / "pins.txt"
            pins.write_text("\n".join(released))
            # A release with wheels for other platforms only has compiled code.
            options = ("--universal", "--no-deps", *environment.options[:2], *_index_options(requirements))
            found = uv.compile(pins, work / "pylock.all.toml", *options)
            if native := [f"{one['name']} {one['version']}" for one in found if one.get("wheels")]:
                raise uv.no_wheel(f"{', '.join(native)} has wheels for other platforms only")
        folder.mkdir(parents=True)
        if packages:
            report(f"installing packages: {len(packages)}")
            target = ("--target", str(folder), "--link-mode", "copy", *environment.options)
            uv.run("install", "--no-deps", "--no-editable", "-r", str(lock), *target)
    for info in folder.glob("*.dist-info"):
        name = info.name.partition("-")[0].replace("_", "-").lower()
        if name in built and (file := _find_compiled_file(info)):
            raise uv.no_wheel(f"{name} has none, and {file} in it is compiled code")
    return [f"{one['name']} {one.get('version', '')}".rstrip() for one in packages]


def _hide(names: Iterable[str]) -> tuple[str, ...]:
    """Return uv's options that leave these packages out of the lock file."""
    return tuple(word for name in sorted(names) for word in ("--no-emit-package", name))


def _write_pin(name: str, version: str) -> str:
    """Return the line of a constraints file for a package that the environment has."""
    pin = LOOSE_PINS.get(name, "=={version}").format(version=version, major=version.partition(".")[0])
    return f"{name}{pin}\n"


def _write_replacements(packages: list[dict[str, Any]], requirements: Path, folder: Path) -> tuple[str, ...]:
    """Return uv's options that replace packages of WITH_WINDOWS by packages without windows.

    This function writes the files that the options refer to into `folder`. The result is empty if `packages` has none
    of WITH_WINDOWS, or if the requirements have hashes.
    """
    found = {one["name"]: one.get("version", "") for one in packages}
    names = [name for name in WITH_WINDOWS if name in found]
    if not names or _HASH.search(requirements.read_text("utf-8", "replace")):
        return ()
    new = f"{names[-1]}-headless"
    report(f"{', '.join(names)}: replaced by {new}, because the image has no libGL")
    removed, added = folder / "removed.txt", folder / "added.txt"
    removed.write_text("".join(f"{name}; python_version < '0'\n" for name in names))
    added.write_text("" if new in found else f"{new}=={found[names[-1]]}\n")
    return str(added), "--override", str(removed)


def _check_packages(packages: list[dict[str, Any]], requirements: Path) -> None:
    """Raise UsageError if the lock file with these `packages` has a package that must not be installed.

    Such a package is `paddle`, or one whose content has none of the hashes in `requirements`: uv does not compare these
    hashes with the packages that it chooses.
    """
    expected = set(_HASH.findall(requirements.read_text("utf-8", "replace")))
    for one in packages:
        if one["name"] == "paddle":
            raise UsageError(
                f"{requirements} leads to the package `paddle`, which is not PaddlePaddle. Nothing was sent",
                "require paddlepaddle instead, which the image has",
            )
        releases = [*one.get("wheels", ()), *([one["sdist"]] if "sdist" in one else [])]
        found = {(each.get("hashes") or {}).get("sha256") for each in releases} - {None}
        if expected and found and not expected & found:
            raise UsageError(
                f"the package index has {one['name']} {one.get('version', '')} with other content than the --hash in "
                f"{requirements}. Nothing was sent",
                "correct the hashes; with some in the file, all packages that it leads to need one",
            )


def _index_options(requirements: Path) -> list[str]:
    """Return the options of a requirements.txt that say where uv finds packages, such as --index-url."""
    lines = requirements.read_text("utf-8", "replace").splitlines()
    return [word for line in lines if _INDEX.match(line) for word in shlex.split(line, comments=True)]


def _find_compiled_file(info: Path) -> str:
    """Return the name of a compiled file of the package with this dist-info folder; empty if it has none."""
    record = (info / "RECORD").read_text("utf-8", "replace").splitlines()
    names = (line.rsplit(",", 2)[0].strip('"') for line in record)
    return next((name for name in names if name.endswith(NATIVE)), "")


def _write_stub(folder: Path, name: str, version: str) -> None:
    """Write an empty wheel for a package that the image has, so that uv finds this version of the package.

    The package index may not have the package, or not in this version.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        info = f"{stem}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@dataclass(frozen=True)
class _Uv:
    """Runs uv for one file with requirements and one environment, and explains its errors."""

    requirements: Path
    environment: PythonEnvironment

    def compile(self, file: Path, lock: Path, *options: str) -> list[dict[str, Any]]:
        """Resolve the requirements in `file`, and write the chosen packages to the lock file `lock` (PEP 751).

        `options` are further options of `uv pip compile`. Return the packages in the lock file. Raises the errors of
        `install_packages`.
        """
        self.run("compile", str(file), "--format", "pylock.toml", "-o", str(lock), "--no-header", *options)
        packages: list[dict[str, Any]] = tomllib.loads(lock.read_text("utf-8")).get("packages", [])
        return packages

    def run(self, *words: str) -> None:
        """Run `uv pip` with these words. Raises the errors of `install_packages`."""
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        uv = shutil.which("uv", path=search)
        if uv is None:
            raise CliError(f"uv, which resolves {self.requirements}, is not installed", "pip install uv")
        try:
            ended = subprocess.run(
                [uv, "pip", *words, "--quiet"],
                cwd=self.requirements.parent,
                env=_uv_variables(),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            problem = f"uv did not finish within {SECONDS:.0f} s with {self.requirements}"
            raise CliError(problem, "run the same command again") from error
        if not ended.returncode:
            return
        lines = [line for line in ended.stderr.strip().splitlines() if not line.startswith("warning: ")]
        text = "\n".join(f"  {line.rstrip()}" for line in lines[-25:])
        if _NETWORK.search(text):
            raise CliError(
                f"uv cannot reach the package index that it needs for {self.requirements}. Nothing was sent:\n{text}",
                "check the network, HTTPS_PROXY, and the index (index-url of pip's configuration, or UV_DEFAULT_INDEX)",
            )
        raise UsageError(
            f"the packages of {self.requirements} cannot be installed in addition to those of "
            f"{self.environment.where}. Nothing was sent:\n{text}",
            f"change {self.requirements.name}, or give another file with --requirements FILE ({NONE}: no packages, for "
            "an image of your own that has them)",
        )

    def no_wheel(self, what: str) -> UsageError:
        """Return the error for a package that cannot be built here; `what` says which package, and follows `but`."""
        return UsageError(
            f"{self.requirements} needs packages with wheels for {self.environment.where} "
            f"({' '.join(self.environment.options)}), but {what}. Nothing was sent",
            "require a release that has one; or use an image of your own with the package, and add --requirements "
            f"{NONE}",
        )


def _uv_variables() -> dict[str, str]:
    """Return the environment of uv, with the machine's certificates and the package index of pip's configuration."""
    pip = configparser.ConfigParser(interpolation=None)
    configured = os.environ.get("PIP_CONFIG_FILE")
    places = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", *filter(None, [configured]))
    pip.read([Path(place).expanduser() for place in places])
    index = os.environ.get("PIP_INDEX_URL") or pip.get("global", "index-url", fallback="")
    variables = {"UV_SYSTEM_CERTS": "true", "UV_NO_PROGRESS": "true"}
    return variables | ({"UV_DEFAULT_INDEX": index} if index else {}) | dict(os.environ)
