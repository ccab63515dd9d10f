"""The settings of a pod: frozen dataclasses that are read once from the environment variables of the pod.

No other module of the launcher reads them from the environment. `variables.py` has the table of variables,
`parsers.py` their parsers, `consistency.py` the checks between settings. All faults are reported at once, one
line each, before anything is made (exit code 64).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from launcher.errors import SettingsError, setting_message
from launcher.paths import JobPaths, WorkPaths
from launcher.settings import consistency
from launcher.settings.variables import DATA, POD, TRAIN, read_variables

__all__ = ["DataSettings", "PodSettings", "TrainSettings", "termination_log"]


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of every pod."""

    job_name: str
    """The value jobName: the job's folder on the shared storage."""
    job_path: Path
    """Where the shared storage is mounted."""
    namespace: str
    release: str
    k8s_job: str
    """Name of the pod's Kubernetes Job; the run id of a training."""
    data_digest: str
    """Digest of all values that determine the data; the manifest has the same one."""
    pod_name: str
    pod_ip: str
    node_name: str
    k8s_job_uid: str
    """The Kubernetes Job's uid; empty outside a cluster."""
    termination_log: Path
    """File for the pod's termination message."""
    chart_run_id: str
    """The value runId: a new text makes a new Job from the same values."""
    log_format: str
    """`text` or `json`: the form of the launcher's own lines in the pod's log."""
    environ: Mapping[str, str] = field(repr=False)
    """The environment, read-only and without secrets: the base of child processes' environments."""

    @property
    def layout(self) -> JobPaths:
        """Return the paths of the job on the shared storage."""
        return JobPaths(self.job_path, self.job_name)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(PodSettings):
    """Settings of a training pod and of its init container. Comments name the chart's values."""

    config_dir: str
    """Folder of the training program (training.config)."""
    config_file: str
    """File of the training program in that folder (training.config)."""
    nic: str
    """Network interface that the processes communicate over."""
    port: int
    """First port of the pod's parameter servers."""
    ports_num: int
    """Dense ports; runtime fleet starts one parameter server on each."""
    ports_num_sparse: int
    gradient_num: int
    """Trainers that a synchronous step waits for; equal to `trainers`."""
    trainer_count: int
    """Worker threads of one trainer."""
    completion_index: int
    """This pod's rank, from 0."""
    trainers: int
    """Training pods."""
    service: str
    """The headless Service that gives each rank a DNS name."""
    start_from_scratch: str
    """A new text discards the output and starts from scratch (startFromScratch)."""
    program_sha256: str
    """sha256 that the program must have; empty: any program."""
    runtime: str
    """`fleet` or `v1`."""
    rendezvous: str
    """`dns` or `api`: how ranks find rank 0."""
    rendezvous_seconds: int
    """Deadline for all ranks to join."""
    peer_port: int
    """Port of the launchers' own HTTP server."""
    mode: str
    """`sync`, `async` or `geo` (training.mode)."""
    passes: int
    batch_size: int
    """Samples of one batch of one trainer."""
    log_period: int
    """Batches between two lines of the trainer's log."""
    dot_period: int
    """Batches between two dots of the trainer's log."""
    saving_period: int
    """Passes between two checkpoints."""
    checkpoint_every_batches: int
    """Batches between two checkpoints inside a pass; 0: none."""
    checkpoint_every_minutes: float
    """Minutes between two checkpoints inside a pass, converted to the same number of batches on every rank;
    0: none."""
    keep_checkpoints: int
    """Newest checkpoints that are kept."""
    incremental_checkpoints: int
    """Most incremental checkpoints after a full one; 0: all are full."""
    keep_best: str
    """Test metric whose best checkpoint is kept and exported; empty: the last checkpoint is exported."""
    patience: int
    """Training stops after so many passes without a better score; 0: never."""
    init_model: str
    """Model that a new run starts from: a run's folder on the shared storage, `s3://…`, or empty
    (training.initModelPath)."""
    progress_deadline_seconds: int
    """Seconds without a batch after which a trainer counts as hung."""
    extra_args: tuple[str, ...]
    """Options for the training program, each `--key=value`."""
    restarts: int
    """Restarts without a new checkpoint between them before the run fails."""
    export_to: str
    """`s3://BUCKET/PREFIX` without a slash at its end, or empty."""
    data_wait_seconds: int
    """Seconds that training pods wait for a data Job that shows no progress."""
    webhook: str = field(repr=False)
    """Address that messages about the run are posted to, or empty. Never logged: it may contain a secret."""
    events: bool
    """Whether Kubernetes Events are written on the Job."""
    work_dir: Path
    """Folder on the pod's own disk."""

    @property
    def run_id(self) -> str:
        """Return the Kubernetes Job's name, which has a digest of everything immutable and of runId."""
        return self.k8s_job

    @property
    def work(self) -> WorkPaths:
        """Return the paths on the pod's own disk."""
        return WorkPaths(self.work_dir)

    @property
    def pserver_ports(self) -> range:
        """Return the dense ports, starting with `port`."""
        return range(self.port, self.port + self.ports_num)

    @property
    def sparse_ports(self) -> range:
        """Return the sparse ports, which follow the dense ones."""
        return range(self.port + self.ports_num, self.port + self.ports_num + self.ports_num_sparse)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> TrainSettings:
        """Read and check all settings. Raises `SettingsError` with one line for each fault."""
        environ = dict(os.environ if environ is None else environ)
        values, faults = read_variables((*POD, *TRAIN), environ)
        if not faults:
            if values["gradient_num"] is None:
                values["gradient_num"] = values["trainers"]
            if values["peer_port"] is None:
                values["peer_port"] = values["port"] + values["ports_num"] + values["ports_num_sparse"]
            faults = [setting_message(*fault) for fault in consistency.training_faults(values)]
        if faults:
            raise SettingsError("\n".join(faults))
        secrets = {variable.name for variable in TRAIN if variable.secret}
        passed = {name: value for name, value in environ.items() if name not in secrets}
        return cls(**values, environ=MappingProxyType(passed))


@dataclass(frozen=True, kw_only=True)
class DataSettings(PodSettings):
    """Settings of a pod of the data Job (the chart's values below `data`)."""

    out_dir: Path
    """The job's folder; always JOB_PATH/JOB_NAME."""
    split_count: int
    """Shards."""
    source: str
    sha256: str
    """sha256 that the source must have; empty: any."""
    member: str
    """Path of the text inside the source's archive; empty: the source is the text."""
    tables: tuple[str, ...]
    """Further members of the archive, which are copied unchanged."""
    format: str
    """`lines` or `csv`."""
    delimiter: str
    header: bool
    columns: tuple[str | int, ...]
    encoding: str
    seed: int
    test_fraction: float
    """Fraction of the lines that is held out as the test set, 0 to 0.5."""
    test_source: str
    """A test set of your own, instead of held-out lines; empty: none."""
    test_rows: int
    """Most rows of the test set."""
    workers: int
    """Pods of the data Job."""
    deadline_seconds: int | None
    """Deadline of the data Job; None: derived from the size of the source."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> DataSettings:
        """Read and check all settings. Raises `SettingsError` with one line for each fault."""
        environ = dict(os.environ if environ is None else environ)
        values, faults = read_variables((*POD, *DATA), environ)
        if not faults:
            faults = [setting_message(*fault) for fault in consistency.data_faults(values)]
            values["out_dir"] = values["job_path"] / values["job_name"]
        if faults:
            raise SettingsError("\n".join(faults))
        return cls(**values, environ=MappingProxyType(environ))


def termination_log(environ: Mapping[str, str] | None = None) -> Path:
    """Return the file for the termination message, even when other settings are wrong."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("PADDLE_LAUNCHER_TERMINATION_LOG") or "/dev/termination-log")
