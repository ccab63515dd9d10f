"""The settings of a pod: frozen dataclasses that are read once, when a process starts. No other module reads them.

A setting is a value of the chart, and has the path of the value as its key, such as `training.passes`. The chart writes
the values of a Job's pods as one JSON document into an annotation of the pods, and Kubernetes mounts the annotation as
SETTINGS_FILE. So nothing between the user and the program rewrites a value. Only four kinds of settings are
environment variables: the variables of the tutorial of 2017 (`CONF_PADDLE_PORT`), facts that only the pod knows
(`PADDLE_LAUNCHER_POD_IP`), values from a Secret, and the number of trainers of an elastic run, which may change in an
existing Job.

Each field has its key and its type. Only a value that may be null has a default here; the defaults of all other values
are in the chart's values.yaml. All missing settings and wrong types are reported at once, one line each, before
anything is created (exit code 64). The chart checks the limits of values, and whether values fit together
(`values.schema.json`, `templates/_validate.tpl`); only the chart creates pods. A parser here rejects only what the
chart cannot know, such as the address in a Secret and the encodings of this Python, and values that `try` uses without
the chart.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from launcher.errors import SettingsError, setting_message
from launcher.paths import POD_WORK_DIR, JobPaths, WorkPaths
from launcher.schema import from_json
from launcher.settings import parsers as p

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

PREVIOUS = "previous"
"""Value of `training.initModelPath` that means the model of the newest complete run of this job."""
NO_DATA = "none"
"""Data digest of a run for which the launcher has no data (a script, `data.enabled` is false, and no source is set).

The script reads data of its own.
"""
SETTINGS_FILE = "/etc/paddle-training/settings.json"
"""Path at which the chart mounts the document; the variable PADDLE_LAUNCHER_SETTINGS may contain another path."""
REQUIRED = object()
"""Stands for the missing default of a setting that must be set."""

SCRIPT_RUNTIMES = ("collective", "ps")
"""The runtimes that run a script of the user, which may read data of its own."""

_TYPES: dict[Any, str] = {
    str: "a text",
    int: "an integer",
    int | None: "an integer",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: 'an array of texts (a number in quotes: "10")',
    tuple[str | int, ...]: "an array of column names or of indexes from 0",
}
"""Type of a field → description of its values in messages."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where the value of a dataclass field comes from; `setting` and `variable` describe the attributes."""

    parse: p.Parser | None
    default: Any
    key: str = ""
    variable: str = ""
    value: str = ""
    is_secret: bool = False
    type: Any = None
    """The type of the dataclass field."""

    def read(self, document: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Any, str]:
        """Return (value of the field, empty text), or (None, message) for a missing or invalid setting."""
        found = environ.get(self.variable) or self.find(document)
        if found is None and self.default is not REQUIRED:
            return self.default, ""
        value = self.key or self.value
        name = f"{value} ({self.variable})" if value and self.variable else value or self.variable
        if found is None:
            fix = "Use the chart and the image of one version"
            return None, setting_message(name, None, "set", "the chart sets it in every pod", fix)
        try:
            return self.convert(found), ""
        except p.BadValueError as error:
            shown = "(not shown)" if self.is_secret else found
            fix = f"Set {value or self.variable} to such a value"
            return None, setting_message(name, shown, error.limit, error.reason, fix)

    def convert(self, found: Any) -> Any:
        """Return the field's value from a JSON value or the text of a variable. Raises BadValueError."""
        if self.parse is not None:
            return self.parse(found)
        if self.type is Path:
            return Path(found)
        try:
            return from_json(self.type, int(found) if self.type is int and isinstance(found, str) else found)
        except ValueError:
            raise p.BadValueError(_TYPES[self.type], "the value is of another type") from None

    def find(self, document: Mapping[str, Any]) -> Any:
        """Return the value of `key` in the document; None if the document has no such key."""
        found: Any = document
        for name in self.key.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def setting(
    key: str, default: Any = REQUIRED, *, parse: p.Parser | None = None, by_variable: str = ""
) -> Any:
    """Return a dataclass field that is read from the settings document (`read_document`).

    Args:
        key: the path of the chart's value, such as `training.passes`.
        default: the field's value when the value is null or absent.
        parse: converts the value, or raises BadValueError; None: the value must have the field's type.
        by_variable: the environment variable that has the value if the chart takes it from a Secret or a ConfigMap. It
            has precedence over the document.
    """
    return _field(Setting(key=key, parse=parse, default=default, variable=by_variable))


def variable(
    name: str,
    default: Any = REQUIRED,
    *,
    parse: p.Parser | None = None,
    value: str = "",
    is_secret: bool = False,
) -> Any:
    """Return a dataclass field that is read from the environment.

    Args:
        name: the variable.
        default: the field's value when the variable is absent or empty.
        parse: as in `setting`; it gets the variable's text.
        value: the key of the chart's value that sets the variable, for messages.
        is_secret: whether messages hide the value, and child processes do not get the variable.
    """
    return _field(Setting(variable=name, parse=parse, default=default, value=value, is_secret=is_secret))


def _field(one: Setting) -> Any:
    return field(repr=not one.is_secret, metadata={"setting": one})


def settings_of(dataclass_type: type) -> dict[str, Setting]:
    """Return a dict from the name of each field of a dataclass to its `Setting`."""
    fields, types = dataclasses.fields(dataclass_type), get_type_hints(dataclass_type)
    return {
        each.name: dataclasses.replace(each.metadata["setting"], type=types[each.name])
        for each in fields
        if each.metadata
    }


def read_document(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings document and return it; its path is SETTINGS_FILE, or comes from `environ`.

    Raises:
        SettingsError: the file does not exist, or is not a JSON object.
    """
    path = environ.get("PADDLE_LAUNCHER_SETTINGS") or SETTINGS_FILE
    try:
        return dict(json.loads(Path(path).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(
            f"the settings in {path} cannot be read: {error}. The chart writes them into an annotation of each pod. "
            "Fix: use the chart and the image of one version."
        ) from error


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of every pod."""

    job_name: str = variable("JOB_NAME", value="jobName")
    """The job's folder on the shared storage."""
    job_path: Path = variable("JOB_PATH", value="jobPath")
    """Where the shared storage is mounted."""
    namespace: str = variable("JOB_NAMESPACE")
    completion_index: int = variable("JOB_COMPLETION_INDEX")
    """Number of this pod in its Job, from 0: the rank of a training pod."""
    k8s_job: str = variable("PADDLE_LAUNCHER_K8S_JOB")
    """Name of the pod's Kubernetes Job; the run id of a training."""
    k8s_job_uid: str = variable("PADDLE_LAUNCHER_K8S_JOB_UID", "")
    """The Kubernetes Job's uid; empty outside a cluster."""
    pod_name: str = variable("PADDLE_LAUNCHER_POD_NAME", "")
    pod_ip: str = variable("PADDLE_LAUNCHER_POD_IP", "")
    node_name: str = variable("PADDLE_LAUNCHER_NODE_NAME", "")
    termination_log: Path = variable("PADDLE_LAUNCHER_TERMINATION_LOG", Path("/dev/termination-log"))
    """File for the pod's termination message."""
    release: str = setting("release.name")
    data_digest: str = setting("release.dataDigest")
    """Digest of all values that determine the data; the manifest of the data has the same digest.

    With `training.schedule` the digest ends with the name of the Job, because each Job makes its own data."""
    schedule: str = setting("training.schedule")
    chart_run_id: str = setting("runId")
    """The value runId: a new text makes a new Job from the same values."""
    log_format: str = setting("logFormat")
    """Form of the launcher's own lines in the pod's log."""
    trainers: int = setting("trainers", by_variable="PADDLE_LAUNCHER_TRAINERS")
    """Number of training pods. In a pod of the data Job of an elastic run: the largest number of training pods."""
    environ: Mapping[str, str] = field(repr=False)
    """The environment, read-only and without secrets: the base of child processes' environments."""

    @property
    def layout(self) -> JobPaths:
        """Return the paths of the job on the shared storage."""
        return JobPaths(self.job_path, self.job_name)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read all settings. Raises `SettingsError` with one line for each missing or invalid setting."""
        environ = dict(os.environ if environ is None else environ)
        document, settings = read_document(environ), settings_of(cls)
        found = {name: one.read(document, environ) for name, one in settings.items()}
        if faults := [fault for _, fault in found.values() if fault]:
            raise SettingsError("\n".join(faults))
        values = {name: value for name, (value, _) in found.items()}
        if values["schedule"]:
            digests = {name: values[name] for name in ("data_digest", "source_digest") if values.get(name)}
            values |= {name: f"{digest}-{values['k8s_job']}" for name, digest in digests.items()}
        secrets = {one.variable for one in settings.values() if one.is_secret}
        passed = {name: value for name, value in environ.items() if name not in secrets}
        return cls(**cls._derive(values), environ=MappingProxyType(passed))

    @classmethod
    def _derive(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return `values` after replacing the fields that depend on other fields."""
        return values


@dataclass(frozen=True, kw_only=True)
class TrainSettings(PodSettings):
    """Settings of a training pod and of its init container."""

    config_dir: str = variable("TRAIN_CONFIG_DIR", value="training.config")
    """Folder of the training program."""
    config_file: str = setting("training.config", parse=p.program_file)
    """File of the training program in `config_dir`."""
    nic: str = variable("CONF_PADDLE_NIC", value="nic")
    """Network interface that the processes communicate over."""
    port: int = variable("CONF_PADDLE_PORT", value="port")
    """First port of the pod's parameter servers."""
    ports_num: int = variable("CONF_PADDLE_PORTS_NUM", value="portsNum")
    """Dense ports; runtime fleet starts one parameter server on each."""
    ports_num_sparse: int = variable("CONF_PADDLE_PORTS_NUM_SPARSE", value="portsNumSparse")
    gradient_num: int = variable("CONF_PADDLE_GRADIENT_NUM", value="gradientNum")
    """Trainers that a synchronous step waits for; equal to `trainers`, and to `max_trainers` in an elastic run."""
    trainer_count: int = variable("TRAINER_COUNT", value="trainerCount")
    """Worker threads of one trainer."""
    webhook: str = variable(
        "PADDLE_LAUNCHER_WEBHOOK", "", parse=p.web_address, value="notify.webhook", is_secret=True
    )
    """Address that messages about the run are posted to, or empty. Never logged: it may contain a secret."""
    work_dir: Path = variable("PADDLE_LAUNCHER_WORK_DIR", POD_WORK_DIR)
    """Folder on the pod's own disk."""
    work_limit_bytes: int = variable("PADDLE_LAUNCHER_WORK_LIMIT_BYTES", 0, value="workDir.sizeLimit")
    """Kubernetes evicts the pod when its own disk holds more bytes; 0: no limit."""
    source_digest: str = setting("release.sourceDigest")
    """Digest of all values that determine the data, except the number of shards. Empty if the runtime is not one of
    SCRIPT_RUNTIMES."""
    service: str = setting("release.service")
    """The headless Service that gives each rank a DNS name."""
    gpus_per_pod: int = setting("release.gpusPerPod")
    """GPUs of each pod (resources.limits), for runtime collective."""
    start_from_scratch: str = setting("startFromScratch")
    """A text that no earlier run of this job had moves the output to runs/, and starts from scratch."""
    runtime: str = setting("runtime")
    rendezvous: str = setting("rendezvous")
    """`lease` or `api`: how ranks find rank 0."""
    rendezvous_seconds: int = setting("rendezvousSeconds")
    """Seconds in which all ranks usually join."""
    peer_port: int = setting("peerPort")
    """Port of the launchers' own HTTP server."""
    events: bool = setting("notify.events")
    """Whether Kubernetes Events are written on the Job."""
    tensorboard: bool = setting("tracking.tensorboard")
    """Whether event files for TensorBoard are written to output/tensorboard/."""
    mlflow_uri: str = setting("tracking.mlflow.uri")
    """Address of an MLflow server that gets metrics and settings; empty: none."""
    mlflow_experiment: str = setting("tracking.mlflow.experiment")
    """Name of the experiment on the MLflow server; empty: the job's name."""
    data_wait_seconds: int = setting("data.waitSeconds")
    """Seconds that training pods wait for a data Job that shows no progress."""
    data_cache: str = setting("data.cache", parse=p.choice("storage", "pod", "podShare"))
    """With `data.format: files`, where a script reads the files: on the storage, or as copies on the pod's own disk."""
    program_sha256: str = setting("training.programSha256")
    """sha256 that the program must have; empty: any program."""
    keep_files: tuple[str, ...] = setting("training.keepFiles")
    """Patterns of files in a script's working folder that are copied to the storage when the pod exits."""
    checkpoint_dir: str = setting("training.checkpointDir")
    """Folder to which a script writes its checkpoints: relative to its working folder, or below `{output_dir}`. Empty:
    the script takes the folder as an argument, or writes none."""
    packages: str = setting("training.packages")
    """sha256 of the archive with the program's own Python packages (`JobPaths.packages`); empty: there are none."""
    processes_per_pod: int = setting("training.processesPerPod")
    """Trainer processes of each pod; more than 1 with a user's script only (SCRIPT_RUNTIMES)."""
    servers: int = setting("training.servers", 0)
    """Parameter servers of runtime ps, spread over the pods; 0 with other runtimes."""
    min_trainers: int = setting("training.minTrainers", 0)
    """Smallest number of trainers with which an elastic run continues; 0: the run is not elastic."""
    max_trainers: int = setting("training.maxTrainers", 0)
    """Largest number of trainers of an elastic run; 0: `trainers`."""
    rank_wait_seconds: int = setting("training.rankWaitSeconds")
    """Seconds that an elastic run waits for lost ranks before it continues without them."""
    grow_after_minutes: float = setting("training.growAfterMinutes")
    """Minutes after which an elastic run saves a checkpoint to take in pods that have joined. Any other checkpoint also
    takes in the pods."""
    rank_wait_hours: float = setting("training.rankWaitHours", 6.0)
    """Hours to wait after `rendezvous_seconds` for a rank that has not joined."""
    mode: str = setting("training.mode", parse=p.choice("sync", "async"))
    passes: int = setting("training.passes")
    batch_size: int = setting("training.batchSize", parse=p.count)
    """Samples of one batch of one trainer."""
    log_period: int = setting("training.logPeriod")
    """Batches between two lines of the trainer's log."""
    dot_period: int = setting("training.dotPeriod")
    """Batches between two dots of the trainer's log."""
    saving_period: int = setting("training.savingPeriod")
    """Passes between two checkpoints."""
    checkpoint_every_batches: int = setting("training.checkpointEvery.batches", 0)
    """Batches between two checkpoints inside a pass; 0: none."""
    checkpoint_every_minutes: float = setting("training.checkpointEvery.minutes", 0.0)
    """Minutes between two checkpoints inside a pass; 0: no such checkpoints.

    With runtime fleet every rank converts the minutes to the same number of batches. For a script, process 0 measures
    the time. The value is always 0 if `checkpoint_every_batches` is set, and with runtime v1."""
    keep_checkpoints: int = setting("training.keepCheckpoints")
    """How many of the newest checkpoints are kept."""
    keep_best: str = setting("training.keepBest")
    """Test metric whose best checkpoint is kept and exported; empty: the last checkpoint is exported."""
    patience: int = setting("training.patience")
    """Number of passes without a better score after which training stops; 0: never."""
    init_model: str = setting("training.initModelPath", parse=p.folder)
    """Model that a new run starts from: a run's folder on the shared storage, `s3://…`, PREVIOUS, or empty."""
    progress_deadline_seconds: int = setting("training.progressDeadlineSeconds")
    """Seconds without a batch after which a trainer counts as hung."""
    node_check: bool = setting("training.nodeCheck")
    """Whether each pod measures its node before training."""
    args: tuple[str, ...] = setting("training.args")
    """Options for the training program, each `--key=value`."""
    restarts: int = setting("training.restarts")
    """Number of restarts that a run may have without a new checkpoint between them; the next failure ends the run."""
    grace_seconds: int = setting("training.terminationGracePeriodSeconds")
    """Seconds from SIGTERM until Kubernetes kills the pod."""
    export_to: str = setting("training.exportTo", parse=p.folder)
    """Address to which the model is exported: `s3://BUCKET/PREFIX` without a slash at its end; empty: no export."""

    @property
    def program_packages(self) -> Path | None:
        """Return the folder of the program's own packages; None if it has none."""
        return self.work.packages if self.packages else None

    @property
    def run_id(self) -> str:
        """Return the Kubernetes Job's name.

        The name ends with a digest of the Job's spec, which includes runId. With `training.schedule` the name ends with
        the number that the CronJob gives to each Job instead.
        """
        return self.k8s_job

    @property
    def shards(self) -> int:
        """Return the number of shards: the largest number of trainers that the run can have."""
        return self.max_trainers or self.trainers

    @property
    def is_elastic(self) -> bool:
        """Return whether the run can continue with fewer trainers than it has shards."""
        return 0 < self.min_trainers < self.shards

    @property
    def has_data(self) -> bool:
        """Return whether the run trains on data that the launcher prepared; False: its script reads its own data."""
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
    def _derive(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values["checkpoint_every_batches"] or values["runtime"] == "v1":
            values["checkpoint_every_minutes"] = 0.0
        return values


@dataclass(frozen=True, kw_only=True)
class DataSettings(PodSettings):
    """Settings of a pod that prepares the data (the chart's values below `data`)."""

    prepared_by: str = setting("data.preparedBy")
    """`dataJob`, or `trainingPods`: this process is an init container of a training pod."""
    split_count: int = variable("SPLIT_COUNT", value="data.splitCount")
    """Number of shards, one for each trainer."""
    source: str = setting("data.source", by_variable="PADDLE_LAUNCHER_DATA_SOURCE", parse=p.address)
    source_secret: str = setting("data.sourceSecret", parse=p.secret_key)
    """NAME/KEY of the Secret that `source` was read from; empty: no Secret. If `source` is from a Secret, no message or
    file may contain `source`."""
    sha256: str = setting("data.sha256", parse=p.sha256)
    """sha256 that the source must have; empty: any."""
    member: str = setting("data.member")
    """Path of the text inside the source's archive; empty: the source is the text."""
    tables: tuple[str, ...] = setting("data.tables")
    """Further members of the archive, which are copied unchanged."""
    format: str = setting("data.format", parse=p.choice("lines", "csv", "parquet", "files"))
    delimiter: str = setting("data.delimiter", parse=p.delimiter)
    header: bool = setting("data.header")
    columns: tuple[str | int, ...] = setting("data.columns")
    quoting: str = setting("data.quoting", parse=p.choice("minimal", "none"))
    encoding: str = setting("data.encoding", parse=p.encoding)
    seed: int = setting("data.seed")
    test_fraction: float = setting("data.testFraction")
    """Fraction of the lines that is held out as the test set, 0 to 0.5."""
    test_source: str = setting("data.testSource")
    """A test set of your own, instead of held-out lines; empty: none."""
    test_rows: int = setting("data.testRows")
    """Maximum number of rows in the test set."""
    workers: int = setting("data.workers")
    """Number of pods that prepare the data: `data.workers`; if the training pods prepare the data, `trainers`."""
    deadline_seconds: int | None = setting("data.deadlineSeconds", None)
    """Seconds after which the preparation fails; None: derived from the size of the source."""

    @property
    def in_training_pod(self) -> bool:
        """Return whether this process is an init container of a training pod."""
        return self.prepared_by == "trainingPods"

    @classmethod
    def _derive(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values["prepared_by"] == "trainingPods":
            values["workers"] = values["trainers"]
        return values


def settings_document(
    values: Mapping[str, Any], release: str = "loopback", data_digest: str = "loopback"
) -> dict[str, Any]:
    """Return the settings document of a pod outside a cluster.

    In a cluster the chart's template `paddle-training.settings` writes the document. It has the same settings (a test
    compares them), but not the values that only the chart reads.

    Args:
        values: all values of the chart.
        release: the value of `release.name` and `release.service`.
        data_digest: the value of `release.dataDigest`.
    """
    ports = range(values["port"], values["port"] + sum(_numbers_of_ports(values)))
    training = {**values["training"], "processesPerPod": values["training"]["processesPerPod"] or 1}
    if values["runtime"] == "ps":
        training["servers"] = training["servers"] or values["trainers"]
    derived = {
        "name": release,
        "service": release,
        "dataDigest": data_digest,
        "sourceDigest": "",
        "gpusPerPod": 0,
    }
    return {**values, "training": training, "peerPort": values["peerPort"] or ports.stop, "release": derived}


def seed_variables(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of the tutorial of 2017 for a pod; `values` are all values of the chart."""
    dense, sparse = _numbers_of_ports(values)
    variables = {
        "JOB_NAME": values["jobName"],
        "JOB_PATH": values["jobPath"],
        "TRAIN_CONFIG_DIR": values["training"]["config"].partition("/")[0],
        "CONF_PADDLE_NIC": values["nic"],
        "CONF_PADDLE_PORT": values["port"],
        "CONF_PADDLE_PORTS_NUM": dense,
        "CONF_PADDLE_PORTS_NUM_SPARSE": sparse,
        "CONF_PADDLE_GRADIENT_NUM": values["trainers"],
        "TRAINER_COUNT": values["trainerCount"],
        "OUT_DIR": f"{values['jobPath']}/{values['jobName']}",
        "SPLIT_COUNT": values["trainers"],
    }
    return {name: str(value) for name, value in variables.items()}


def _numbers_of_ports(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return (number of dense ports, number of sparse ports) of a pod; `values` are all values of the chart.

    If the program is a script, the dense ports are for the script's processes and parameter servers, and the only
    sparse port is for their master.
    """
    training = values["training"]
    processes = training["processesPerPod"] or 1
    if values["runtime"] == "collective":
        return processes, 1
    if values["runtime"] == "ps":
        return processes + -(-(training["servers"] or values["trainers"]) // values["trainers"]), 1
    return values["portsNum"], values["portsNumSparse"]


def termination_log(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file for the container's termination message, even if other settings are invalid."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("PADDLE_LAUNCHER_TERMINATION_LOG") or "/dev/termination-log")
