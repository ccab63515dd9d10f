"""The settings of a pod: frozen dataclasses that are read once from the environment variables of the pod.

No other module of the launcher reads them from the environment. Each field has its parser, default and chart value.
The variable of a field without a `name` is PADDLE_LAUNCHER_ (in `DataSettings`: PADDLE_LAUNCHER_DATA_) and the field's
name in upper case. All faults are reported at once, one line each, before anything is created (exit code 64). Whether
values fit together is checked by the chart (`templates/_validate.tpl`), which alone creates pods.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from launcher.metrics import DEFAULT_PASSES
from launcher.paths import JobPaths, WorkPaths
from launcher.settings import parsers as p
from launcher.settings.variables import read_variables, secret_names, variable

__all__ = ["NO_DATA", "PREVIOUS", "DataSettings", "PodSettings", "TrainSettings", "termination_log"]

PREVIOUS = "previous"
"""Value of `training.initModelPath` that means the model of the newest complete run of this job."""
NO_DATA = "none"
"""Data digest of a run without data of the launcher: its script reads its own (data.enabled false)."""


_MINUTES = p.number(
    0, 10_080, "it counts minutes, and a week without a checkpoint could lose a week of training"
)
_NO_CHECKPOINT = "without a checkpoint every failure starts the training from scratch"
_LONG_CHAIN = "a restore loads all of them, one after the other"
_RANK_WAIT = p.number(0, 168, "it counts hours, and the pods that wait hold their machines for so long")
_NO_DEADLINE = (
    "a slow batch is not a hang, and the detection of hangs cannot be turned off: a hung run would hold its "
    "machines until the Job's deadline"
)
_HELD_OUT = p.number(0, 0.5, "it is the fraction of the lines that is held out for the test")
_PORT = p.integer(1, p.PORT_MAX, "it is a TCP port")
_data_variable = functools.partial(variable, prefix="PADDLE_LAUNCHER_DATA_")


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of every pod."""

    job_name: str = variable(p.job_name, name="JOB_NAME", value="jobName")
    """The value jobName: the job's folder on the shared storage."""
    job_path: Path = variable(p.absolute, Path("/home/jobpath"), name="JOB_PATH")
    """Where the shared storage is mounted."""
    namespace: str = variable(p.dns_label, name="JOB_NAMESPACE", value="the release's namespace")
    release: str = variable(p.filled, value="the release's name")
    k8s_job: str = variable(p.dns_label, value="jobName")
    """Name of the pod's Kubernetes Job; the run id of a training."""
    data_digest: str = variable(p.filled, value="data")
    """Digest of all values that determine the data; the manifest has the same one."""
    source_digest: str = variable(p.text, "", "data")
    """The same without the number of shards; set for runtime collective only."""
    pod_name: str = variable(p.text, "")
    pod_ip: str = variable(p.text, "")
    node_name: str = variable(p.text, "")
    k8s_job_uid: str = variable(p.text, "")
    """The Kubernetes Job's uid; empty outside a cluster."""
    termination_log: Path = variable(p.absolute, Path("/dev/termination-log"))
    """File for the pod's termination message."""
    chart_run_id: str = variable(p.text, "", "runId", name="PADDLE_LAUNCHER_RUN_ID")
    """The value runId: a new text makes a new Job from the same values."""
    log_format: str = variable(p.choice("text", "json"), "text", "logFormat")
    """Form of the launcher's own lines in the pod's log."""
    environ: Mapping[str, str] = field(repr=False)
    """The environment, read-only and without secrets: the base of child processes' environments."""

    @property
    def layout(self) -> JobPaths:
        """Return the paths of the job on the shared storage."""
        return JobPaths(self.job_path, self.job_name)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(PodSettings):
    """Settings of a training pod and of its init container. Comments name the chart's values."""

    config_dir: str = variable(p.folder_name, name="TRAIN_CONFIG_DIR", value="training.config")
    """Folder of the training program (training.config)."""
    config_file: str = variable(p.folder_name, "trainer_config.py", "training.config")
    """File of the training program in that folder (training.config)."""
    nic: str = variable(p.filled, "eth0", "nic", name="CONF_PADDLE_NIC")
    """Network interface that the processes communicate over."""
    port: int = variable(_PORT, 7164, "port", name="CONF_PADDLE_PORT")
    """First port of the pod's parameter servers."""
    ports_num: int = variable(
        p.integer(1, 100, "each one starts a parameter server"), 2, "portsNum", name="CONF_PADDLE_PORTS_NUM"
    )
    """Dense ports; runtime fleet starts one parameter server on each."""
    ports_num_sparse: int = variable(
        p.integer(0, 100), 2, "portsNumSparse", name="CONF_PADDLE_PORTS_NUM_SPARSE"
    )
    gradient_num: int = variable(p.integer(1), None, "gradientNum", name="CONF_PADDLE_GRADIENT_NUM")
    """Trainers that a synchronous step waits for; equal to `trainers`."""
    trainer_count: int = variable(
        p.integer(1, 1024, "it is a number of threads"), 1, "trainerCount", name="TRAINER_COUNT"
    )
    """Worker threads of one trainer."""
    completion_index: int = variable(p.integer(0), name="JOB_COMPLETION_INDEX", value="the Indexed Job")
    """This pod's rank, from 0."""
    trainers: int = variable(p.integer(1, 1000, "it is a number of pods"), value="trainers")
    """Number of training pods."""
    service: str = variable(p.dns_label, value="the headless Service")
    """The headless Service that gives each rank a DNS name."""
    start_from_scratch: str = variable(p.text, "", "startFromScratch")
    """A new text discards the output and starts from scratch (startFromScratch)."""
    program_sha256: str = variable(p.sha256, "", "training.programSha256")
    """sha256 that the program must have; empty: any program."""
    runtime: str = variable(p.choice("fleet", "v1", "collective"), "fleet", "runtime")
    processes_per_pod: int = variable(
        p.integer(1, 64, "each one is a trainer process of a pod"), 1, "training.processesPerPod"
    )
    """Trainer processes of each pod; more than 1 with runtime collective only."""
    gpus_per_pod: int = variable(p.integer(0, 64), 0, "resources.limits (GPUs)")
    """GPUs of each pod, for runtime collective."""
    rendezvous: str = variable(p.choice("lease", "api"), "lease", "rendezvous")
    """`dns` or `api`: how ranks find rank 0."""
    rendezvous_seconds: int = variable(p.integer(1), 900, "rendezvousSeconds")
    """Seconds in which all ranks usually join."""
    rank_wait_hours: float = variable(_RANK_WAIT, 6.0, "training.rankWaitHours")
    """Hours to wait after `rendezvous_seconds` for a rank that has not joined."""
    peer_port: int = variable(_PORT, None, "peerPort")
    """Port of the launchers' own HTTP server."""
    mode: str = variable(p.choice("sync", "async"), "async", "training.mode")
    passes: int = variable(p.integer(1, 100_000), DEFAULT_PASSES, "training.passes")
    batch_size: int = variable(p.integer(1), 256, "training.batchSize")
    """Samples of one batch of one trainer."""
    log_period: int = variable(p.integer(1), 50, "training.logPeriod")
    """Batches between two lines of the trainer's log."""
    dot_period: int = variable(p.integer(1), 10, "training.dotPeriod")
    """Batches between two dots of the trainer's log."""
    saving_period: int = variable(p.integer(1), 1, "training.savingPeriod")
    """Passes between two checkpoints."""
    checkpoint_every_batches: int = variable(p.integer(0), 0, "training.checkpointEvery.batches")
    """Batches between two checkpoints inside a pass; 0: none."""
    checkpoint_every_minutes: float = variable(_MINUTES, None, "training.checkpointEvery.minutes")
    """Minutes between two checkpoints inside a pass, converted to the same number of batches on every rank;
    0: none. Default: 10, and 0 with `checkpoint_every_batches` or runtime v1."""
    keep_checkpoints: int = variable(p.integer(1, why=_NO_CHECKPOINT), 3, "training.keepCheckpoints")
    """How many of the newest checkpoints are kept."""
    incremental_checkpoints: int = variable(
        p.integer(0, 100, _LONG_CHAIN), 0, "training.incrementalCheckpoints"
    )
    """Maximum number of incremental checkpoints after each full one; 0: every checkpoint is full."""
    keep_best: str = variable(p.text, "", "training.keepBest")
    """Test metric whose best checkpoint is kept and exported; empty: the last checkpoint is exported."""
    patience: int = variable(p.integer(0, 100_000), 0, "training.patience")
    """Training stops after so many passes without a better score; 0: never."""
    init_model: str = variable(
        p.init_model, "", "training.initModelPath", name="PADDLE_LAUNCHER_INIT_MODEL_PATH"
    )
    """Model that a new run starts from: a run's folder on the shared storage, `s3://…`, PREVIOUS, or empty
    (training.initModelPath)."""
    progress_deadline_seconds: int = variable(
        p.integer(10, why=_NO_DEADLINE), 600, "training.progressDeadlineSeconds"
    )
    """Seconds without a batch after which a trainer counts as hung."""
    extra_args: tuple[str, ...] = variable(p.arguments, (), "training.extraArgs")
    """Options for the training program, each `--key=value`."""
    restarts: int = variable(p.integer(0), 3, "training.restarts")
    """Restarts without a new checkpoint between them before the run fails."""
    grace_seconds: int = variable(p.integer(0), 110, "training.terminationGracePeriodSeconds")
    """Seconds from SIGTERM until Kubernetes kills the pod."""
    export_to: str = variable(p.export_to, "", "training.exportTo")
    """`s3://BUCKET/PREFIX` without a slash at its end, or empty."""
    data_wait_seconds: int = variable(p.integer(1), 3600, "data.waitSeconds")
    """Seconds that training pods wait for a data Job that shows no progress."""
    webhook: str = variable(p.web_address, "", "notify.webhook", secret=True)
    """Address that messages about the run are posted to, or empty. Never logged: it may contain a secret."""
    events: bool = variable(p.flag, False, "notify.events")
    """Whether Kubernetes Events are written on the Job."""
    work_dir: Path = variable(p.absolute, Path("/work"))
    """Folder on the pod's own disk."""
    work_limit_bytes: int = variable(p.integer(0), 0, "workDir.sizeLimit")
    """Kubernetes evicts the pod when its own disk holds more bytes; 0: no limit."""

    @property
    def run_id(self) -> str:
        """Return the Kubernetes Job's name; it ends with a digest of the Job's spec, which includes runId."""
        return self.k8s_job

    @property
    def has_data(self) -> bool:
        """Return whether the run trains on shards of the data Job; False: its script reads its own data."""
        return self.data_digest != NO_DATA

    @property
    def join_seconds(self) -> float:
        """Return how many seconds a run waits for a missing rank before the run fails."""
        return self.rendezvous_seconds + self.rank_wait_hours * 3600

    @property
    def work(self) -> WorkPaths:
        """Return the paths on the pod's own disk."""
        return WorkPaths(self.work_dir)

    @property
    def pserver_ports(self) -> range:
        """Return the ports of the parameter servers for dense parameters, starting with `port`."""
        return range(self.port, self.port + self.ports_num)

    @property
    def sparse_ports(self) -> range:
        """Return the ports for sparse parameters (runtime v1), which follow `pserver_ports`."""
        return range(self.port + self.ports_num, self.port + self.ports_num + self.ports_num_sparse)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> TrainSettings:
        """Read all settings. Raises `SettingsError` with one line for each invalid variable."""
        environ = dict(os.environ if environ is None else environ)
        values = read_variables(cls, environ)
        if values["gradient_num"] is None:
            values["gradient_num"] = values["trainers"]
        if values["peer_port"] is None:
            values["peer_port"] = values["port"] + values["ports_num"] + values["ports_num_sparse"]
        if values["checkpoint_every_minutes"] is None:
            has_other = values["checkpoint_every_batches"] or values["runtime"] == "v1"
            values["checkpoint_every_minutes"] = 0.0 if has_other else 10.0
        passed = {name: value for name, value in environ.items() if name not in secret_names(cls)}
        return cls(**values, environ=MappingProxyType(passed))


@dataclass(frozen=True, kw_only=True)
class DataSettings(PodSettings):
    """Settings of a pod that prepares the data (the chart's values below `data`)."""

    prepared_by: str = _data_variable(p.choice("dataJob", "trainingPods"), "dataJob", "data.preparedBy")
    """`dataJob`, or `trainingPods`: this process is an init container of a training pod."""
    completion_index: int = variable(p.integer(0), 0, "the Indexed Job", name="JOB_COMPLETION_INDEX")
    """Number of this pod in its Job, from 0."""
    split_count: int = variable(
        p.integer(1, 1000, "each trainer needs a shard"), 3, "data.splitCount", name="SPLIT_COUNT"
    )
    """Number of shards, one for each trainer."""
    source: str = _data_variable(p.address, value="data.source")
    source_secret: str = _data_variable(p.text, "", "data.sourceSecret")
    """NAME/KEY of the Secret that `source` was read from; then no message or file may contain `source`."""
    sha256: str = _data_variable(p.sha256, "", "data.sha256")
    """sha256 that the source must have; empty: any."""
    member: str = _data_variable(p.text, "", "data.member")
    """Path of the text inside the source's archive; empty: the source is the text."""
    tables: tuple[str, ...] = _data_variable(p.texts, (), "data.tables")
    """Further members of the archive, which are copied unchanged."""
    format: str = _data_variable(p.choice("lines", "csv"), "lines", "data.format")
    delimiter: str = _data_variable(p.delimiter, ",", "data.delimiter")
    header: bool = _data_variable(p.flag, True, "data.header")
    columns: tuple[str | int, ...] = _data_variable(p.columns, (), "data.columns")
    quoting: str = _data_variable(p.quoting, "minimal", "data.quoting")
    encoding: str = _data_variable(p.encoding, "utf-8", "data.encoding")
    seed: int = _data_variable(p.integer(0, 2**63 - 1), 0, "data.seed")
    test_fraction: float = _data_variable(_HELD_OUT, 0.1, "data.testFraction")
    """Fraction of the lines that is held out as the test set, 0 to 0.5."""
    test_source: str = _data_variable(p.text, "", "data.testSource")
    """A test set of your own, instead of held-out lines; empty: none."""
    test_rows: int = _data_variable(p.integer(1), 200_000, "data.testRows")
    """Maximum number of rows in the test set."""
    workers: int = _data_variable(p.integer(1, 1000, "it is a number of pods"), 1, "data.workers")
    """Pods that prepare the data: data.workers, or trainers."""
    deadline_seconds: int | None = _data_variable(p.integer(1), None, "data.deadlineSeconds")
    """Deadline of the preparation; None: derived from the size of the source."""

    @property
    def in_training_pod(self) -> bool:
        """Return whether this process is an init container of a training pod."""
        return self.prepared_by == "trainingPods"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> DataSettings:
        """Read all settings. Raises `SettingsError` with one line for each invalid variable."""
        environ = dict(os.environ if environ is None else environ)
        return cls(**read_variables(cls, environ), environ=MappingProxyType(environ))


def termination_log(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the container's termination message. Works even if other variables are invalid."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("PADDLE_LAUNCHER_TERMINATION_LOG") or "/dev/termination-log")
