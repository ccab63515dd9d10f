"""Where things are on the shared storage and on the pod's own disk. Pure: nothing here touches a disk.

<JOB_PATH>/
├── sources/                             what file:// sources name
└── <JOB_NAME>/                          Layout.job
    ├── manifest.json                    written last by the data Job
    ├── data-failed.json                 instead of it, when the data Job gave up
    ├── .<digest>.tmp/                   the data Job at work
    ├── <i>/data/{train.txt,test.txt,train.list,test.list}
    ├── tables/<name>                    side tables, once for all shards
    ├── <TRAIN_CONFIG_DIR>/              a person's own program
    ├── output/
    │   ├── run.lock, run.json, status.json, metrics.csv, curve.png, model/
    │   ├── node_<i>/{server.log,server-<k>.log,train.log,attempt-<k>/}
    │   └── pass-<NNNNN>/{…,done}
    └── runs/<run id>/                   earlier outputs, moved aside whole

<work dir>/                              Work, an emptyDir of the pod
├── data/{train.txt,test.txt,train.list,test.list,tables/<name>}   staged shard
├── program/                             staged program
├── progress.json                        the trainer's progress
└── export.json, export-<do>.log         what launcher.export answered and said
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SHARD_FILES = ("train.txt", "test.txt", "train.list", "test.list")
RESERVED_FOLDERS = frozenset({"output", "runs", "tables", "sources"})
_PASS = re.compile(r"pass-(\d{5,})")


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
    def output(self) -> Path:
        return self.job / "output"

    @property
    def runs(self) -> Path:
        return self.job / "runs"

    def data_tmp(self, digest: str) -> Path:
        """Where the data Job of this digest builds before it renames."""
        return self.job / f".{digest}.tmp"

    def output_tmp(self, run_id: str) -> Path:
        """A new output folder before it gets its name."""
        return self.job / f".output-{run_id}.tmp"

    def shard(self, index: int) -> Path:
        """The folder that holds shard `index` (and test.txt and the lists)."""
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
    def status_json(self) -> Path:
        return self.root / "status.json"

    @property
    def metrics_csv(self) -> Path:
        return self.root / "metrics.csv"

    @property
    def curve_png(self) -> Path:
        return self.root / "curve.png"

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

    def pass_dir(self, number: int) -> Path:
        return self.root / f"pass-{number:05d}"

    def pass_done(self, number: int) -> Path:
        """Exists when the pass is whole; written last."""
        return self.pass_dir(number) / "done"


def pass_number(name: str) -> int | None:
    """The number in a folder name like `pass-00003`, or None for any other name."""
    match = _PASS.fullmatch(name)
    return int(match[1]) if match else None


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
    def program(self) -> Path:
        return self.root / "program"

    @property
    def progress(self) -> Path:
        return self.root / "progress.json"

    @property
    def export_answer(self) -> Path:
        return self.root / "export.json"

    def export_log(self, do: str) -> Path:
        return self.root / f"export-{do}.log"
