"""Hourly cost of a stack, part by part, from its settings. Pure.

Prices come from `prices.yaml`, which states their date and region; no call is made to AWS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra import constants, node_capacity
from infra.settings import Settings

# AWS converts monthly prices with this number of hours.
HOURS_PER_MONTH = 730


@dataclass(frozen=True)
class CostItem:
    """One line of the cost table; `per_hour` is in US dollars, or None when `prices.yaml` has no price."""

    name: str
    count: float
    unit: str
    per_hour: float | None

    def __str__(self) -> str:
        price = "not in the table" if self.per_hour is None else f"{self.per_hour:.3f}"
        return f"{price}  ({self.count:g} {self.unit})"


@cache
def read_prices() -> dict[str, Any]:
    """Return `prices.yaml`: keys `date`, `region`, `hour`, `month`, `gb`, `usage`, `instances`."""
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prices.yaml").read_text("utf-8"))
    return loaded


def find_instance(kind: str) -> tuple[float, node_capacity.Size] | None:
    """Return on-demand price (US dollars an hour) and size of an instance type; None when it is unknown."""
    table = read_prices()["instances"]
    if kind in table:
        price, gib, cores = table[kind]
        return price, node_capacity.Size(cores, gib * node_capacity.GIB)
    found = re.fullmatch(r"([a-z0-9]+)\.(?:large|(\d*)xlarge)", kind)
    if found is None or found[1] not in table:
        return None
    price, gib = table[found[1]]
    larges = 1 if found[2] is None else 2 * int(found[2] or 1)
    return price * larges, node_capacity.Size(2 * larges, gib * larges * node_capacity.GIB)


def _machines(name: str, kind: str, count: int, unit: str) -> CostItem:
    known = find_instance(kind)
    return CostItem(f"{name}, {kind}", count, unit, None if known is None else known[0] * count)


def cost_items(settings: Settings, count: int | None = None) -> Iterator[CostItem]:
    """Yield the parts that cost money by the hour, whether used or idle.

    Args:
        count: number of nodes; None takes it from the settings (with `nodes.auto`, the maximum).
    """
    hour, month = read_prices()["hour"], read_prices()["month"]
    network, nodes = settings.network, settings.nodes
    if settings.compute == "on":
        yield CostItem("EKS control plane", 1, "cluster", hour["eks"])
        if count is None:
            count = nodes.max if nodes.auto else nodes.desired
        kind = nodes.instance_types[0]
        spot = " on demand (spot is cheaper)" if nodes.capacity == "SPOT" else ""
        yield _machines(f"nodes{spot}", kind, count, "node")
        if nodes.auto:
            yield _machines("system node", constants.SYSTEM_TYPES[node_capacity.is_arm(kind)][0], 1, "node")
        disks = (count + nodes.auto) * nodes.disk_gib
        yield CostItem("node disks, gp3", disks, "GiB", disks * month["gp3_gib"] / HOURS_PER_MONTH)
        if network.vpc_id == "" and network.nat == "none":
            endpoints = len(constants.PRIVATE_SERVICES) * network.zones
            price = endpoints * hour["interface_endpoint"]
            yield CostItem("interface endpoints", endpoints, "endpoint", price)
        elif network.vpc_id == "":
            gateways = network.zones if network.nat == "per-az" else 1
            price = gateways * (hour["nat"] + hour["public_ipv4"])
            yield CostItem("NAT gateway with its address", gateways, "gateway", price)
        if settings.bastion.enabled:
            yield _machines("bastion", settings.bastion.instance_type, 1, "machine")
    if settings.kms.key_arn == "":
        yield CostItem("KMS key", 1, "key", month["kms_key"] / HOURS_PER_MONTH)
    yield CostItem("Route53 zone", 1, "zone", month["hosted_zone"] / HOURS_PER_MONTH)


def total_per_hour(listed: Iterable[CostItem]) -> float:
    """Return the sum of the known prices, in US dollars an hour."""
    return sum(part.per_hour for part in listed if part.per_hour is not None)
