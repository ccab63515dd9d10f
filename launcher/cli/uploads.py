"""Check programs and data files on this machine, and upload them to the shared storage.

An upload is complete and verified, or does not appear on the storage at all.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli import program_files
from launcher.cli.errors import CliError, UsageError
from launcher.cli.packages import PythonEnvironment, install_packages, pack_files, package_files
from launcher.cli.releases import SOURCES
from launcher.cli.storage import Storage, run_json_command
from launcher.cli.terminal import confirm, report
from launcher.dataprep.sources import is_hidden
from launcher.io.files import BLOCK, combine_sums, folder_files, sha256_file
from launcher.io.open_below import ReaderError
from launcher.io.program_folders import check_module_names
from launcher.io.tar_stream import write_tar
from launcher.paths import RESERVED_FOLDERS, JobPaths
from launcher.settings import parsers
from launcher.trainer.program_loader import FUNCTIONS, VALUES

if TYPE_CHECKING:
    from launcher.trainer.trial_data import RowFormat


LARGE_BYTES = 100_000_000
"""`run` and `sweep` send a larger folder of a program only after a question, or with `--yes`. `push` does not ask."""
LARGE_PACKAGES = 1_000_000_000
"""A larger folder of packages is sent only after a question, or with `--yes`."""
IGNORED_SHOWN = 10
"""Largest number of ignored files and folders in a message."""


class OtherContentError(CliError):
    """The storage has other content with the same name."""


@dataclass(frozen=True)
class Upload:
    """A program or a data file to upload."""

    name: str
    """Name of the folder or file on the storage."""
    entries: tuple[tuple[str, Path], ...]
    """(name in the archive, file) of each file."""
    values: dict[str, str]
    """The chart values that refer to the upload."""
    folder: str = ""
    """The folder of the storage that the upload belongs to, such as `sources`; empty: the job's folder."""
    runtime: str = ""
    """The runtime that the program is written for (`program_files.find_runtime`); empty: unknown."""

    @functools.cached_property
    def sums(self) -> dict[str, str]:
        """The sha256 of each file, by the file's name in the archive. The files are read at the first use only."""
        return {name: sha256_file(file) for name, file in self.entries}

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.stat().st_size for _, file in self.entries)

    def describe_size(self) -> str:
        """Return the size of all files, and of the three largest files or folders at the top, for a message."""
        sizes: Counter[str] = Counter()
        for name, file in self.entries:
            sizes[name.partition("/")[0]] += file.stat().st_size
        largest = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sizes.most_common(3))
        return f"{self.size / 1e6:,.0f} MB ({largest})"

    def confirm_size(self, what: str, limit: int, yes: bool, fix: str) -> None:
        """Ask the user whether to send the upload if it is larger than `limit` bytes; with `yes`, do not ask.

        `what` describes the upload. Raises UsageError with `fix` if the user answers no, or stdin is not a terminal.
        """
        if self.size <= limit or yes:
            return
        text = f"{what} has {self.describe_size()}"
        if not confirm(f"{text}, which every training pod copies. Send it?"):
            raise UsageError(f"{text}; nothing was sent", fix)


def make_storage_name(name: str, kind: str) -> str:
    """Return the name that a program's folder or a data file gets on the storage.

    Every group of invalid characters in `name` becomes a hyphen. If only the ending remains, the rest becomes
    `<kind>-<6 hex digits>`; the digits are a hash of `name`, so that the results for two names differ. A number, and
    each of RESERVED_FOLDERS, gets `<kind>-` in front, because the launcher uses these names itself. The result has at
    most 63 characters.

    Args:
        name: the name of the folder or file on this machine.
        kind: `program` or `data`.
    """
    path = Path(name)
    stem, ending = (re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-") for part in (path.stem, path.suffix))
    if not (kept := stem.lstrip("._-")):
        kept = f"{kind}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:6]}"
    whole = kept + ending
    return (f"{kind}-{whole}" if whole.isdigit() or whole in RESERVED_FOLDERS else whole)[:63]


def plan_program(folder: Path, check: bool = True, chosen_file: str = "") -> Upload:
    """Plan the upload of a program's folder; `program_files.list_files` describes which files are not sent.

    `chosen_file` is the main file or module; empty: the one that `program_files.choose_file` finds. With `check`, a
    program must define what the trainer of runtime fleet needs.

    Raises:
        UsageError: a link cannot be sent, there is no single main file, or the program is incomplete.
        SettingsError: with `check`: a module of the program has the name of a module of Python or the launcher.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "give a program's folder, or a data file with --source")
    chosen = make_storage_name(folder.resolve().name, "program")
    ignored: list[str] = []
    entries = program_files.list_files(folder, ignored)
    if ignored:  # it may be data that the script reads
        ignored.sort(key=lambda entry: not entry.endswith("/"))
        shown = ", ".join(ignored[:IGNORED_SHOWN]) + (" …" if len(ignored) > IGNORED_SHOWN else "")
        report(
            f"not sent, because .gitignore names them: {shown}. If the program needs one of them, "
            f"write !{ignored[0]} into {folder / program_files.IGNORE_FILES[1]}"
        )
    for name in program_files.empty_submodules(folder):
        report(
            f"{folder / name} is empty, since it is a git submodule that was not fetched. If the program needs it: "
            "git submodule update --init --recursive"
        )
    config, runtime = program_files.find_main(folder, [entry for entry, _ in entries], chosen_file)
    if check and runtime == "fleet":
        check_module_names(folder)
        defined = program_files.defined_names(folder / config)
        lacks = [text for name, text in {**VALUES, **FUNCTIONS}.items() if name not in defined]
        if lacks and "*" not in defined:
            raise UsageError(
                "\n  ".join([f"{folder / config} does not define what a program must define:", *lacks])
                + "\nNothing was sent",
                "add it (launcher/programs/README.md); or upload a configuration of runtime v1 with --no-check",
            )
    upload = Upload(chosen, tuple(entries), {"training.config": f"{chosen}/{config}"}, runtime=runtime)
    upload.values["training.programSha256"] = combine_sums(upload.sums)
    return upload


def plan_source(file: Path, data_format: str | None = None) -> Upload:
    """Plan the upload of a data file, which a training then reads with a `file://` source; nothing is sent.

    Args:
        file: the data file, or a folder: then all files in it are the data, except hidden ones.
        data_format: the value `data.format`; None if it is not set, which means `files` for a folder.

    Raises:
        UsageError: the file does not exist, or a file cannot be sent.
    """
    if not file.exists():
        raise UsageError(f"{file}: no such file", "give the path of a data file, or of a folder of files")
    chosen = make_storage_name(file.name or file.resolve().name, "data")  # for a link, the link's own name
    if file.is_dir():
        links = [path for path in file.rglob("*") if path.is_symlink() and not path.is_file()]
        names = {path.relative_to(file).as_posix(): path for path in folder_files(file)}
        form = data_format or "files"
        entries = {name: path for name, path in names.items() if not is_hidden(name, form)}
        if links or not entries:
            what = (
                f"{links[0]} is a link to a folder or to nothing" if links else f"{file} has no file to send"
            )
            raise UsageError(f"{what}; nothing was sent", "give a folder with the files themselves")
        values = {"data.source": f"file://{chosen}", "data.format": form}
        upload = Upload(chosen, tuple(entries.items()), values, SOURCES)
        if form == "files":
            values["data.sha256"] = combine_sums(upload.sums)
        else:  # the sha256 of all rows, as the data Job reads them
            rows = hashlib.sha256()
            for path in sorted(entries.values()):
                with path.open("rb") as content:
                    while block := content.read(BLOCK):
                        rows.update(block)
            values["data.sha256"] = rows.hexdigest()
        return upload
    upload = Upload(chosen, ((chosen, file),), {"data.source": f"file://{chosen}"}, SOURCES)
    upload.values["data.sha256"] = upload.sums[chosen]
    return upload


def send_packages(requirements: Path, image: str, storage: Storage, yes: bool) -> dict[str, str]:
    """Send the packages that `requirements` need in addition to `image`; return the chart value that refers to them.

    The returned dict has only the key `training.packages`. If the image has all packages, nothing is sent, and the dict
    is empty. `storage` runs commands in a pod of that image. With `yes`, large packages are sent without a question.

    Raises:
        UsageError: the packages cannot be installed in addition to those of the image, or are large, and the user does
            not confirm.
        CliError: uv is missing or cannot reach the package index, or the storage failed.
    """
    with tempfile.TemporaryDirectory(prefix="paddle-training-packages.") as temporary:
        folder = Path(temporary)
        environment = PythonEnvironment.of_image(image, run_json_command(storage, "environment"))
        names = install_packages(requirements, environment, folder / "packages")
        if not names:
            report(f"packages of {requirements}: the image has all of them")
            return {}
        unpacked = Upload("packages", package_files(folder / "packages"), {})
        report(f"packages of {requirements}: {', '.join(names)}: {unpacked.describe_size()}")
        fix = "remove packages that the program does not need, give --yes, or use an image of your own and "
        unpacked.confirm_size(
            f"the folder of {len(names)} packages", LARGE_PACKAGES, yes, f"{fix}--requirements none"
        )
        file = folder / "packages.tar.gz"
        archive = JobPaths(folder, "").packages(pack_files(unpacked.entries, file))
        values = {"training.packages": archive.name.partition(".")[0]}
        send(
            storage, Upload(archive.name, ((archive.name, file),), values, archive.parent.name), replace=True
        )
        return values


def send(storage: Storage, upload: Upload, replace: bool) -> str:
    """Send an upload to the storage, unless the storage has the same content; return its path on the storage.

    The upload gets its name on the storage after every sha256 was verified.

    Raises:
        OtherContentError: the storage has other content with that name, and `replace` is False.
        CliError: the storage is full, or the connection failed; the storage was not changed. Only if the connection
            failed after the last byte was sent, the upload may be complete.
    """
    root = storage.sibling(upload.folder) if upload.folder else storage
    path, size = str(root.job / upload.name), ("--bytes", str(upload.size))
    if stored := run_json_command(root, "sums", *size, upload.name):
        if stored == upload.sums:
            report(f"{path} is on the storage already, with the same sha256: nothing to send")
            return path
        if not replace:
            raise OtherContentError(
                f"{path} exists already with other content; nothing was sent",
                "replace it with --force, or rename your folder or file",
            )
    reading_end, writing_end = os.pipe()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            with os.fdopen(writing_end, "wb") as out:
                write_tar(out, upload.entries)
        except (OSError, ReaderError) as error:  # after a broken pipe, the receiver reports the cause
            failure.append(error)

    threading.Thread(target=write, daemon=True).start()
    options = [*size, *(["--replace"] if replace else [])]
    try:
        saved = run_json_command(root, "untar", *options, upload.name, stdin=os.fdopen(reading_end, "rb"))
    except CliError as error:
        if failure and isinstance(failure[0], ReaderError):
            raise CliError(
                f"the upload of {upload.name} failed, and the storage was not changed: {failure[0]}"
            ) from error
        raise
    count = f"{len(saved)} file{'' if len(saved) == 1 else 's'}"
    report(f"{path}: {sum(saved.values()):,} bytes in {count}; every sha256 matches")
    return path


def row_format(data: Mapping[str, Any]) -> RowFormat:
    """Return the format of a data file. `data` has the chart's values below `data`, checked by `complete_values`."""
    from launcher.trainer import trial_data

    return trial_data.RowFormat(
        format=data["format"],
        delimiter=parsers.delimiter(data["delimiter"]),
        header=data["header"],
        columns=tuple(data["columns"]),
        quoting=data["quoting"],
        encoding=data["encoding"],
    )


def check_program(
    config: Path,
    training: Mapping[str, Any],
    source: Path | None,
    data: Mapping[str, Any],
    by: str | None = None,
) -> str:
    """Load a program, parse the first rows of a local data file, and train on some of them.

    The program is not loaded if numpy, the right version of Paddle, or side tables that it needs are missing on this
    machine. Return what was checked, in one sentence. Raises LauncherError if the program or a row is invalid.

    Args:
        config: the program's main file.
        training: the chart's values below `training`.
        source: the local data file; None: the data is not on this machine.
        data: the chart's values below `data`.
        by: a score that metrics() must return; None: any. It is checked only if metrics() can be called on this
            machine.
    """
    unchecked = (
        "its code was parsed, not run: {} here (pip install '.[model]'). "
        "Trainer 0 checks its network on the cluster, before the first batch"
    )
    if absent := [name for name in ("paddle", "numpy") if importlib.util.find_spec(name) is None]:
        return unchecked.format(f"{absent[0]} is not installed")
    os.environ.setdefault("GLOG_minloglevel", "1")
    import paddle

    from launcher.dataprep.csv_records import RowPlaces
    from launcher.trainer import network, program_loader, record_files, single_process, trial_data
    from launcher.trainer.paddle_internals import VERSION

    if paddle.__version__ != VERSION:
        return unchecked.format(f"PaddlePaddle {paddle.__version__}, not {VERSION}, is installed")
    with tempfile.TemporaryDirectory(prefix="paddle-training-check.") as temporary:
        rows, places = [], RowPlaces(source.name if source else "")
        if source is not None:
            archive = trial_data.Archive(data["member"], data["tables"], Path(temporary))
            limit = trial_data.CHECKED_ROWS
            rows = list(trial_data.read_rows(source, row_format(data), places, limit, archive=archive))
        elif data["tables"]:
            return "its code was parsed, not run: it needs side tables, which are not on this machine"
        program = program_loader.load_program(config, Path(temporary), tuple(training["args"]))
        batch, checked = None, "its network can be built; its rows are not on this machine"
        if source is not None:
            found, skipped = record_files.parse_records(rows, program, places)
            trial_data.check_parse_columns(program, source, row_format(data))
            if not len(found):
                raise record_files.no_usable_rows(source.name, program, skipped)
            batch = record_files.split_inputs(found[: network.ROWS])
            count = len(batch[program.label])
            checked = f"it parses the first {len(rows):,} rows ({skipped:,} skipped) and trains on {count}"
        scores = single_process.check_program(program, batch, training["mode"], training["batchSize"])
    network.check_metric(program, training["keepBest"], scores)
    if by is not None and scores and by not in scores:
        raise UsageError(
            f"--by {by}: the program has no such score; nothing was sent",
            f"choose one of: {', '.join(scores)}",
        )
    return checked
