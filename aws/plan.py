"""`make plan`: what a training needs and costs, before it runs, and what it did cost. Pure; the rates are in
`rates.yaml`, with what they were measured on.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from aws import cost
from aws.stack import CommandError
from infra import capacity
from infra.settings import Settings

Rates = Mapping[str, float]
GB = 1e9
# What a node's disk holds beside a pod's data: system, images and logs.
SYSTEM_GIB = 12.0


@dataclass(frozen=True)
class Job:
    """`gigabytes` of the source (10⁹ bytes), `ids` different ones over all tables, `batch` of a trainer."""

    rows: float
    gigabytes: float
    passes: int
    ids: float
    batch: int = 256


@dataclass(frozen=True)
class Load:
    """What training makes of one of so many pods."""

    memory_gib: float
    row_us: float
    """CPU of a row: of the trainer, and of all servers for it."""
    rows: float
    """A second."""
    network_mb: float
    """10⁶ bytes a second, sent, and as many received."""


@dataclass(frozen=True)
class Plan:
    """For one number of pods, each on its own node. GiB are of one pod, hours and dollars of the whole."""

    pods: int
    train: Load
    disk_gib: float
    hours: dict[str, float]
    dollars: float


def rates(own: Path | None = None) -> dict[str, float]:
    """The rates, with a person's own file over them.

    Raises:
        CommandError: the file cannot be read, has another key, or a value that is no number above 0.
    """
    found: dict[str, float] = yaml.safe_load(Path(__file__).with_name("rates.yaml").read_text("utf-8"))
    try:
        given = {} if own is None else yaml.safe_load(own.read_text("utf-8")) or {}
        mine = {str(key): float(value) for key, value in given.items()}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise CommandError(f"RATES={own} cannot be read: {' '.join(str(error).split())}") from error
    wrong = [key for key, value in mine.items() if key not in found or not value > 0]
    if wrong:
        said = f"keys of {', '.join(found)}, with numbers above 0"
        raise CommandError(f"RATES={own}: {', '.join(wrong)} cannot be used; it takes {said}")
    return found | mine


def node(settings: Settings) -> capacity.Size:
    """What a node of the stack leaves to pods.

    Raises:
        CommandError: its instance type is not in the table.
    """
    kind = settings.nodes.instance_types[0]
    known = cost.instance(kind)
    if known is None:
        other = 'SET="nodes.instanceTypes=[m6i.large]"'
        raise CommandError(f"{kind} is not in aws/prices.yaml; add size and price, or plan with {other}")
    return capacity.for_pods(known[1])


def least_pods(job: Job, size: capacity.Size, known: Rates) -> int:
    """How many pods hold the tables; a pod takes its node's memory.

    Raises:
        CommandError: a node does not hold even a pod without ids.
    """
    room = size.memory - known["base_mb"] * 1e6
    if room <= 0:
        raise CommandError(f"a node leaves {size}, and a pod takes {known['base_mb']:g} MB without ids")
    return max(1, math.ceil(job.ids * known["id_bytes"] / room))


def load(pods: int, cores: float, job: Job, known: Rates) -> Load:
    """Each pod has a server and a trainer, which asks all servers in each batch."""
    row = known["train_us"] + _messages(pods, job.batch, known)
    rows = cores * known["busy"] * 1e6 / row
    memory = known["base_mb"] * 1e6 + job.ids / pods * known["id_bytes"]
    # Bytes of a row between a trainer and the servers, both ways. What a trainer receives others send: with
    # pods that are alike both ways of one are each way of all.
    network = rows * wire(job.batch, known) * (pods - 1) / pods
    return Load(memory_gib=memory / capacity.GIB, row_us=row, rows=rows, network_mb=network / 1e6)


def wire(batch: float, known: Rates) -> float:
    """Bytes of a row, both ways, between a trainer and servers of other pods, in batches of so many rows."""
    return known["wire_row"] + known["wire_batch"] / batch


def _messages(pods: int, batch: float, known: Rates) -> float:
    """CPU µs of a row for all servers but one, which is in train_us."""
    return known["message_us"] * (pods - 1) / batch


def plan(job: Job, settings: Settings, pods: int, known: Rates) -> Plan:
    """What `job` takes with that many pods, one a node, while the stack is up for it only."""
    cores = max(1.0, node(settings).cpu)
    train = load(pods, cores, job, known)
    rows, ids, source = job.rows / pods, job.ids / pods, job.gigabytes * GB
    hours = {
        "data": source / (known["split_mb"] * 1e6) / 3600,
        "parsing": rows * known["parse_us"] / 1e6 / cores / 3600,
        "training": rows * job.passes / train.rows / 3600,
        "saves": ids * job.passes * known["save_us"] / 1e6 / 3600,
    }
    usage, saved = cost.prices()["gb"], job.ids * job.passes * known["save_bytes"]
    # Shards and saves are written once and read once: a save counts when it was read back.
    moved = (source + saved) / GB * (usage["efs_read"] + usage["efs_write"])
    return Plan(
        pods=pods,
        train=train,
        disk_gib=SYSTEM_GIB + source * (1 + known["record_bytes"]) / pods / capacity.GIB,
        hours=hours,
        dollars=sum(hours.values()) * cost.total(cost.parts(settings, pods)) + moved,
    )


def spent(results: Path, settings: Settings, known: Rates) -> tuple[int, float, float, float]:
    """What a run did cost, by the folder that `launcher results --to` made: its hours at the stack's price.

    Returns:
        Pods, hours, dollars, and the `train_us` with which `plan` would have said the same of the training.

    Raises:
        CommandError: the folder has no whole run.json and metrics.csv, or the run has not ended.
    """
    try:
        run = json.loads((results / "run.json").read_text("utf-8"))
        rows = list(csv.DictReader((results / "metrics.csv").read_text("utf-8").splitlines()))
        seconds = float(run["finished"]) - float(run["started"])
        samples, busy = (sum(float(row[name]) for row in rows) for name in ("samples", "seconds"))
        pods = len({row["rank"] for row in rows})
        cores = max(1.0, node(settings).cpu)
        batch = int(run["fingerprint"]["batchSize"])
        train_us = busy * cores * known["busy"] / samples * 1e6 - _messages(pods, batch, known)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        said = " ".join(str(error).split())
        raise CommandError(
            f"AFTER={results} is no folder of a run that ended (launcher results --to): {said}"
        ) from error
    return pods, seconds / 3600, seconds / 3600 * cost.total(cost.parts(settings, pods)), train_us
