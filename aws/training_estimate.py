"""`make plan`: estimate pods, memory, time and cost of a training, or calculate what a finished run cost.

Pure. The rates are in `rates.yaml`, which states the machine that they were measured on.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from aws import hourly_cost
from aws.stack_access import CommandError
from infra import node_capacity
from infra.settings import Settings

Rates = Mapping[str, float]
GB = 1e9
# Disk of a node that is used by the system, images and logs.
SYSTEM_GIB = 12.0


@dataclass(frozen=True)
class TrainingJob:
    """The training to estimate: rows, source size (10⁹ bytes), passes, distinct ids, rows per batch."""

    rows: float
    gigabytes: float
    passes: int
    ids: float
    batch: int = 256


@dataclass(frozen=True)
class PodLoad:
    """Load that the training puts on one pod."""

    memory_gib: float
    row_us: float
    """CPU microseconds per row, in the trainer and in all servers."""
    rows: float
    """Rows per second."""
    network_mb: float
    """10⁶ bytes sent per second; the same amount is received."""


@dataclass(frozen=True)
class Estimate:
    """Needs of a run with this number of pods, one per node. GiB are per pod; hours and dollars per run."""

    pods: int
    train: PodLoad
    disk_gib: float
    hours: dict[str, float]
    dollars: float


def read_rates(own: Path | None = None) -> dict[str, float]:
    """Return the rates of `rates.yaml`, overridden by the file `own`.

    Raises:
        CommandError: the file cannot be read, has an unknown key, or a value that is not a number above 0.
    """
    found: dict[str, float] = yaml.safe_load(Path(__file__).with_name("rates.yaml").read_text("utf-8"))
    try:
        given = {} if own is None else yaml.safe_load(own.read_text("utf-8")) or {}
        mine = {str(key): float(value) for key, value in given.items()}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise CommandError(f"RATES={own} cannot be read: {' '.join(str(error).split())}") from error
    wrong = [key for key, value in mine.items() if key not in found or not value > 0]
    if wrong:
        known = f"known keys are {', '.join(found)}, and each value is a number above 0"
        raise CommandError(f"RATES={own}: invalid entries {', '.join(wrong)}; {known}")
    return found | mine


def usable_node(settings: Settings) -> node_capacity.Size:
    """Return CPU and memory that a node of the stack leaves to pods.

    Raises:
        CommandError: the instance type is not in the price table.
    """
    kind = settings.nodes.instance_types[0]
    known = hourly_cost.find_instance(kind)
    if known is None:
        other = 'SET="nodes.instanceTypes=[m6i.large]"'
        raise CommandError(
            f"{kind} is not in aws/prices.yaml. Fix: add its size and price, or plan with {other}"
        )
    return node_capacity.usable_size(known[1])


def least_pods(job: TrainingJob, size: node_capacity.Size, known: Rates) -> int:
    """Return the smallest number of pods whose memory holds the tables; a pod takes its node's memory.

    Raises:
        CommandError: a node is too small even for a pod without ids.
    """
    room = size.memory - known["base_mb"] * 1e6
    if room <= 0:
        raise CommandError(
            f"a node leaves {size} to pods, but a pod needs {known['base_mb']:g} MB even without ids. "
            "Fix: set a larger type in nodes.instanceTypes"
        )
    return max(1, math.ceil(job.ids * known["id_bytes"] / room))


def pod_load(pods: int, cores: float, job: TrainingJob, known: Rates) -> PodLoad:
    """Return the load of one pod. Each pod has a server and a trainer, which calls all servers each batch."""
    row = known["train_us"] + _messages(pods, job.batch, known)
    rows = cores * known["busy"] * 1e6 / row
    memory = known["base_mb"] * 1e6 + job.ids / pods * known["id_bytes"]
    # Bytes of a row between a trainer and the servers, in both directions. All pods are alike, so what one
    # trainer sends and receives equals what one pod sends (or receives) in all.
    network = rows * bytes_per_row(job.batch, known) * (pods - 1) / pods
    return PodLoad(memory_gib=memory / node_capacity.GIB, row_us=row, rows=rows, network_mb=network / 1e6)


def bytes_per_row(batch: float, known: Rates) -> float:
    """Return the bytes a row moves, in both directions, between a trainer and the servers of other pods."""
    return known["wire_row"] + known["wire_batch"] / batch


def _messages(pods: int, batch: float, known: Rates) -> float:
    """Return the CPU microseconds a row costs on all servers but the first, which train_us includes."""
    return known["message_us"] * (pods - 1) / batch


def estimate_training(job: TrainingJob, settings: Settings, pods: int, known: Rates) -> Estimate:
    """Estimate `job` on that many pods, one a node, on a stack that is up only for this run."""
    cores = max(1.0, usable_node(settings).cpu)
    train = pod_load(pods, cores, job, known)
    rows, ids, source = job.rows / pods, job.ids / pods, job.gigabytes * GB
    hours = {
        "data": source / (known["split_mb"] * 1e6) / 3600,
        "parsing": rows * known["parse_us"] / 1e6 / cores / 3600,
        "training": rows * job.passes / train.rows / 3600,
        "saves": ids * job.passes * known["save_us"] / 1e6 / 3600,
    }
    usage, saved = hourly_cost.read_prices()["gb"], job.ids * job.passes * known["save_bytes"]
    # Shards and checkpoints are written once and read once: a checkpoint is verified by reading it back.
    moved = (source + saved) / GB * (usage["efs_read"] + usage["efs_write"])
    return Estimate(
        pods=pods,
        train=train,
        disk_gib=SYSTEM_GIB + source * (1 + known["record_bytes"]) / pods / node_capacity.GIB,
        hours=hours,
        dollars=sum(hours.values()) * hourly_cost.total_per_hour(hourly_cost.cost_items(settings, pods))
        + moved,
    )


def cost_of_run(results: Path, settings: Settings, known: Rates) -> tuple[int, float, float, float]:
    """Calculate what a finished run cost, from the folder that `launcher results --to` made.

    Returns:
        Pods, hours, dollars (hours at the stack's price), and the `train_us` with which `plan` would have
        estimated the same training time.

    Raises:
        CommandError: run.json or metrics.csv is missing or damaged, or the run has not finished.
    """
    try:
        run = json.loads((results / "run.json").read_text("utf-8"))
        rows = list(csv.DictReader((results / "metrics.csv").read_text("utf-8").splitlines()))
        seconds = float(run["finished"]) - float(run["started"])
        samples, busy = (sum(float(row[name]) for row in rows) for name in ("samples", "seconds"))
        pods = len({row["rank"] for row in rows})
        cores = max(1.0, usable_node(settings).cpu)
        batch = int(run["fingerprint"]["batchSize"])
        train_us = busy * cores * known["busy"] / samples * 1e6 - _messages(pods, batch, known)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        said = " ".join(str(error).split())
        raise CommandError(
            f"AFTER={results} is not the folder of a finished run ({said}). Fix: download one with "
            "`python -m launcher results --to DIR`"
        ) from error
    return (
        pods,
        seconds / 3600,
        seconds / 3600 * hourly_cost.total_per_hour(hourly_cost.cost_items(settings, pods)),
        train_us,
    )
