"""Paths on the shared storage and on the pod's own disk, and names of checkpoints. Reads and writes no files.

The data Job splits the source data into shards, one for each rank (training pod), on the shared storage; each
training pod copies its shard to its own disk.

<JOB_PATH>/
├── sources/                             input files of data.source with a file:// address
├── .data/                               JobPaths.all_data: the prepared data of all jobs
│   ├── <content>/                       DataPaths: data that is complete; <content> is a digest of source and settings
│   │   ├── manifest.json                list of its files
│   │   ├── <i>/{train.txt,train.list,test.list}    shard i; a shard in several files has train-<part>.txt and
│   │   │                                files.json instead of train.txt
│   │   ├── test.txt                     the test set, common to all shards
│   │   ├── files/…, files.jsonl         with data.format files, instead of shards: the files, and their list
│   │   └── tables/<name>                side tables: files of data.tables that the program reads
│   ├── <dataDigest>.json                the manifest of the data with this digest; its key content is <content>
│   ├── .<content>.<uid>.tmp/            work in progress of data Jobs
│   └── .<dataDigest>.alive              a file that data Jobs at work touch
├── .packages/<sha256>.tar.gz            JobPaths.packages: Python packages of programs
├── .sweeps/<sweep>.journal              JobPaths.all_sweeps: all trials of a sweep
└── <JOB_NAME>/                          JobPaths.job
    ├── manifest.json                    the manifest of the job's newest data; the data Job writes it last
    ├── <i>/data, test.txt, tables       relative links to that data
    ├── data-failed.json                 why the data Job failed
    ├── .run-secret                      what the ranks of the newest run authenticate with; mode 0600
    ├── <TRAIN_CONFIG_DIR>/              a user's own program
    ├── output/                          the current run's output
    │   ├── run.lock, run.json, run.copy.json, status.json, program.json, metrics.csv, before.json, curve.png,
    │   │   report.html, .checkpoint-request
    │   ├── model/
    │   ├── checkpoints/                 a script's own files (runtime collective); the launcher only creates it
    │   ├── node_<i>/{server.log,server-<k>.log,train.log,train-<k>.log,attempt-<k>/}
    │   ├── pass-<NNNNN>/{…,done}                    a finished pass
    │   └── pass-<NNNNN>-batch-<NNNNNNN>/{…,done}    a checkpoint inside a pass
    └── runs/<run id>/                   earlier outputs

<work dir>/                              WorkPaths, an emptyDir of the pod
├── data/{train.txt,test.txt,train.list,test.list,sums.json,tables/<name>}   staged shard;
│                                        test.txt where this rank needs it
├── data/files                           with data.format files: a link to them, or a copy (data.cache)
├── program/                             staged program
├── packages/                            its Python packages, unpacked
├── records/{train,test}/                the shard's rows, parsed
├── logs/{server.log,server-<k>.log,train.log,train-<k>.log}    logs of the children, which the launcher copies to
│                                        node_<i>/
├── progress.json, progress-<k>.json     progress of trainer 0, and of trainer k (runtime collective)
└── <helper>.answer.json                 result of a helper process (a short-lived child of the launcher), whose
                                         log is logs/<helper>.log
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

RESERVED_FOLDERS = frozenset({"output", "runs", "tables", "sources"})
_SAVE = re.compile(r"pass-([0-9]{5,18})(?:-batch-([0-9]{7,18}))?")


def is_safe_name(name: str) -> bool:
    """Return whether `name`, which comes from a file, a bucket or a stream, is the path of a file below a folder.

    Every name is checked by this function before it is joined to a folder. It rejects absolute paths, `..`, `.`,
    empty parts, NUL, backslashes (which other tools read as separators) and names that no file system can store.
    """
    try:
        sizes = [len(part.encode(errors="surrogateescape")) for part in name.split("/")]
    except UnicodeEncodeError:
        return False
    dots = {".", ".."}.intersection(name.split("/"))
    return not dots and not {"\0", "\\"}.intersection(name) and 0 < min(sizes) <= max(sizes) <= 255


FileName = Annotated[str, is_safe_name]
"""The path of a file or folder below another folder, which may be joined to that folder."""
Count = Annotated[int, range(2**53).__contains__]
"""A number of bytes, rows, passes and so on. 2**53 is the first integer that not all JSON parsers can read."""


@dataclass(frozen=True, order=True)
class Position:
    """How far a run has trained: `passes` finished passes, and `batches` finished batches of the next pass.

    A pass is PaddlePaddle's word for an epoch. Every checkpoint has a position, and the name of its folder is made from
    the position. In every file and message a position is the JSON object `{"pass": passes, "batch": batches}`.
    """

    passes: Count = field(metadata={"key": "pass"})
    batches: Count = field(default=0, metadata={"key": "batch", "required": True})

    @property
    def folder(self) -> str:
        """The folder name of the checkpoint at this position. At Position(0, 0) there is no checkpoint."""
        if not self.batches:
            return f"pass-{self.passes - 1:05d}"
        return f"pass-{self.passes:05d}-batch-{self.batches:07d}"

    def __str__(self) -> str:
        """Return the position for messages: `the end of pass 3` or `pass 4, batch 500`, counted from 1."""
        if self.batches:
            return f"pass {self.passes + 1}, batch {self.batches}"
        return f"the end of pass {self.passes}"


def position(name: str) -> Position | None:
    """Return the position of a checkpoint's folder name, or None for any other name."""
    match = _SAVE.fullmatch(name)
    if match is None:
        return None
    return Position(int(match[1]), int(match[2])) if match[2] else Position(int(match[1]) + 1)


class _Below:
    """An attribute of a class with paths. The value is the path `name` below the folder in the attribute `base`."""

    def __init__(self, name: str, base: str = "root") -> None:
        self._name, self._base = name, base

    def __get__(self, paths: Any, _: type) -> Path:
        """Return the path."""
        folder: Path = getattr(paths, self._base)
        return folder / self._name


@dataclass(frozen=True)
class JobPaths:
    """Paths of one training job on the shared storage: `<job_path>/<job_name>/…`."""

    job_path: Path
    job_name: str

    @property
    def job(self) -> Path:
        return self.job_path / self.job_name

    sources = _Below("sources", base="job_path")
    all_data = _Below(".data", base="job_path")
    """Folder of the prepared data of all jobs of the storage."""
    all_packages = _Below(".packages", base="job_path")
    all_sweeps = _Below(".sweeps", base="job_path")
    """Folder of the journals of all sweeps of the storage, `<name of the sweep>.journal`."""
    manifest = _Below("manifest.json", base="job")
    data_failed = _Below("data-failed.json", base="job")
    run_secret = _Below(".run-secret", base="job")
    """Path of the newest run's secret, which is not in output/, because `results` and exports copy from there."""
    output = _Below("output", base="job")
    runs = _Below("runs", base="job")

    def data(self, content: str) -> DataPaths:
        """Return the paths of the prepared data with this digest of its content (`content` in the manifest)."""
        return DataPaths(self.all_data / content)

    def data_record(self, digest: str) -> Path:
        """Return the path of the manifest of the data with this `dataDigest`; its `content` is the data's folder."""
        return self.all_data / f"{digest}.json"

    def data_tmp(self, content: str) -> Path:
        """Return the folder in which data Jobs of this user prepare data.

        When the data is complete, a data Job renames the folder to `data(content)`.
        """
        return self.all_data / f".{content}.{os.getuid()}.tmp"

    def data_alive(self, digest: str) -> Path:
        """Return the path of the file that the pods of a data Job touch every few seconds while they run."""
        return self.all_data / f".{digest}.alive"

    def packages(self, sha256: str) -> Path:
        """Return the path of the archive of Python packages with this sha256 (the value of `training.packages`)."""
        return self.all_packages / f"{sha256}.tar.gz"

    def output_tmp(self, run_id: str) -> Path:
        """Return the temporary path of run `run_id`'s new output folder, until it is renamed to output/."""
        return self.job / f".output-{run_id}.tmp"

    def program(self, name: str) -> Path:
        """Return the folder of the user's own training program `name`."""
        return self.job / name

    def run(self, run_id: str) -> Path:
        """Return the folder to which the output of the earlier run `run_id` was moved: `runs/<run_id>`."""
        return self.runs / run_id


@dataclass(frozen=True)
class DataPaths:
    """Paths below `root`, a folder of prepared data: `<job_path>/.data/<content>`, or the work folder of a data Job."""

    root: Path

    manifest = _Below("manifest.json")
    tables = _Below("tables")
    test = _Below("test.txt")
    files = _Below("files")
    """With `data.format: files`, the folder of the data files."""
    file_list = _Below("files.jsonl")
    """List of the data files in `files`: a JSON object with name, bytes and sha256 on each line."""
    parts = _Below("parts")
    """In the work folder of a data Job, the folder with the locks, markers and test sets of the parts of the source."""

    def shard(self, index: int) -> Path:
        """Return the folder with the rows of shard `index` (train.txt, train.list, test.list)."""
        return self.root / str(index)


@dataclass(frozen=True)
class OutputPaths:
    """Paths below the output folder of a run: `<job>/output`, or `<job>/runs/<run id>` for an earlier run."""

    root: Path

    lock = _Below("run.lock")
    run_json = _Below("run.json")
    run_copy = _Below("run.copy.json")
    """Path of run.copy.json, the copy of run.json that is read when run.json is damaged."""
    status_json = _Below("status.json")
    metrics_csv = _Below("metrics.csv")
    before_json = _Below("before.json")
    """Path of before.json, the scores of the model of `training.initModelPath` before its training continues."""
    program_json = _Below("program.json")
    """Path of program.json, the options and file contents of the program, for `compare` and report.html."""
    report_html = _Below("report.html")
    curve_png = _Below("curve.png")
    checkpoint_request = _Below(".checkpoint-request")
    """Path of the file that requests a checkpoint; trainer 0 removes the file once the checkpoint is saved."""
    model = _Below("model")
    script_checkpoints = _Below("checkpoints")
    """Folder in which a script of runtime collective may keep files of its own; the launcher only creates it."""

    def node(self, rank: int) -> Path:
        return self.root / f"node_{rank}"

    def server_log(self, rank: int, server: int = 0) -> Path:
        """Return the log file of one parameter server of `rank`: `server.log` for server 0, else `server-<k>.log`."""
        return self.node(rank) / (f"server-{server}.log" if server else "server.log")

    def train_log(self, rank: int, trainer: int = 0) -> Path:
        """Return the log file of one trainer of `rank`: `train.log` for trainer 0, else `train-<k>.log`."""
        return self.node(rank) / (f"train-{trainer}.log" if trainer else "train.log")

    def attempt(self, rank: int, attempt: int) -> Path:
        return self.node(rank) / f"attempt-{attempt}"

    def checkpoint(self, at: Position) -> Path:
        """Return the folder of the checkpoint at position `at`; the file `done` in it is written last."""
        return self.root / at.folder

    def unfinished(self, at: Position, attempt: int) -> Path:
        """Return the temporary folder in which attempt number `attempt` writes the checkpoint at `at`."""
        return self.root / f".{at.folder}.attempt-{attempt}.tmp"


POD_WORK_DIR = Path("/work")
"""Where the chart mounts a pod's own disk; the variable PADDLE_LAUNCHER_WORK_DIR may contain another path."""


@dataclass(frozen=True)
class WorkPaths:
    """Paths below `root`, the work folder on a training pod's own disk (an emptyDir volume)."""

    root: Path

    data = _Below("data")
    tables = _Below("data/tables")
    files = _Below("data/files")
    """With `data.format: files`, the folder of the data files: a link to the storage, or a copy (data.cache)."""
    sums = _Below("data/sums.json")
    """Path of sums.json: for train.txt and test.txt, the bytes and sha256 of each file that was copied into it."""
    program = _Below("program")
    packages = _Below("packages")
    """Folder of the Python packages of `training.packages`. It does not exist until all packages are unpacked."""
    records = _Below("records")
    """Folder of this rank's rows in parsed, binary form (launcher/trainer/record_files.py)."""
    progress = _Below("progress.json")

    def log(self, name: str) -> Path:
        """Return a child process's log file. Its copy on the shared storage has the same name, such as `train.log`."""
        return self.root / "logs" / name

    def trainer_progress(self, trainer: int) -> Path:
        """Return the progress file of this pod's trainer k: `progress.json` for k = 0, else `progress-<k>.json`."""
        return self.root / f"progress-{trainer}.json" if trainer else self.progress

    def helper_answer(self, name: str) -> Path:
        """Return the file to which helper process `name` writes its result (launcher/io/helper_protocol.py)."""
        return self.root / f"{name}.answer.json"
