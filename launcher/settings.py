"""The settings of a pod, read once from its environment. No other module of the launcher reads it.

One table a kind of pod: name of the variable → field, parser, default, and the chart's value, which a person
mends. All that is wrong is reported at once, one line each, before anything is made (exit code 64).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher import parsers as p
from launcher.errors import SettingsError, setting
from launcher.layout import RESERVED_FOLDERS, Layout, Work

PORT_MAX = 65535


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What every pod is told."""

    job_name: str
    job_path: Path
    namespace: str
    release: str
    k8s_job: str
    """Name of the pod's Job; the run id of a training."""
    data_digest: str
    """Digest of all that decides the data; the manifest carries it."""
    pod_name: str
    pod_ip: str
    node_name: str
    k8s_job_uid: str
    """The Job's uid; empty outside a cluster."""
    termination_log: Path
    chart_run_id: str
    """The chart's runId: another text makes another Job of the same values."""
    log_format: str
    """`text` or `json`: the form of the launcher's own lines in the pod's log."""
    environ: Mapping[str, str] = field(repr=False)
    """The environment, read-only and without `webhook`: what children's environments start from."""

    @property
    def layout(self) -> Layout:
        return Layout(self.job_path, self.job_name)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(PodSettings):
    """What a training pod (and its init container) is told."""

    config_dir: str
    config_file: str
    nic: str
    port: int
    ports_num: int
    ports_num_sparse: int
    gradient_num: int
    trainer_count: int
    """Worker threads of one trainer."""
    completion_index: int
    trainers: int
    service: str
    fresh: str
    """Another text begins the training anew."""
    program_sha256: str
    """What the program on the storage must be; empty: whatever is there."""
    runtime: str
    rendezvous: str
    rendezvous_seconds: int
    peer_port: int
    mode: str
    passes: int
    batch_size: int
    log_period: int
    dot_period: int
    saving_period: int
    save_every_batches: int
    """Batches between two saves inside a pass; 0: none."""
    save_every_minutes: float
    """Minutes between two saves inside a pass, made a common number of batches; 0: none."""
    keep_saves: int
    """The newest so many saves stay."""
    delta_saves: int
    """At most so many saves inside a pass hold only what changed since the one before; 0: none."""
    keep_best: str
    """The test metric whose best checkpoint is kept and becomes the model; empty: the last one does."""
    patience: int
    """Training stops after so many passes without a better score; 0: never."""
    init_from: str
    """Where a new run takes its first parameters from: a run's folder on the storage, `s3://…`, or empty."""
    stall_seconds: int
    """Without a batch for so long a trainer hangs."""
    extra_args: tuple[str, ...]
    restarts: int
    """Restarts of the gang without a new save in between."""
    export_to: str
    """`s3://BUCKET/PREFIX` without a slash at its end, or empty."""
    data_wait_seconds: int
    webhook: str = field(repr=False)
    """Where messages about the run are posted to, or empty; it may hold a secret, so it is never shown."""
    events: bool
    """Write Kubernetes Events on the Job."""
    work_dir: Path

    @property
    def run_id(self) -> str:
        """The Job's name: it carries a digest of all that is immutable, and the chart's runId."""
        return self.k8s_job

    @property
    def work(self) -> Work:
        return Work(self.work_dir)

    @property
    def pserver_ports(self) -> range:
        """Dense ports, from `port` on."""
        return range(self.port, self.port + self.ports_num)

    @property
    def sparse_ports(self) -> range:
        """The ports behind the dense ones."""
        return range(self.port + self.ports_num, self.port + self.ports_num + self.ports_num_sparse)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> TrainSettings:
        """Reads and checks everything. Raises `SettingsError` with one line for each fault."""
        environ = dict(os.environ if environ is None else environ)
        values, faults = _read((*POD, *TRAIN), environ)
        if not faults:
            if values["gradient_num"] is None:
                values["gradient_num"] = values["trainers"]
            if values["peer_port"] is None:
                values["peer_port"] = values["port"] + values["ports_num"] + values["ports_num_sparse"]
            faults = [setting(*fault) for fault in _train_faults(values)]
        if faults:
            raise SettingsError("\n".join(faults))
        secrets = {row.name for row in TRAIN if row.secret}
        passed = {name: value for name, value in environ.items() if name not in secrets}
        return cls(**values, environ=MappingProxyType(passed))


@dataclass(frozen=True, kw_only=True)
class DataSettings(PodSettings):
    """What a data pod is told."""

    out_dir: Path
    split_count: int
    source: str
    sha256: str
    member: str
    """Path inside the archive; empty: the whole file."""
    tables: tuple[str, ...]
    """Further members, copied as they are."""
    format: str
    delimiter: str
    header: bool
    columns: tuple[str | int, ...]
    encoding: str
    seed: int
    test_fraction: float
    test_source: str
    """A test set of a person's own, instead of a part that is held out; empty: there is none."""
    test_rows: int
    """The test set has at most so many rows."""
    workers: int
    """Pods of the data Job."""
    deadline_seconds: int | None
    """None: what suits the size of the source."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> DataSettings:
        """Reads and checks everything. Raises `SettingsError` with one line for each fault."""
        environ = dict(os.environ if environ is None else environ)
        values, faults = _read((*POD, *DATA), environ)
        if not faults:
            expected = values["job_path"] / values["job_name"]
            if values["out_dir"] is None:
                values["out_dir"] = expected
            elif values["out_dir"] != expected:
                faults.append(
                    setting(
                        "OUT_DIR",
                        str(values["out_dir"]),
                        str(expected),
                        "the training pods look below JOB_PATH/JOB_NAME",
                        "Leave OUT_DIR out, or set JOB_PATH and JOB_NAME to match it",
                    )
                )
        if faults:
            raise SettingsError("\n".join(faults))
        return cls(**values, environ=MappingProxyType(environ))


REQUIRED = object()


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    name: str
    field: str
    parse: p.Parser
    default: Any = REQUIRED
    """Taken as it is when the variable is absent (or empty, unless an empty text can be parsed)."""
    value: str = ""
    """The chart's value behind it."""
    secret: bool = False
    """Never shown, and not passed on to children."""


_L = "PADDLE_LAUNCHER_"
_D = "PADDLE_LAUNCHER_DATA_"

POD = (
    Row("JOB_NAME", "job_name", p.job_name, value="jobName"),
    Row("JOB_PATH", "job_path", p.absolute, Path("/home/jobpath")),
    Row("JOB_NAMESPACE", "namespace", p.dns_label, value="the release's namespace"),
    Row(_L + "RELEASE", "release", p.filled, value="the release's name"),
    Row(_L + "K8S_JOB", "k8s_job", p.dns_label, value="jobName"),
    Row(_L + "DATA_DIGEST", "data_digest", p.filled, value="data"),
    Row(_L + "RUN_ID", "chart_run_id", p.text, "", "runId"),
    Row(_L + "POD_NAME", "pod_name", p.text, ""),
    Row(_L + "POD_IP", "pod_ip", p.text, ""),
    Row(_L + "NODE_NAME", "node_name", p.text, ""),
    Row(_L + "K8S_JOB_UID", "k8s_job_uid", p.text, ""),
    Row(_L + "TERMINATION_LOG", "termination_log", p.absolute, Path("/dev/termination-log")),
    Row(_L + "LOG_FORMAT", "log_format", p.choice("text", "json"), "text", "logFormat"),
)

_MINUTES = p.number(0, 10_080, "it counts minutes, and a week without a save is a run without one")
_NO_SAVE = "without a save every failure begins the run anew"
_LONG = "a resume loads all of them, one after the other"
_NO_STALL = (
    "a slow batch is no hang, and the look for hangs cannot be turned off: a run that never advances "
    "would hold its machines until its deadline"
)
_HELD_OUT = p.number(0, 0.5, "a part of the lines is held out for the test")
_PORT = p.whole(1, PORT_MAX, "TCP ports end there")
TRAIN = (
    Row("TRAIN_CONFIG_DIR", "config_dir", p.folder_name, value="training.config"),
    Row(_L + "CONFIG_FILE", "config_file", p.folder_name, "trainer_config.py", "training.config"),
    Row("CONF_PADDLE_NIC", "nic", p.filled, "eth0", "nic"),
    Row("CONF_PADDLE_PORT", "port", _PORT, 7164, "port"),
    Row("CONF_PADDLE_PORTS_NUM", "ports_num", p.whole(1, 100, "each is a pserver"), 2, "portsNum"),
    Row("CONF_PADDLE_PORTS_NUM_SPARSE", "ports_num_sparse", p.whole(0, 100), 2, "portsNumSparse"),
    Row("CONF_PADDLE_GRADIENT_NUM", "gradient_num", p.whole(1), None, "gradientNum"),
    Row("TRAINER_COUNT", "trainer_count", p.whole(1, 1024, "it counts threads"), 1, "trainerCount"),
    Row("JOB_COMPLETION_INDEX", "completion_index", p.whole(0), value="the Indexed Job"),
    Row(_L + "TRAINERS", "trainers", p.whole(1, 1000, "a training needs at least one pod"), value="trainers"),
    Row(_L + "SERVICE", "service", p.dns_label, value="the headless Service"),
    Row(_L + "FRESH", "fresh", p.text, "", "fresh"),
    Row(_L + "PROGRAM_SHA256", "program_sha256", p.sha256, "", "training.programSha256"),
    Row(_L + "RUNTIME", "runtime", p.choice("fleet", "v1"), "fleet", "runtime"),
    Row(_L + "RENDEZVOUS", "rendezvous", p.choice("dns", "api"), "dns", "rendezvous"),
    Row(_L + "RENDEZVOUS_SECONDS", "rendezvous_seconds", p.whole(1), 900, "rendezvousSeconds"),
    Row(_L + "PEER_PORT", "peer_port", _PORT, None, "peerPort"),
    Row(_L + "MODE", "mode", p.choice("sync", "async", "geo"), "async", "training.mode"),
    Row(_L + "PASSES", "passes", p.whole(1, 100_000), 10, "training.passes"),
    Row(_L + "BATCH_SIZE", "batch_size", p.whole(1), 256, "training.batchSize"),
    Row(_L + "LOG_PERIOD", "log_period", p.whole(1), 50, "training.logPeriod"),
    Row(_L + "DOT_PERIOD", "dot_period", p.whole(1), 10, "training.dotPeriod"),
    Row(_L + "SAVING_PERIOD", "saving_period", p.whole(1), 1, "training.savingPeriod"),
    Row(_L + "SAVE_EVERY_BATCHES", "save_every_batches", p.whole(0), 0, "training.saveEvery.batches"),
    Row(_L + "SAVE_EVERY_MINUTES", "save_every_minutes", _MINUTES, 0.0, "training.saveEvery.minutes"),
    Row(_L + "KEEP_SAVES", "keep_saves", p.whole(1, why=_NO_SAVE), 3, "training.keepSaves"),
    Row(_L + "DELTA_SAVES", "delta_saves", p.whole(0, 100, _LONG), 0, "training.deltaSaves"),
    Row(_L + "KEEP_BEST", "keep_best", p.text, "", "training.keepBest"),
    Row(_L + "PATIENCE", "patience", p.whole(0, 100_000), 0, "training.patience"),
    Row(_L + "INIT_FROM", "init_from", p.init_from, "", "training.initFrom"),
    Row(_L + "STALL_SECONDS", "stall_seconds", p.whole(10, why=_NO_STALL), 600, "training.stallSeconds"),
    Row(_L + "EXTRA_ARGS", "extra_args", p.arguments, (), "training.extraArgs"),
    Row(_L + "RESTARTS", "restarts", p.whole(0), 3, "training.restarts"),
    Row(_L + "EXPORT_TO", "export_to", p.export_to, "", "training.exportTo"),
    Row(_L + "DATA_WAIT_SECONDS", "data_wait_seconds", p.whole(1), 3600, "data.waitSeconds"),
    Row(_L + "WEBHOOK", "webhook", p.web_address, "", "notify.webhook", secret=True),
    Row(_L + "EVENTS", "events", p.flag, False, "notify.events"),
    Row(_L + "WORK_DIR", "work_dir", p.absolute, Path("/work")),
)

DATA = (
    Row("OUT_DIR", "out_dir", p.absolute, None),
    Row("SPLIT_COUNT", "split_count", p.whole(1, 1000, "each trainer needs a shard"), 3, "data.splitCount"),
    Row(_D + "SOURCE", "source", p.filled, value="data.source"),
    Row(_D + "SHA256", "sha256", p.sha256, "", "data.sha256"),
    Row(_D + "MEMBER", "member", p.text, "", "data.member"),
    Row(_D + "TABLES", "tables", p.texts, (), "data.tables"),
    Row(_D + "FORMAT", "format", p.choice("lines", "csv"), "lines", "data.format"),
    Row(_D + "DELIMITER", "delimiter", p.delimiter, ",", "data.delimiter"),
    Row(_D + "HEADER", "header", p.flag, True, "data.header"),
    Row(_D + "COLUMNS", "columns", p.columns, (), "data.columns"),
    Row(_D + "ENCODING", "encoding", p.encoding, "utf-8", "data.encoding"),
    Row(_D + "SEED", "seed", p.whole(0, 2**63 - 1), 0, "data.seed"),
    Row(_D + "TEST_FRACTION", "test_fraction", _HELD_OUT, 0.1, "data.testFraction"),
    Row(_D + "TEST_SOURCE", "test_source", p.text, "", "data.testSource"),
    Row(_D + "TEST_ROWS", "test_rows", p.whole(1), 200_000, "data.testRows"),
    Row(_D + "WORKERS", "workers", p.whole(1, 1000, "it counts pods"), 1, "data.workers"),
    Row(_D + "DEADLINE_SECONDS", "deadline_seconds", p.whole(1), None, "data.deadlineSeconds"),
)


def termination_log(environ: Mapping[str, str] | None = None) -> Path:
    """Where the cause of an end goes, also when the settings themselves are wrong."""
    environ = os.environ if environ is None else environ
    return Path(environ.get(_L + "TERMINATION_LOG") or "/dev/termination-log")


def _key(row: Row) -> str:
    return f"{row.value} ({row.name})" if row.value else row.name


def _read(rows: tuple[Row, ...], environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    faults: list[str] = []
    for row in rows:
        raw = environ.get(row.name, "")
        mend = f"Set {row.value or row.name} to such a value"
        if not raw:
            if row.default is REQUIRED:
                limit = "given"
                faults.append(setting(_key(row), raw, limit, "there is no default for it", mend))
            else:
                values[row.field] = row.default
            continue
        try:
            values[row.field] = row.parse(raw)
        except p.BadValueError as bad:
            shown = "(not shown)" if row.secret else raw
            faults.append(setting(_key(row), shown, bad.limit, bad.reason, bad.mend or mend))
    return values, faults


def _train_faults(v: Mapping[str, Any]) -> Iterator[tuple[str, object, str, str, str]]:
    """What is wrong between the settings of a training pod: the arguments of `setting`."""
    first, last = v["port"], v["port"] + v["ports_num"] + v["ports_num_sparse"] - 1
    peer, own = v["peer_port"], f"{v['job_name']}/output"
    if v["gradient_num"] != v["trainers"]:
        yield (
            *("gradientNum (CONF_PADDLE_GRADIENT_NUM)", v["gradient_num"]),
            f"the number of trainers, {v['trainers']}",
            "each trainer is one gradient server, and a pserver waits for exactly so many for ever",
            "Leave gradientNum out, or set it to trainers",
        )
    if v["completion_index"] >= v["trainers"]:
        yield (
            *("JOB_COMPLETION_INDEX", v["completion_index"], f"below trainers, {v['trainers']}"),
            "ranks count from 0, and a rank beyond the last makes the others wait for ever",
            "Set the Job's completions and trainers to the same number",
        )
    if last > PORT_MAX:
        yield (
            *("port (CONF_PADDLE_PORT)", first, f"at most {PORT_MAX - (last - first)}"),
            f"portsNum + portsNumSparse ports from it on would end at {last}, beyond {PORT_MAX}",
            "Set a lower port, or fewer ports",
        )
    if first <= peer <= last:
        yield (
            *(f"peerPort ({_L}PEER_PORT)", peer, f"outside {first}-{last}"),
            "those are the pservers' ports (port, portsNum, portsNumSparse)",
            "Set peerPort to another port, or leave it out",
        )
    if last <= PORT_MAX < peer:
        yield (
            *(f"peerPort ({_L}PEER_PORT)", peer, f"at most {PORT_MAX}"),
            "by default it is the port behind the pservers' ports, and TCP ports end there",
            "Set a lower port, or peerPort itself",
        )
    if v["save_every_batches"] and v["save_every_minutes"]:
        yield (
            f"training.saveEvery ({_L}SAVE_EVERY_BATCHES, {_L}SAVE_EVERY_MINUTES)",
            f"{v['save_every_batches']} batches and {v['save_every_minutes']:g} minutes",
            "batches or minutes, not both",
            "there is one rhythm of saves",
            "Leave one of them out, or set it to null",
        )
    if v["delta_saves"] and v["mode"] == "geo":
        yield (
            *(f"training.deltaSaves ({_L}DELTA_SAVES)", v["delta_saves"], "0 with training.mode geo"),
            "there the servers have no tables whose changes they could write, only what trainers exchanged",
            "Leave it out, or set training.mode to async or sync",
        )
    if f"{v['init_from']}/".startswith(f"{own}/"):
        yield (
            *(f"training.initFrom ({_L}INIT_FROM)", v["init_from"], f"outside {own}"),
            "this training writes there: it goes on from what lies there, or moves it to runs/",
            f"Name a folder of {v['job_name']}/runs or of another job",
        )
    if v["config_dir"] in RESERVED_FOLDERS or v["config_dir"].isdecimal():
        yield (
            *("training.config (TRAIN_CONFIG_DIR)", v["config_dir"]),
            f"none of {', '.join(sorted(RESERVED_FOLDERS))} and no number",
            "those folders of a job hold its shards, tables and outputs",
            "Give the program's folder another name",
        )
