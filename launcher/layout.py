"""Where things are on the shared storage and on the pod's own disk. Pure: nothing here touches a disk.

<JOB_PATH>/
├── sources/                             what file:// sources name
└── <JOB_NAME>/                          Layout.job
    ├── manifest.json                    written last by the data Job
    ├── data-failed.json                 instead of it, when the data Job gave up
    ├── .<digest>.tmp/                   the data Job at work
    ├── <i>/data/{train.txt,train.list,test.list}   or train-<part>.txt and files.json instead of train.txt
    ├── test.txt                         the test set, once for all shards
    ├── rows.json                        where in the source the lines stand
    ├── tables/<name>                    side tables, once for all shards
    ├── <TRAIN_CONFIG_DIR>/              a person's own program
    ├── output/
    │   ├── run.lock, run.json, run.copy.json, status.json, program.json, metrics.csv, curve.png, report.html,
    │   ├── model/
    │   ├── node_<i>/{server.log,server-<k>.log,train.log,attempt-<k>/}
    │   ├── pass-<NNNNN>/{…,done}                    a finished pass
    │   └── pass-<NNNNN>-batch-<NNNNNNN>/{…,done}    a save inside a pass
    └── runs/<run id>/                   earlier outputs, moved aside whole

<work dir>/                              Work, an emptyDir of the pod
├── data/{train.txt,test.txt,train.list,test.list,sums.json,rows.json,tables/<name>}   staged shard;
│                                        test.txt where this rank tests
├── program/                             staged program
├── records/{train,test}/                the shard's rows, parsed
├── logs/{server.log,server-<k>.log,train.log}    what the children say; the launcher copies it to node_<i>/
├── progress.json                        the trainer's progress
└── export.json, export-<do>.log         what launcher.export answered and said
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SHARD_LISTS = ("train.list", "test.list")
RESERVED_FOLDERS = frozenset({"output", "runs", "tables", "sources"})
_SAVE = re.compile(r"pass-(\d{5,})(?:-batch-(\d{7,}))?")


@dataclass(frozen=True, order=True)
class Position:
    """Where training stands, or goes on: `passes` are finished, and `batches` of the next one."""

    passes: int
    batches: int = 0

    @property
    def folder(self) -> str:
        """The name of a save at this position; there is none at (0, 0)."""
        if not self.batches:
            return f"pass-{self.passes - 1:05d}"
        return f"pass-{self.passes:05d}-batch-{self.batches:07d}"

    def __str__(self) -> str:
        """As people count, from 1: `the end of pass 3`, `pass 4, batch 500`."""
        return (
            f"pass {self.passes + 1}, batch {self.batches}"
            if self.batches
            else f"the end of pass {self.passes}"
        )


def position(name: str) -> Position | None:
    """The position of a save's folder name, or None for any other name."""
    match = _SAVE.fullmatch(name)
    if match is None:
        return None
    return Position(int(match[1]), int(match[2])) if match[2] else Position(int(match[1]) + 1)


@dataclass(frozen=True)
class Layout:
    """Paths below one job's folder on the shared storage."""

    job_path: Path
    job_name: str

    @property
    def sources(self) -> Path:
        return self.job_path / "sources"

    @property
    def job(self) -> Path:
        return self.job_path / self.job_name

    @property
    def manifest(self) -> Path:
        return self.job / "manifest.json"

    @property
    def data_failed(self) -> Path:
        return self.job / "data-failed.json"

    @property
    def tables(self) -> Path:
        return self.job / "tables"

    @property
    def test(self) -> Path:
        return self.job / "test.txt"

    @property
    def output(self) -> Path:
        return self.job / "output"

    @property
    def rows(self) -> Path:
        """Where in the source the lines of the shards and of the test set stand."""
        return self.job / "rows.json"

    @property
    def runs(self) -> Path:
        return self.job / "runs"

    def data_tmp(self, digest: str) -> Path:
        """Where the data Job of this digest builds before it renames."""
        return self.job / f".{digest}.tmp"

    def data_alive(self, digest: str) -> Path:
        """Touched every few seconds while a pod of the data Job works."""
        return self.data_tmp(digest) / "alive"

    def output_tmp(self, run_id: str) -> Path:
        """A new output folder before it gets its name."""
        return self.job / f".output-{run_id}.tmp"

    def shard(self, index: int) -> Path:
        """The folder that holds shard `index` and the lists."""
        return self.job / str(index) / "data"

    def program(self, name: str) -> Path:
        """A person's own program."""
        return self.job / name

    def run(self, run_id: str) -> Path:
        """An earlier run's output."""
        return self.runs / run_id


@dataclass(frozen=True)
class Output:
    """Paths below an output folder: `<job>/output`, or one that was moved to `runs/`."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def run_copy(self) -> Path:
        """A copy of run.json, read when that is damaged."""
        return self.root / "run.copy.json"

    @property
    def status_json(self) -> Path:
        return self.root / "status.json"

    @property
    def metrics_csv(self) -> Path:
        return self.root / "metrics.csv"

    @property
    def before_json(self) -> Path:
        """What the model of `training.initFrom` scored before this run trained."""
        return self.root / "before.json"

    @property
    def program_json(self) -> Path:
        """The program's options and the text of its files, for `compare` and the report."""
        return self.root / "program.json"

    @property
    def report_html(self) -> Path:
        return self.root / "report.html"

    @property
    def curve_png(self) -> Path:
        return self.root / "curve.png"

    @property
    def checkpoint_request(self) -> Path:
        """Asks the training for a checkpoint; trainer 0 removes it once one is saved."""
        return self.root / ".checkpoint-request"

    @property
    def model(self) -> Path:
        return self.root / "model"

    def node(self, rank: int) -> Path:
        return self.root / f"node_{rank}"

    def server_log(self, rank: int, server: int = 0) -> Path:
        """`server.log` is pserver 0, `server-<k>.log` the others."""
        return self.node(rank) / (f"server-{server}.log" if server else "server.log")

    def train_log(self, rank: int) -> Path:
        return self.node(rank) / "train.log"

    def attempt(self, rank: int, attempt: int) -> Path:
        return self.node(rank) / f"attempt-{attempt}"

    def save(self, at: Position) -> Path:
        """A save's folder; `done` in it is written last."""
        return self.root / at.folder

    def unfinished(self, at: Position, attempt: int) -> Path:
        """A save before it gets its name: another attempt never writes into this one's."""
        return self.root / f".{at.folder}.attempt-{attempt}.tmp"

    def pass_dir(self, number: int) -> Path:
        """The save at the end of pass `number`, which counts from 0."""
        return self.save(Position(number + 1))


@dataclass(frozen=True)
class Work:
    """Paths on the pod's own disk."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def tables(self) -> Path:
        return self.data / "tables"

    @property
    def rows(self) -> Path:
        """As on the shared storage."""
        return self.data / "rows.json"

    @property
    def sums(self) -> Path:
        """What staging found of the files beside it: name → sha256."""
        return self.data / "sums.json"

    @property
    def program(self) -> Path:
        return self.root / "program"

    def log(self, name: str) -> Path:
        """What a child says, under the name that its copy on the shared storage has."""
        return self.root / "logs" / name

    @property
    def records(self) -> Path:
        """What the program's parse() made of the staged shard (launcher/worker/records.py)."""
        return self.root / "records"

    @property
    def progress(self) -> Path:
        return self.root / "progress.json"

    @property
    def export_answer(self) -> Path:
        return self.root / "export.json"

    def export_log(self, do: str) -> Path:
        return self.root / f"export-{do}.log"
