"""Calculate the hourly cost of a stack, part by part, from its settings.

Prices come from `prices.yaml`, which states their date and region. This module does not call AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra import aws_facts
from infra.settings import Settings

# AWS converts monthly prices with this number of hours.
HOURS_PER_MONTH = 730


@dataclass(frozen=True)
class Dollars:
    """An amount in US dollars, as a range from `least` to `most`. The two ends differ only for spot nodes."""

    least: float
    most: float

    def __add__(self, other: Dollars) -> Dollars:
        return Dollars(self.least + other.least, self.most + other.most)

    def __mul__(self, times: float) -> Dollars:
        return Dollars(self.least * times, self.most * times)

    def __format__(self, spec: str) -> str:
        """Format the amount as one number, or as `LEAST to MOST` if the two ends differ as text.

        `spec` is the format of each number.
        """
        ends = dict.fromkeys((format(self.least, spec), format(self.most, spec)))
        return " to ".join(ends)


@dataclass(frozen=True)
class CostItem:
    """One line of the cost table: a part of the stack, its amount, and the cost of this amount.

    Attributes:
        count: amount of the part, in the unit `unit`, such as node or GiB.
        per_hour: dollars an hour for the whole amount; None if `prices.yaml` has no price.
    """

    name: str
    count: float
    unit: str
    per_hour: Dollars | None

    def __str__(self) -> str:
        price = "not in the table" if self.per_hour is None else f"{self.per_hour:.3f}"
        return f"{price}  ({self.count:g} {self.unit})"


@cache
def read_prices() -> dict[str, Any]:
    """Return `prices.yaml`; its comments explain the keys."""
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prices.yaml").read_text("utf-8"))
    return loaded


def find_price(kind: str) -> float | None:
    """Return the on-demand price in dollars an hour of the instance type `kind`; None if `prices.yaml` lacks it."""
    prices = read_prices()
    family, _, size = kind.partition(".")
    if kind in prices["instances"]:
        return float(prices["instances"][kind])
    if family not in prices["instances"] or size not in prices["sizes"]:
        return None
    larges = 1 if size == "large" else 2 * int(size.removesuffix("xlarge") or 1)
    return float(prices["instances"][family] * larges)


def _fixed(dollars: float) -> Dollars:
    return Dollars(dollars, dollars)


def _machines(name: str, kind: str, count: int, *, unit: str = "node") -> CostItem:
    known = find_price(kind)
    price = None if known is None else _fixed(known * count)
    return CostItem(f"{name}, {kind}", count, unit, price)


def _training_nodes(settings: Settings, count: int) -> Iterator[CostItem]:
    nodes, prices = settings.nodes, read_prices()
    machines = _machines("nodes", nodes.instance_types[0], count)
    if nodes.capacity == "SPOT" and machines.per_hour is not None:
        # With nodes.fallback, all nodes may be on demand.
        low, high = prices["spot_gpu" if nodes.has_gpus else "spot"]
        high = 1 if nodes.fallback else high
        price = Dollars(machines.per_hour.least * low, machines.per_hour.most * high)
        name = f"spot {'or on-demand ' * nodes.fallback}{machines.name}"
        machines = CostItem(name, count, "node, estimate", price)
    yield machines
    disks = count * nodes.disk_gib
    price = _fixed(disks * prices["month"]["gp3_gib"] / HOURS_PER_MONTH)
    yield CostItem("node disks, gp3", disks, "GiB", price)


def cost_items(settings: Settings, count: int | None = None, stored_gb: float = 0) -> Iterator[CostItem]:
    """Yield the parts of the stack that cost money every hour, even if nobody uses them.

    Args:
        count: number of nodes. None: the number in `nodes.desired`, or with `nodes.auto` the number in `nodes.max`.
        stored_gb: data on the file system in 10⁹ bytes. 0: the cost of storage and backups is omitted.
    """
    prices = read_prices()
    hour, month, network, nodes = prices["hour"], prices["month"], settings.network, settings.nodes
    if settings.compute == "on":
        yield CostItem("EKS control plane", 1, "cluster", _fixed(hour["eks"]))
        if count is None:
            count = nodes.max if nodes.auto else nodes.desired
        yield from _training_nodes(settings, count)
        if nodes.has_system_group:
            yield _machines("system node", aws_facts.SYSTEM_TYPES[nodes.is_arm][0], 1)
            disk = _fixed(nodes.disk_gib * month["gp3_gib"] / HOURS_PER_MONTH)
            yield CostItem("system node's disk, gp3", nodes.disk_gib, "GiB", disk)
        if network.vpc_id == "" and network.nat == "none":
            endpoints = len(aws_facts.PRIVATE_SERVICES) * network.zones
            price = _fixed(endpoints * hour["interface_endpoint"])
            yield CostItem("interface endpoints", endpoints, "endpoint", price)
        elif network.vpc_id == "":
            gateways = network.zones if network.nat == "per-az" else 1
            price = _fixed(gateways * (hour["nat"] + hour["public_ipv4"]))
            yield CostItem("NAT gateway with its address", gateways, "gateway", price)
        logs = prices["logs_gb_hour"]["control_plane"]
        logs += count * prices["logs_gb_hour"]["node"] if settings.cluster.pod_logs else 0
        price = _fixed(logs * prices["gb"]["CloudWatch logs"])
        yield CostItem("CloudWatch logs", 1000 * logs, "MB an hour, assumed", price)
        if settings.bastion.enabled:
            yield _machines("bastion", settings.bastion.instance_type, 1, unit="machine")
    stored = ("EFS storage", "EFS backups") if settings.storage.backup else ("EFS storage",)
    for name in stored if stored_gb > 0 else ():
        price = _fixed(stored_gb * prices["gb_month"][name] / HOURS_PER_MONTH)
        yield CostItem(name, stored_gb, "GB", price)
    if settings.kms.key_arn == "":
        yield CostItem("KMS key", 1, "key", _fixed(month["kms_key"] / HOURS_PER_MONTH))
    yield CostItem("Route53 zone", 1, "zone", _fixed(month["hosted_zone"] / HOURS_PER_MONTH))


def total_per_hour(listed: Iterable[CostItem]) -> Dollars:
    """Return the sum of the items' costs in dollars an hour; items without a price are omitted."""
    return sum((part.per_hour for part in listed if part.per_hour is not None), Dollars(0, 0))
