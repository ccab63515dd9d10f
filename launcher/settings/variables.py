"""The environment variables of the pods: one table each for all pods, training pods and data pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import setting_message
from launcher.settings import parsers as p

REQUIRED = object()


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    field: str
    """Field of the settings dataclass."""
    parse: p.Parser
    default: Any = REQUIRED
    """The field's value, unparsed, when the variable is absent or empty."""
    value: str = ""
    """The chart's value that sets the variable, for messages."""
    secret: bool = False
    """Never shown, and removed from the environment of child processes."""


_L = "PADDLE_LAUNCHER_"
_D = "PADDLE_LAUNCHER_DATA_"

POD = (
    Variable("JOB_NAME", "job_name", p.job_name, value="jobName"),
    Variable("JOB_PATH", "job_path", p.absolute, Path("/home/jobpath")),
    Variable("JOB_NAMESPACE", "namespace", p.dns_label, value="the release's namespace"),
    Variable(_L + "RELEASE", "release", p.filled, value="the release's name"),
    Variable(_L + "K8S_JOB", "k8s_job", p.dns_label, value="jobName"),
    Variable(_L + "DATA_DIGEST", "data_digest", p.filled, value="data"),
    Variable(_L + "RUN_ID", "chart_run_id", p.text, "", "runId"),
    Variable(_L + "POD_NAME", "pod_name", p.text, ""),
    Variable(_L + "POD_IP", "pod_ip", p.text, ""),
    Variable(_L + "NODE_NAME", "node_name", p.text, ""),
    Variable(_L + "K8S_JOB_UID", "k8s_job_uid", p.text, ""),
    Variable(_L + "TERMINATION_LOG", "termination_log", p.absolute, Path("/dev/termination-log")),
    Variable(_L + "LOG_FORMAT", "log_format", p.choice("text", "json"), "text", "logFormat"),
)

_MINUTES = p.number(
    0, 10_080, "it counts minutes, and a week without a checkpoint could lose a week of training"
)
_NO_CHECKPOINT = "without a checkpoint every failure starts the training from scratch"
_LONG_CHAIN = "a restore loads all of them, one after the other"
_NO_DEADLINE = (
    "a slow batch is not a hang, and the detection of hangs cannot be turned off: a hung run would hold its "
    "machines until the Job's deadline"
)
_HELD_OUT = p.number(0, 0.5, "it is the fraction of the lines that is held out for the test")
_PORT = p.integer(1, p.PORT_MAX, "it is a TCP port")
TRAIN = (
    Variable("TRAIN_CONFIG_DIR", "config_dir", p.folder_name, value="training.config"),
    Variable(_L + "CONFIG_FILE", "config_file", p.folder_name, "trainer_config.py", "training.config"),
    Variable("CONF_PADDLE_NIC", "nic", p.filled, "eth0", "nic"),
    Variable("CONF_PADDLE_PORT", "port", _PORT, 7164, "port"),
    Variable(
        "CONF_PADDLE_PORTS_NUM",
        "ports_num",
        p.integer(1, 100, "each one starts a parameter server"),
        2,
        "portsNum",
    ),
    Variable("CONF_PADDLE_PORTS_NUM_SPARSE", "ports_num_sparse", p.integer(0, 100), 2, "portsNumSparse"),
    Variable("CONF_PADDLE_GRADIENT_NUM", "gradient_num", p.integer(1), None, "gradientNum"),
    Variable(
        "TRAINER_COUNT", "trainer_count", p.integer(1, 1024, "it is a number of threads"), 1, "trainerCount"
    ),
    Variable("JOB_COMPLETION_INDEX", "completion_index", p.integer(0), value="the Indexed Job"),
    Variable(_L + "TRAINERS", "trainers", p.integer(1, 1000, "it is a number of pods"), value="trainers"),
    Variable(_L + "SERVICE", "service", p.dns_label, value="the headless Service"),
    Variable(_L + "START_FROM_SCRATCH", "start_from_scratch", p.text, "", "startFromScratch"),
    Variable(_L + "PROGRAM_SHA256", "program_sha256", p.sha256, "", "training.programSha256"),
    Variable(_L + "RUNTIME", "runtime", p.choice("fleet", "v1"), "fleet", "runtime"),
    Variable(_L + "RENDEZVOUS", "rendezvous", p.choice("dns", "api"), "dns", "rendezvous"),
    Variable(_L + "RENDEZVOUS_SECONDS", "rendezvous_seconds", p.integer(1), 900, "rendezvousSeconds"),
    Variable(_L + "PEER_PORT", "peer_port", _PORT, None, "peerPort"),
    Variable(_L + "MODE", "mode", p.choice("sync", "async", "geo"), "async", "training.mode"),
    Variable(_L + "PASSES", "passes", p.integer(1, 100_000), 10, "training.passes"),
    Variable(_L + "BATCH_SIZE", "batch_size", p.integer(1), 256, "training.batchSize"),
    Variable(_L + "LOG_PERIOD", "log_period", p.integer(1), 50, "training.logPeriod"),
    Variable(_L + "DOT_PERIOD", "dot_period", p.integer(1), 10, "training.dotPeriod"),
    Variable(_L + "SAVING_PERIOD", "saving_period", p.integer(1), 1, "training.savingPeriod"),
    Variable(
        _L + "CHECKPOINT_EVERY_BATCHES",
        "checkpoint_every_batches",
        p.integer(0),
        0,
        "training.checkpointEvery.batches",
    ),
    Variable(
        _L + "CHECKPOINT_EVERY_MINUTES",
        "checkpoint_every_minutes",
        _MINUTES,
        0.0,
        "training.checkpointEvery.minutes",
    ),
    Variable(
        _L + "KEEP_CHECKPOINTS",
        "keep_checkpoints",
        p.integer(1, why=_NO_CHECKPOINT),
        3,
        "training.keepCheckpoints",
    ),
    Variable(
        _L + "INCREMENTAL_CHECKPOINTS",
        "incremental_checkpoints",
        p.integer(0, 100, _LONG_CHAIN),
        0,
        "training.incrementalCheckpoints",
    ),
    Variable(_L + "KEEP_BEST", "keep_best", p.text, "", "training.keepBest"),
    Variable(_L + "PATIENCE", "patience", p.integer(0, 100_000), 0, "training.patience"),
    Variable(_L + "INIT_MODEL_PATH", "init_model", p.init_model, "", "training.initModelPath"),
    Variable(
        _L + "PROGRESS_DEADLINE_SECONDS",
        "progress_deadline_seconds",
        p.integer(10, why=_NO_DEADLINE),
        600,
        "training.progressDeadlineSeconds",
    ),
    Variable(_L + "EXTRA_ARGS", "extra_args", p.arguments, (), "training.extraArgs"),
    Variable(_L + "RESTARTS", "restarts", p.integer(0), 3, "training.restarts"),
    Variable(_L + "EXPORT_TO", "export_to", p.export_to, "", "training.exportTo"),
    Variable(_L + "DATA_WAIT_SECONDS", "data_wait_seconds", p.integer(1), 3600, "data.waitSeconds"),
    Variable(_L + "WEBHOOK", "webhook", p.web_address, "", "notify.webhook", secret=True),
    Variable(_L + "EVENTS", "events", p.flag, False, "notify.events"),
    Variable(_L + "WORK_DIR", "work_dir", p.absolute, Path("/work")),
)

DATA = (
    Variable("OUT_DIR", "out_dir", p.absolute, None),
    Variable(
        "SPLIT_COUNT", "split_count", p.integer(1, 1000, "each trainer needs a shard"), 3, "data.splitCount"
    ),
    Variable(_D + "SOURCE", "source", p.filled, value="data.source"),
    Variable(_D + "SHA256", "sha256", p.sha256, "", "data.sha256"),
    Variable(_D + "MEMBER", "member", p.text, "", "data.member"),
    Variable(_D + "TABLES", "tables", p.texts, (), "data.tables"),
    Variable(_D + "FORMAT", "format", p.choice("lines", "csv"), "lines", "data.format"),
    Variable(_D + "DELIMITER", "delimiter", p.delimiter, ",", "data.delimiter"),
    Variable(_D + "HEADER", "header", p.flag, True, "data.header"),
    Variable(_D + "COLUMNS", "columns", p.columns, (), "data.columns"),
    Variable(_D + "ENCODING", "encoding", p.encoding, "utf-8", "data.encoding"),
    Variable(_D + "SEED", "seed", p.integer(0, 2**63 - 1), 0, "data.seed"),
    Variable(_D + "TEST_FRACTION", "test_fraction", _HELD_OUT, 0.1, "data.testFraction"),
    Variable(_D + "TEST_SOURCE", "test_source", p.text, "", "data.testSource"),
    Variable(_D + "TEST_ROWS", "test_rows", p.integer(1), 200_000, "data.testRows"),
    Variable(_D + "WORKERS", "workers", p.integer(1, 1000, "it is a number of pods"), 1, "data.workers"),
    Variable(_D + "DEADLINE_SECONDS", "deadline_seconds", p.integer(1), None, "data.deadlineSeconds"),
)


def read_variables(
    variables: tuple[Variable, ...], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values by field, and one message for each variable that is missing or invalid."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for variable in variables:
        raw = environ.get(variable.name, "")
        key = f"{variable.value} ({variable.name})" if variable.value else variable.name
        fix = f"Set {variable.value or variable.name} to such a value"
        if not raw:
            if variable.default is REQUIRED:
                faults.append(setting_message(key, raw, "set", "it has no default", fix))
            else:
                values[variable.field] = variable.default
            continue
        try:
            values[variable.field] = variable.parse(raw)
        except p.BadValueError as error:
            shown = "(not shown)" if variable.secret else raw
            faults.append(setting_message(key, shown, error.limit, error.reason, error.fix or fix))
    return values, faults
