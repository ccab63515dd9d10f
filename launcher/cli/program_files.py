"""The files of a program's folder that are sent to the pods, and which of them is the program or the script.

The folder may be any repository: with links inside it, with ignored files, and with the script in a folder of its own.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import symtable
from pathlib import Path

import pathspec

from launcher.cli.errors import UsageError
from launcher.cli.terminal import report
from launcher.io.program_folders import CONFIG, is_script_file
from launcher.paths import is_safe_name

SCRIPT = "train.py"
IGNORE_FILES = (".gitignore", ".launcherignore")
"""Files with patterns of what is not sent, as for git; the second one overrides the first."""
NO_SCRIPTS = frozenset(("setup.py", "conftest.py", "__init__.py"))
LIKELY_SCRIPT = re.compile(r"(.*/)?(train|run|main)[^/]*\.py")
SHOWN = 12
"""Largest number of candidates in a message."""
SERVER_CALLS = frozenset(("run_server", "init_server", "init_worker"))
"""Functions of `paddle.distributed.fleet` that only a script for parameter servers calls."""


def list_files(folder: Path) -> list[tuple[str, Path]]:
    """Return (name below `folder`, file) of each file that is sent, sorted by name.

    Left out are names that begin with a dot, `__pycache__`, virtual environments, and what .gitignore and
    .launcherignore ignore. A symbolic link inside the folder is sent as what it leads to, or not if that is nothing.

    Raises:
        UsageError: a link leads out of the folder, or to a folder that contains it, or a name is invalid on the
            storage.
    """
    root, found = folder.resolve(), []

    def walk(
        path: Path, name: str, specs: list[tuple[str, pathspec.GitIgnoreSpec]], inside: set[Path]
    ) -> None:
        for ignore in IGNORE_FILES:
            if (path / ignore).is_file():
                lines = (path / ignore).read_text("utf-8", "replace").splitlines()
                specs = [(name, pathspec.GitIgnoreSpec.from_lines(lines)), *specs]
        for entry in sorted(path.iterdir()):
            below = f"{name}{entry.name}"
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if _is_ignored(f"{below}/" if entry.is_dir() else below, specs):
                continue
            if entry.is_symlink() and not entry.exists():
                report(f"not sent: {entry} is a symbolic link that leads to nothing")
                continue
            if entry.is_symlink():
                _check_link(entry, root, inside)
            if entry.is_dir():
                if not (entry / "pyvenv.cfg").is_file():
                    walk(entry, f"{below}/", specs, inside | {entry.resolve()})
            elif entry.is_file():
                if not is_safe_name(below):
                    raise UsageError(
                        f"{entry} cannot be sent: a name must have no backslash and at most 255 bytes",
                        f"rename it, or name it in {path / IGNORE_FILES[1]}",
                    )
                found.append((below, entry))

    walk(folder, "", [], {root})
    return sorted(found)


def _is_ignored(name: str, specs: list[tuple[str, pathspec.GitIgnoreSpec]]) -> bool:
    """Return whether the first of `specs` that has a pattern for `name` ignores it; each is (its folder, patterns)."""
    for prefix, spec in specs:
        verdict = spec.check_file(name.removeprefix(prefix)).include
        if verdict is not None:
            return verdict
    return False


def _check_link(link: Path, root: Path, inside: set[Path]) -> None:
    target = Path(os.path.realpath(link))
    if not target.is_relative_to(root):
        why = "leads out of the folder, and only the folder is sent to the pods"
    elif target in inside:
        why = "leads to a folder that contains it"
    else:
        return
    raise UsageError(
        f"{link} is a symbolic link that {why}",
        f"replace the link with what it leads to, or name it in {link.parent / IGNORE_FILES[1]}",
    )


def choose_file(folder: Path, names: list[str], chosen: str) -> str:
    """Return the program's file or the script's, or its module; `names` are the files of `folder` that are sent.

    `chosen` is what the user wants, also a module such as `tools.train`; empty: trainer_config.py or train.py at the
    top of the folder, or the only other .py file there.

    Raises:
        UsageError: the file is not sent, or there is no single candidate; the message lists the candidates.
    """
    scripts = [name for name in names if name.endswith(".py") and Path(name).name not in NO_SCRIPTS]
    top = [name for name in scripts if "/" not in name]
    likely = [name for name in scripts if LIKELY_SCRIPT.fullmatch(name) and name.count("/") < 3]
    candidates = top + [name for name in likely if name not in top]
    listed = ", ".join(candidates[:SHOWN]) + (" …" if len(candidates) > SHOWN else "")
    if chosen:
        module = chosen.replace(".", "/")
        is_there = chosen in names if is_script_file(chosen) or "/" in chosen else module_file(chosen, names)
        # A module may also be one of a package of the image.
        if is_there or (
            not is_script_file(chosen) and "/" not in chosen and module.partition("/")[0] not in top
        ):
            return chosen
        raise UsageError(
            f"{folder} has no file {chosen} that is sent to the pods; candidates: {listed or 'none'}",
            "give --script one of them, or correct training.config in the values",
        )
    for known in (CONFIG, SCRIPT):
        if known in names:
            return known
    if len(top) == 1:
        return top[0]
    if not scripts:
        raise UsageError(f"{folder} has no .py file", f"write the program to {folder / CONFIG}")
    raise UsageError(
        f"{folder} has {'several' if top else 'no'} .py files at its top, and none is {CONFIG} or {SCRIPT}",
        f"give the script with --script; candidates: {listed or 'none'}",
    )


def module_file(module: str, names: list[str]) -> str | None:
    """Return the file of a module among `names`; None if there is none."""
    path = module.replace(".", "/")
    return next((name for name in (f"{path}.py", f"{path}/__main__.py") if name in names), None)


def find_runtime(file: Path) -> str:
    """Return the runtime that a .py file is written for: `fleet` for a program, else `ps` or `collective`.

    A script for parameter servers calls one of SERVER_CALLS. Raises UsageError for invalid syntax.
    """
    if file.name == CONFIG or {"inputs", "parse"} & defined_names(file):
        return "fleet"
    tree = ast.parse(importlib.util.decode_source(file.read_bytes()))
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return "ps" if called & SERVER_CALLS else "collective"


def defined_names(file: Path) -> set[str]:
    """Return the names that a module defines at its top level; `*` stands for `from x import *`.

    The module is parsed, not run: Paddle may not be installed here. Raises UsageError for invalid syntax.
    """
    try:
        text = importlib.util.decode_source(file.read_bytes())
        symbols = symtable.symtable(text, str(file), "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        place = f"{file}, line {getattr(error, 'lineno', None) or '?'}"
        raise UsageError(
            f"{place} is not valid Python: {getattr(error, 'msg', error)}. Nothing was sent",
            "correct this line",
        ) from error
    star = {"*"} if re.search(r"^\s*from \S+ import \*", text, re.MULTILINE) else set()
    return star | {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}
