"""What a stack costs an hour, part by part, and what a change does to it. Pure.

Prices are in `prices.yaml`, with their date and region; nothing is asked from AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra import capacity
from infra.settings import Settings

# AWS's own month for prices that are quoted by the month.
HOURS_PER_MONTH = 730

# Interface endpoints of `nat: none` in each zone. A test compares it with infra/network.py, which imports
# the AWS SDK and takes seconds to load.
ENDPOINTS = 11
# What stays with `nodes.auto` while nothing trains; from infra/nodes.py, and compared with it.
SYSTEM_NODE = "t3.medium"


@dataclass(frozen=True)
class Part:
    """One line: `per_hour` in US dollars, or None when the table has no price for it."""

    name: str
    count: float
    unit: str
    per_hour: float | None


@cache
def prices() -> dict[str, Any]:
    """The table: `date`, `region`, `hour`, `month`, `usage`, `instances`."""
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prices.yaml").read_text("utf-8"))
    return loaded


def instance(kind: str) -> float | None:
    """US dollars an hour of an instance on demand, or None when the table does not know its type.

    Within a family the price goes with the size, so the table has one price a family: that of `large`.
    """
    table = prices()["instances"]
    if kind in table["types"]:
        return float(table["types"][kind])
    family, _, size = kind.partition(".")
    machine, large = capacity.machine(kind), table["families_large"].get(family)
    if machine is None or large is None or size == "":
        return None
    return float(large) * machine.cpu / 2


def parts(settings: Settings, count: int | None = None) -> Iterator[Part]:
    """The parts that cost by the hour, whether used or not.

    `count`: nodes; None: as many as the settings ask for, with `nodes.auto` those of a training.
    """
    hour, month = prices()["hour"], prices()["month"]
    network, nodes = settings.network, settings.nodes
    zones = len(network.availability_zones) or network.zones
    on = settings.compute == "on"
    if on:
        yield Part("EKS control plane", 1, "cluster", hour["eks"])
        if count is None:
            count = nodes.max if nodes.auto else nodes.desired
        price = instance(nodes.instance_types[0])
        each = None if price is None else price * count
        spot = " (on demand; spot is cheaper)" if nodes.capacity == "SPOT" else ""
        yield Part(f"nodes, {nodes.instance_types[0]}{spot}", count, "node", each)
        if nodes.auto:
            yield Part(f"system node, {SYSTEM_NODE}", 1, "node", instance(SYSTEM_NODE))
        disks = (count + nodes.auto) * nodes.disk_gib
        yield Part("node disks, gp3", disks, "GiB", disks * month["gp3_gib"] / HOURS_PER_MONTH)
        if network.vpc_id == "":
            gateways = {"single": 1, "per-az": zones, "none": 0}[network.nat]
            if gateways:
                per_gateway = hour["nat"] + hour["public_ipv4"]
                yield Part("NAT gateway with its address", gateways, "gateway", gateways * per_gateway)
            else:
                endpoints = ENDPOINTS * zones
                price = endpoints * hour["interface_endpoint"]
                yield Part("interface endpoints", endpoints, "endpoint", price)
        if settings.bastion.enabled:
            kind = settings.bastion.instance_type
            yield Part(f"bastion, {kind}", 1, "machine", instance(kind))
    if settings.kms.key_arn == "":
        yield Part("KMS key", 1, "key", month["kms_key"] / HOURS_PER_MONTH)
    yield Part("Route53 zone", 1, "zone", month["hosted_zone"] / HOURS_PER_MONTH)


def total(listed: Iterable[Part]) -> float:
    """Sum of the known prices, US dollars an hour."""
    return sum(part.per_hour for part in listed if part.per_hour is not None)


def by_usage() -> list[tuple[str, str]]:
    """What costs by use and so is in no sum: name and price."""
    return [(row["name"], row["price"]) for row in prices()["usage"]]
