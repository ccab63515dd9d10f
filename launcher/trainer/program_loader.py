"""Load a user's training program and check its interface (launcher/programs/README.md)."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from launcher.errors import LauncherError, SettingsError
from launcher.io import program_folders, spelling, stop_signals
from launcher.program import Ids, Job, Real

FUNCTIONS = {
    "inputs": "inputs(job) -> {name: Ids(length) or Real(width)}",
    "parse": "parse(row, job) -> {input's name: value} or None to skip the row",
    "network": "network(data, job) -> (prediction, loss)",
    "metrics": "metrics(prediction, label) -> {name: number}",
    "optimizer": "optimizer(job) -> paddle.optimizer.Adam or SGD",
}
VALUES = {
    "COLUMNS": 'COLUMNS = ("…", …): the names of a line\'s fields, in order',
    "LABEL": 'LABEL = "…": the input that is to be predicted',
}
SEED = {"seed": 1}
"""The option that every program has, and its default. `training.args` sets the seed. Paddle rejects a negative seed.

If OPTIONS of the program has `seed`, `training.args` sets only the program's own option, and this seed keeps its
default."""


@dataclass(frozen=True)
class TrainingProgram:
    """Holds a loaded training program. Call the program's functions inside `calling`, for clear error messages."""

    module: ModuleType
    path: Path
    job: Job
    inputs: Mapping[str, Ids | Real]
    columns: tuple[str, ...]
    label: str
    seed: int

    @property
    def features(self) -> list[str]:
        """Return the names of the inputs without the label, in the order of inputs()."""
        return [name for name in self.inputs if name != self.label]

    @contextlib.contextmanager
    def calling(self, function: str) -> Iterator[None]:
        """Turn an exception in the `with` block into a `SettingsError`, whose message has the failing line.

        `function` is the function of the program that the block calls. Errors of the launcher (`LauncherError`) are
        raised unchanged.
        """
        try:
            yield
        except LauncherError:
            raise
        except Exception as error:
            raise self.failed(function, error) from error

    def record(self) -> dict[str, Any]:
        """Return the content of program.json: all options with their values, and the texts of the program's .py files.

        `read_program_texts` leaves out files that are too large together.
        """
        options = {"seed": self.seed, **self.job.options}
        texts = program_folders.read_program_texts(self.path.parent)
        return {"options": {name: str(value) for name, value in options.items()}, "files": texts}

    def failed(self, function: str, error: Exception, detail: str = "") -> SettingsError:
        """Return the error to raise for an exception in a function of the program. Its message has the failing line.

        Args:
            function: the function that failed, for example `metrics()`.
            error: the exception.
            detail: text that follows the exception's text, for example `. The row: …`.
        """
        where = self.line_of(error)
        text = f"the program {self.path} failed in {function}{where and f' at {where}'}: {error_text(error)}"
        return SettingsError(with_fix(text + detail, "correct that function of the program"))

    def line_of(self, error: Exception) -> str:
        """Return the program's innermost line in an error's traceback as `file:line: code`; "" if there is none."""
        # The text of Paddle's errors contains the lines of the program that built the failing operator.
        return innermost_line(self.path, "".join(traceback.format_tb(error.__traceback__)) + str(error))


def with_fix(message: str, fix: str) -> str:
    """Append `Fix: <fix>.` to a message, and return it. A message that already has a fix is returned unchanged."""
    return message if "Fix: " in message else f"{message}. Fix: {fix}."


def innermost_line(path: Path, stack: str) -> str:
    """Return the innermost line of a printed stack that is in a file of the folder of `path`, as `file:line: code`.

    Files in subfolders do not count. Return "" if the stack has no line in a file of this folder.
    """
    pattern = rf'File "{re.escape(str(path.parent))}/([^"/]+)", line (\d+).*\n\s*(.*)'
    found = re.findall(pattern, stack)
    return "{}:{}: `{}`".format(*found[-1]) if found else ""


def error_text(error: Exception) -> str:
    """Return the type and text of an error, without the stack trace and the hints that Paddle adds to its errors.

    For a missing module, return a text that says how to install it.
    """
    if isinstance(error, ModuleNotFoundError):
        return (
            f"the module {error.name} is not installed here. Fix: put a pure Python module next to the "
            "program; for others install it here, and build an image with it for the cluster: see "
            "launcher/programs/README.md#more-python-packages"
        )
    text = re.sub(r"\s*\n\s*\[(Hint:|operator ).*", "", str(error), flags=re.DOTALL)
    if paddles := re.search(r"^\s*(\w+Error: .*)", text, re.MULTILINE | re.DOTALL):
        return re.sub(r" \(at /paddle/\S+\)$", "", paddles[1].strip())
    return f"{type(error).__name__}: {text}"


def load_program(path: Path, tables_dir: Path, arguments: tuple[str, ...] = ()) -> TrainingProgram:
    """Import a program, check its interface, set its options, and call prepare() and inputs().

    Args:
        path: the program's file.
        tables_dir: folder of the side tables (data.tables: further files of the source, copied unchanged).
        arguments: texts `--name=value`; each sets an option.

    Raises:
        SettingsError: the program or an argument is invalid. If names are missing in the program, the message lists all
            of them.
    """
    module = _import(path)
    missing = [text for name, text in VALUES.items() if not getattr(module, name, None)]
    missing += [text for name, text in FUNCTIONS.items() if not callable(getattr(module, name, None))]
    if missing:
        raise SettingsError(
            f"the program {path} lacks {len(missing)} of the {len(VALUES) + len(FUNCTIONS)} things that a "
            "program needs:\n  " + "\n  ".join(missing) + "\nFix: add them, see launcher/programs/README.md."
        )
    defaults = dict(getattr(module, "OPTIONS", {}))
    options, seed = _options(path, defaults, arguments)
    tables = {p.name: p for p in sorted(tables_dir.iterdir()) if p.is_file()} if tables_dir.is_dir() else {}
    if absent := [name for name in getattr(module, "TABLES", ()) if name not in tables]:
        raise SettingsError(
            f"the program {path} needs the tables {', '.join(absent)}, but there are "
            f"{', '.join(tables) or 'none'} with the data. Fix: add them to data.tables (for `try`: --table FILE)."
        )
    job = Job(options=options, tables=tables)
    program = TrainingProgram(module, path, job, {}, tuple(module.COLUMNS), module.LABEL, seed)
    if hasattr(module, "prepare"):
        with program.calling("prepare()"):
            job.side = module.prepare(job)
    with program.calling("inputs()"):
        inputs = dict(module.inputs(job))
    wrong = [name for name, kind in inputs.items() if not isinstance(kind, Ids | Real)]
    if wrong or program.label not in inputs or len(inputs) < 2:
        raise SettingsError(
            f"inputs() of the program {path} returned {inputs!r}, but must return the label "
            f"{program.label!r} and at least one more input, each an Ids(length) or a Real(width). Fix: "
            "return {name: Ids(…) or Real(…)} with the label; see launcher/programs/README.md"
        )
    stop_signals.restore_handlers()  # the program or its caller has imported Paddle
    return replace(program, inputs=inputs)


def _import(path: Path) -> ModuleType:
    if path.is_file():
        program_folders.check_module_names(path.parent)
        own = program_folders.module_names(path.parent)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.partition(".")[0] in own and path.parent not in Path(file or "/").parents:
                del sys.modules[name]  # a module of another program with the same name
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # so that a program can import files of its folder
    spec = importlib.util.spec_from_file_location(f"program_{path.stem.replace('.', '_')}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(
            f"there is no Python program {path}. Fix: set training.config to <folder>/<file>.py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up there
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        what = f"the program {path}"
        if error.filename not in (None, str(path)):
            what = f"{error.filename}, which {what} imports,"
        raise SettingsError(
            f"{what} has a syntax error in line {error.lineno}: {error.msg}. Fix: correct that line"
        ) from error
    except Exception as error:
        where = innermost_line(path, "".join(traceback.format_tb(error.__traceback__)))
        text = f"the program {path} cannot be loaded{where and f' ({where})'}: {error_text(error)}"
        raise SettingsError(with_fix(text, "correct the program")) from error
    return module


def _options(path: Path, defaults: dict[str, Any], arguments: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    """Return the program's options and the seed. `arguments` replace some of the values in `defaults`.

    Raises:
        SettingsError: an argument has an unknown name or an invalid value.
    """
    options: dict[str, Any] = SEED | defaults
    for argument in arguments:
        key, _, text = argument.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        if key not in options:
            shown = ", ".join(f"--{name}={value}" for name, value in (SEED | defaults).items())
            raise SettingsError(
                f"training.args (or --set) has {argument!r}, but the program {path} has only these options (with "
                f"their defaults): {shown}. Fix: {spelling.suggest(key, options) or 'use one of them'}"
            )
        kind = type(options[key])
        if not isinstance(options[key], bool | int | float | str):
            raise SettingsError(
                f"training.args (or --set) has {argument!r}, but the default of {key} is a {kind.__name__}, and "
                "only numbers, texts and truth values can be set. Fix: correct OPTIONS of the program, or remove the "
                "argument"
            )
        try:
            options[key] = _TRUTH[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise SettingsError(
                f"training.args (or --set) has {argument!r}, but {key} must be {_WORDS.get(kind, kind.__name__)}, "
                f"as its default {options[key]!r} is. Fix: correct the argument"
            ) from None
        if key not in defaults and options[key] < 0:
            raise SettingsError(
                f"training.args (or --set) has {argument!r}, but {key} must be at least 0. Fix: "
                "correct the argument"
            )
    seed = SEED["seed"] if "seed" in defaults else options.pop("seed")
    return options, seed


_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
