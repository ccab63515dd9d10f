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
from launcher.trainer.program_loader import FUNCTIONS, VALUES

SCRIPT = "train.py"
GIT_IGNORE = ".gitignore"
IGNORE_FILES = (GIT_IGNORE, ".launcherignore")
"""Files with patterns of what is not sent, as for git; the second one overrides the first."""
SCRIPT_OUTPUT = "script-output"
"""Name of the folder below `try --to` with the files that a script without a model wrote below {output_dir}."""
NOT_SENT = {
    ("pyvenv.cfg",): "is a virtual environment",
    (SCRIPT_OUTPUT,): "was written by `try`",
    ("run.json", "status.json"): "was copied by `results`",
}
"""Names of files → why a folder that contains all of these files is not sent."""
NO_SCRIPTS = frozenset(("setup.py", "conftest.py", "__init__.py"))
LIKELY_SCRIPT = re.compile(r"(.*/)?(train|run|main)[^/]*\.py")
SHOWN = 12
"""Largest number of candidates in a message."""
SERVER_CALLS = frozenset(("run_server", "init_server", "init_worker"))
"""Functions of `paddle.distributed.fleet` that only a script for parameter servers calls."""
PROGRAM_NAMES, FEWEST_NAMES = VALUES.keys() | FUNCTIONS.keys(), 5
"""The names that a program of runtime fleet must define, and how many of them make a file count as such a program."""


def list_files(folder: Path, ignored: list[str] | None = None) -> list[tuple[str, Path]]:
    """Return (name below `folder`, file) of each file that is sent, sorted by name.

    These are not sent: names that begin with a dot, `__pycache__`, the folders of NOT_SENT, and what .gitignore and
    .launcherignore ignore. Instead of a symbolic link, the file or folder that it leads to is sent; a link that leads
    to nothing is not sent.

    Args:
        folder: the program's folder.
        ignored: a list to which this function appends the name of each file and folder that .gitignore ignores; the
            names of folders end with a slash.

    Raises:
        UsageError: a link leads out of the program's folder, or to a folder that contains the link; or a name is
            invalid on the storage.
    """
    root, found = folder.resolve(), []

    def walk(
        path: Path, name: str, specs: list[tuple[str, str, pathspec.GitIgnoreSpec]], inside: set[Path]
    ) -> None:
        for ignore in IGNORE_FILES:
            if (path / ignore).is_file():
                lines = (path / ignore).read_text("utf-8-sig", "replace").splitlines()
                specs = [(ignore, name, pathspec.GitIgnoreSpec.from_lines(lines)), *specs]
        for entry in sorted(path.iterdir()):
            below = f"{name}{entry.name}"
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if ignore := _ignoring_file(path_name := f"{below}/" if entry.is_dir() else below, specs):
                if ignored is not None and ignore == GIT_IGNORE:
                    ignored.append(path_name)
                continue
            if entry.is_symlink() and not entry.exists():
                report(f"not sent: {entry} is a symbolic link that leads to nothing")
                continue
            if entry.is_symlink():
                _check_link(entry, root, inside)
            if entry.is_dir():
                if _may_be_sent(entry):
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


def _may_be_sent(folder: Path) -> bool:
    """Return whether a folder may be sent. If NOT_SENT excludes it, report the reason."""
    found = next((names for names in NOT_SENT if all((folder / one).exists() for one in names)), None)
    if found is not None:
        report(f"not sent: {folder} {NOT_SENT[found]}, as it contains {' and '.join(found)}")
    return found is None


def empty_submodules(folder: Path) -> list[str]:
    """Return the names of the git submodules of `folder` that have no files here: `git clone` leaves them empty."""
    listed = folder / ".gitmodules"
    text = listed.read_text("utf-8", "replace") if listed.is_file() else ""
    names = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return [name for name in names if not any((folder / name).glob("*"))]


def _ignoring_file(name: str, specs: list[tuple[str, str, pathspec.GitIgnoreSpec]]) -> str:
    """Return the name of the ignore file that ignores the file `name`; empty if none ignores it.

    Each of `specs` is (name of the ignore file, its folder, its patterns). The first one that has a pattern for `name`
    decides.
    """
    for ignore, prefix, spec in specs:
        verdict = spec.check_file(name.removeprefix(prefix)).include
        if verdict is not None:
            return ignore if verdict else ""
    return ""


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
    """Return the main file of a program or script, or its main module.

    Args:
        folder: the program's folder.
        names: the names of the files in `folder` that are sent.
        chosen: the file or module that the user has chosen, such as `tools.train`. Empty: trainer_config.py or train.py
            at the top of the folder, or the only .py file there.

    Raises:
        UsageError: the file is not sent or is no Python file, or there is no single candidate; the message lists the
            candidates.
    """
    scripts = [name for name in names if name.endswith(".py") and Path(name).name not in NO_SCRIPTS]
    top = [name for name in scripts if "/" not in name]
    likely = [name for name in scripts if LIKELY_SCRIPT.fullmatch(name) and name.count("/") < 3]
    candidates = top + [name for name in likely if name not in top]
    listed = ", ".join(candidates[:SHOWN]) + (" …" if len(candidates) > SHOWN else "")
    if chosen:
        chosen = _name_below(folder, chosen)
        if chosen in names and not is_script_file(chosen):
            raise UsageError(
                f"{chosen} is no Python file, and the launcher starts the script itself, in each pod with its rank",
                "give the .py file that it starts as --script, and its arguments after -- (of a notebook: jupyter "
                f"nbconvert --to script); candidates: {listed or 'none'}",
            )
        is_module = not is_script_file(chosen) and "/" not in chosen
        package = chosen.partition(".")[0]
        is_own = any(name == f"{package}.py" or name.startswith(f"{package}/") for name in names)
        # A module may also be one of a package of the image.
        if (module_file(chosen, names) or not is_own) if is_module else chosen in names:
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


def _name_below(folder: Path, chosen: str) -> str:
    """Return the path of the file `chosen`, relative to `folder`; `chosen` itself if there is no such file.

    `chosen` is relative to `folder` or to the current folder, or is an absolute path.
    """
    paths = (folder / chosen, Path(chosen))
    return next((os.path.relpath(path, folder) for path in paths if path.is_file()), chosen)


def find_main(folder: Path, names: list[str], chosen: str) -> tuple[str, str]:
    """Return (main file or module, runtime that it is written for). The arguments are those of `choose_file`.

    The runtime is empty, which means unknown, for a module whose file is not in `names`.
    """
    main = choose_file(folder, names, chosen)
    file = main if is_script_file(main) else module_file(main, names)
    return main, find_runtime(folder / file) if file else ""


def module_file(module: str, names: list[str]) -> str | None:
    """Return the name in `names` that is the file of the module `module`; None if `names` has no such file."""
    path = module.replace(".", "/")
    return next((name for name in (f"{path}.py", f"{path}/__main__.py") if name in names), None)


def find_runtime(file: Path) -> str:
    """Return the runtime that a .py file is written for: `fleet`, `ps` or `collective`.

    - `fleet`: the file is named trainer_config.py, or defines at least FEWEST_NAMES of the names that a program must
      define. A script may define a few of these names, too, such as `inputs` for `paddle.Model`.
    - `ps`: the file calls one of SERVER_CALLS, and passes `is_collective=True` to no function.
    - `collective`: any other file. A script that passes `is_collective=True` can also train without parameter servers.

    Raises UsageError for invalid syntax.
    """
    if file.name == CONFIG or len(defined_names(file) & PROGRAM_NAMES) >= FEWEST_NAMES:
        return "fleet"
    nodes = list(ast.walk(ast.parse(importlib.util.decode_source(file.read_bytes()))))
    fleets = {"fleet"} | {
        one.asname or one.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for one in node.names
        if "fleet" in f"{getattr(node, 'module', '')}.{one.name}"
    }
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    # fleet.init_worker(), self.fleet.init_worker(), or init_worker() that was imported from a module of fleet.
    called = {name for call in calls if (name := ast.unparse(call.func)).rpartition(".")[2] in SERVER_CALLS}
    uses_servers = any(fleets.intersection(name.split(".")) for name in called)
    can_do_without = any(
        ast.unparse(word) == "is_collective=True" for call in calls for word in call.keywords
    )
    return "ps" if uses_servers and not can_do_without else "collective"


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
