"""`make plan`: estimate pods, memory, time and cost of a training, or calculate what a finished run cost.

The rates (bytes and microseconds per row, id or message) are in `rates.yaml`, which states the machine that they
were measured on. Nothing here calls AWS.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from aws import hourly_cost
from aws.hourly_cost import Dollars
from aws.stack_access import CommandError
from infra import node_capacity
from infra.settings import Settings

Rates = Mapping[str, float]
GB = 1e9
# Disk of a node that is used by the system, images and logs.
SYSTEM_GIB = 12.0
# The parts in which pods prepare the source are at least this large, and so large per trainer.
PART_BYTES, PART_BYTES_PER_TRAINER = 256 * node_capacity.MIB, 4 * node_capacity.MIB
NOTHING = Dollars(0, 0)


@dataclass(frozen=True)
class TrainingJob:
    """The training to estimate.

    Attributes:
        gigabytes: size of the source in 10⁹ bytes.
        ids: distinct ids over all tables.
        batch: rows per batch.
        workers: pods of the data Job; 0: the training pods prepare the data (data.preparedBy).
        is_one_stream: one pod reads the complete source: an https source, an archive, or one with data.sha256.
        checkpoints: how many are kept.
        source: address of the source, whose scheme decides where it is stored and how it is read.
    """

    rows: float
    gigabytes: float
    passes: int
    ids: float
    batch: int = 256
    workers: int = 1
    is_one_stream: bool = False
    checkpoints: int = 3
    source: str = "s3://"

    def readers(self, pods: int) -> int:
        """Return how many pods prepare the data of a training with `pods` training pods."""
        part = max(PART_BYTES, PART_BYTES_PER_TRAINER * pods)
        parts = 1 if self.is_one_stream else math.ceil(self.gigabytes * GB / part)
        return min(self.workers or pods, parts)


@dataclass(frozen=True)
class PodLoad:
    """What the training needs of one pod with a trainer and a pserver.

    Attributes:
        memory_gib: memory in GiB.
        row_us: CPU microseconds per row, in the trainer and in all servers.
        rows: rows per second, as many as the CPU and the network allow.
        network_mb: 10⁶ bytes sent per second; the same amount is received.
        limit: what limits `rows`: CPU or network.
    """

    memory_gib: float
    row_us: float
    rows: float
    network_mb: float
    limit: str


@dataclass(frozen=True)
class Estimate:
    """Needs of a run with `pods` training pods, one per node.

    `work_gib` is the space of a pod's shard as text and as records; `hours` are by step and `dollars` by part of the
    cost, both for the run; `stored_gb` are the 10⁹ bytes that are on the file system after it.
    """

    pods: int
    train: PodLoad
    work_gib: float
    hours: dict[str, float]
    dollars: dict[str, Dollars]
    stored_gb: float

    @property
    def disk_gib(self) -> float:
        """Return the space that a node needs, in GiB."""
        return SYSTEM_GIB + self.work_gib

    @property
    def total(self) -> Dollars:
        """Return the sum of all parts in US dollars."""
        return sum(self.dollars.values(), NOTHING)


@dataclass(frozen=True)
class FinishedRun:
    """What a finished run with `pods` training pods used in `hours`.

    Attributes:
        dollars: the stack's price for this duration plus the price of the traffic between zones.
        train_us: value of the rate `train_us` with which `plan` would estimate the training time of this run.
        network_share: traffic of a pod divided by its node's baseline bandwidth (1.0: all of it).
    """

    pods: int
    hours: float
    dollars: Dollars
    train_us: float
    network_share: float


def read_rates(overrides: Path | None = None) -> dict[str, float]:
    """Return the rates of `rates.yaml`, overridden by the file `overrides`.

    Raises:
        CommandError: the file cannot be read, has an unknown key, or a value that is not a number above 0.
    """
    found: dict[str, float] = yaml.safe_load(Path(__file__).with_name("rates.yaml").read_text("utf-8"))
    try:
        given = {} if overrides is None else yaml.safe_load(overrides.read_text("utf-8")) or {}
        mine = {str(key): float(value) for key, value in given.items()}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise CommandError(
            f"RATES={overrides} (--rates) is no readable file of rates: {' '.join(str(error).split())}. Fix: give a "
            "YAML file with lines `KEY: NUMBER`, such as `train_us: 27`; aws/rates.yaml has the keys"
        ) from error
    wrong = [key for key, value in mine.items() if key not in found or not value > 0]
    if wrong:
        known = f"known keys are {', '.join(found)}, and each value is a number above 0"
        raise CommandError(
            f"RATES={overrides} (--rates): invalid entries {', '.join(wrong)}; {known}. Fix: correct or remove them"
        )
    return found | mine


def read_job(
    values: Mapping[str, Any], *, rows: float, gigabytes: float, passes: int, ids: float
) -> TrainingJob:
    """Return a TrainingJob of these sizes; batch size, checkpoints, workers and source are from the chart `values`."""
    training, data = values["training"], values["data"]
    return TrainingJob(
        rows=rows,
        gigabytes=gigabytes,
        passes=passes,
        ids=ids,
        batch=int(training["batchSize"]),
        workers=int(data["workers"]) if data["preparedBy"] == "dataJob" else 0,
        is_one_stream=bool(data["source"].startswith("http") or data["member"] or data["sha256"]),
        checkpoints=int(training["keepCheckpoints"]),
        source=data["source"],
    )


def node_type(settings: Settings) -> hourly_cost.Instance:
    """Return price, size and bandwidth of the stack's first instance type.

    Raises:
        CommandError: the instance type is not in the price table.
    """
    kind = settings.nodes.instance_types[0]
    known = hourly_cost.find_instance(kind)
    if known is None:
        other = 'SET="nodes.instanceTypes=[m6i.large]"'
        raise CommandError(
            f"{kind} is not in aws/prices.yaml. Fix: add its price, memory, cores and bandwidth to `instances` "
            f"there, or plan with {other}"
        )
    return known


def least_pods(job: TrainingJob, size: node_capacity.Size, known: Rates) -> int:
    """Return the smallest number of pods whose memory holds all embedding tables, with one pod on each node.

    Raises:
        CommandError: a node's memory is too small even for a pod without any id.
    """
    room = size.memory - known["base_mb"] * 1e6
    if room <= 0:
        raise CommandError(
            f"a node leaves {size} to pods, but a pod needs {known['base_mb']:g} MB even without ids. "
            "Fix: set a larger type in nodes.instanceTypes"
        )
    return max(1, math.ceil(job.ids * known["id_bytes"] / room))


def pod_load(pods: int, cores: float, job: TrainingJob, known: Rates, bandwidth: float = math.inf) -> PodLoad:
    """Return the load of one pod, which has a server and a trainer; every trainer calls all servers in each batch.

    `bandwidth` is the number of bytes per second that a pod can send, and as many that it can receive.
    """
    row_us = known["train_us"] + _messages(pods, job.batch, known)
    memory = known["base_mb"] * 1e6 + job.ids / pods * known["id_bytes"]
    # Bytes of a row between a trainer and the servers, in both directions. All pods are alike, so what one
    # trainer sends and receives equals what one pod sends (or receives) in all.
    row_bytes = bytes_per_row(job.batch, known) * (pods - 1) / pods
    by_cpu = cores * known["busy"] * 1e6 / row_us
    by_network = bandwidth / row_bytes if pods > 1 else math.inf
    rows = min(by_cpu, by_network)
    return PodLoad(
        memory_gib=memory / node_capacity.GIB,
        row_us=row_us,
        rows=rows,
        network_mb=rows * row_bytes / 1e6,
        limit="CPU" if rows == by_cpu else "network",
    )


def bytes_per_row(batch: float, known: Rates) -> float:
    """Return the bytes that a trainer and all servers exchange for one row, in both directions together."""
    return known["wire_row"] + known["wire_batch"] / batch


def _messages(pods: int, batch: float, known: Rates) -> float:
    """Return the CPU microseconds that calls to all servers but one cost per row.

    Every trainer calls all `pods` servers in each batch; the rate `train_us` includes the cost of one of them.
    """
    return known["message_us"] * (pods - 1) / batch


def traffic_between_zones(trained: float, pods: int, batch: float, settings: Settings, known: Rates) -> float:
    """Return the bytes that cross zones while `trained` rows (rows times passes) are trained.

    Assumes that pods are spread evenly over the zones and that every trainer sends the same to every server.
    """
    network = settings.network
    zones = 1 if settings.nodes.single_zone else len(network.subnet_ids) or network.zones
    low, larger = divmod(pods, zones)
    same_zone = (larger * (low + 1) ** 2 + (zones - larger) * low**2) / pods**2
    return trained * bytes_per_row(batch, known) * (1 - same_zone)


def estimate_training(job: TrainingJob, settings: Settings, pods: int, known: Rates) -> Estimate:
    """Return the estimate of `job` on `pods` pods, one on each node, of a stack that is up only for this run."""
    node = node_type(settings)
    cores = max(1.0, node.usable.cpu)
    train = pod_load(pods, cores, job, known, node.bandwidth)
    rows, ids, source = job.rows / pods, job.ids / pods, job.gigabytes * GB
    prepared = job.readers(pods) * min(known["split_mb"] * 1e6, node.bandwidth)  # bytes per second
    hours = {
        "data": source / min(prepared, known["efs_write_mb"] * 1e6) / 3600,
        "copying shards": source / pods / (known["split_mb"] * 1e6) / 3600,
        "parsing": rows * known["parse_us"] / 1e6 / cores / 3600,
        "training": rows * job.passes / train.rows / 3600,
        "saving checkpoints": ids * job.passes * known["save_us"] / 1e6 / 3600,
    }
    return Estimate(
        pods=pods,
        train=train,
        work_gib=source * (1 + known["record_bytes"]) / pods / node_capacity.GIB,
        hours=hours,
        dollars=_cost_parts(job, settings, pods, hours, known),
        stored_gb=stored_gb(job, known),
    )


def _is_on_efs(job: TrainingJob) -> bool:
    return job.source.startswith("file:")


def stored_gb(job: TrainingJob, known: Rates) -> float:
    """Return the size (in 10⁹ bytes) of the files that a run leaves: shards, checkpoints and a `file://` source."""
    checkpoints = min(job.passes, job.checkpoints) * job.ids * known["save_bytes"]
    return job.gigabytes * (1 + _is_on_efs(job)) + checkpoints / GB


def _cost_parts(
    job: TrainingJob, settings: Settings, pods: int, hours: Mapping[str, float], known: Rates
) -> dict[str, Dollars]:
    """Return the dollars that a run costs, by part (nodes, traffic and so on).

    The nodes are paid while the data is prepared too, because the training pods wait for it or prepare it.
    """
    items, price = list(hourly_cost.cost_items(settings, pods)), hourly_cost.read_prices()["gb"]
    nodes, others = (
        hourly_cost.total_per_hour(item for item in items if item.of_nodes == of_nodes)
        for of_nodes in (True, False)
    )
    stored = hourly_cost.total_per_hour(hourly_cost.storage_items(settings, stored_gb(job, known)))
    waited, lasted = hours["data"], sum(hours.values())
    # Shards and checkpoints are written once and read once: a checkpoint is verified by reading it back.
    written = job.gigabytes + job.ids * job.passes * known["save_bytes"] / GB
    read = written + job.gigabytes * _is_on_efs(job)
    moved = written * price["EFS write"] + read * price["EFS read"]
    through_nat = settings.network.nat != "none" and job.source.startswith("http")
    between = traffic_between_zones(job.rows * job.passes, pods, job.batch, settings, known) / GB
    by_use = {
        "EFS reads and writes": moved if settings.storage.throughput == "elastic" else 0,
        **({"NAT data": job.gigabytes * price["NAT data"]} if through_nat else {}),
        "traffic between zones": between * price["traffic between zones"],
    }
    return {
        "nodes, while data is prepared": nodes * waited,
        "nodes, after that": nodes * (lasted - waited),
        "control plane, NAT, logs, keys": others * lasted,
        "EFS storage and backups": stored * lasted,
        **{name: Dollars(dollars, dollars) for name, dollars in by_use.items()},
    }


def advice(job: TrainingJob, settings: Settings, found: Estimate, known: Rates) -> Iterator[str]:
    """Yield lines of advice: changes that would reduce the cost, and the monthly price of the data that remains."""
    readers = job.readers(found.pods)
    if readers < found.pods and found.hours["data"] > 0.1 * sum(found.hours.values()):
        waiting = found.dollars["nodes, while data is prepared"]
        said = f"{found.pods} nodes wait for the data; pods that prepare it: {readers}. The wait costs ${waiting:.2f}."
        if job.is_one_stream:
            yield (
                f"{said} One pod reads a source that is an archive, https or checked by data.sha256. Fix: provide the "
                "rows as text below s3://, with data.preparedBy: trainingPods; or prepare them before the nodes start, "
                "with data.preparedBy: dataJob, nodes.auto: true, and scheduling.suspend: true until they are prepared"
            )
        else:
            other = estimate_training(replace(job, workers=0), settings, found.pods, known)
            yield (
                f"{said} Fix: data.preparedBy: trainingPods, with which the data takes {other.hours['data']:.2f} h "
                f"instead of {found.hours['data']:.2f} h, and the run ${other.total:.2f} instead of ${found.total:.2f}"
            )
    if settings.nodes.has_gpus:
        yield (
            f"The estimate is for runtime fleet, which trains on CPUs: it includes the price of the GPUs of "
            f"{settings.nodes.instance_types[0]}, but not their speed. Fix: measure one pass of your own script"
        )
    between = found.dollars["traffic between zones"]
    if between.most > 0:
        yield f"Traffic between zones costs ${between:.2f}. Fix: nodes.singleZone: true"
    stored = hourly_cost.total_per_hour(hourly_cost.storage_items(settings, found.stored_gb))
    month = stored * hourly_cost.HOURS_PER_MONTH
    yield f"After the run, {found.stored_gb:.0f} GB stay on the file system: ${month:.2f} a month until deleted."


def cost_of_run(results: Path, settings: Settings, known: Rates) -> FinishedRun:
    """Calculate what a finished run cost, from the folder that `launcher results --to` made.

    Raises:
        CommandError: run.json or metrics.csv is missing or damaged, or the run has not finished.
    """
    node = node_type(settings)
    try:
        run = json.loads((results / "run.json").read_text("utf-8"))
        rows = list(csv.DictReader((results / "metrics.csv").read_text("utf-8").splitlines()))
        hours = (float(run["finished"]) - float(run["started"])) / 3600
        samples, busy = (sum(float(row[name]) for row in rows) for name in ("samples", "seconds"))
        pods = len({row["rank"] for row in rows})
        cores = max(1.0, node.usable.cpu)
        batch = int(run["fingerprint"]["batchSize"])
        train_us = busy * cores * known["busy"] / samples * 1e6 - _messages(pods, batch, known)
        sent = samples / busy * bytes_per_row(batch, known) * (pods - 1) / pods
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        said = " ".join(str(error).split())
        raise CommandError(
            f"AFTER={results} is not the folder of a finished run ({said}). Fix: download one with "
            "`python -m launcher results --to DIR`"
        ) from error
    between = traffic_between_zones(samples, pods, batch, settings, known) / GB
    traffic = between * hourly_cost.read_prices()["gb"]["traffic between zones"]
    stack = hourly_cost.total_per_hour(hourly_cost.cost_items(settings, pods))
    return FinishedRun(
        pods=pods,
        hours=hours,
        dollars=stack * hours + Dollars(traffic, traffic),
        train_us=train_us,
        network_share=sent / node.bandwidth,
    )
