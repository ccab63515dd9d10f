"""Subnets of the VPC."""

from __future__ import annotations

import ipaddress
import itertools

from hypothesis import given
from hypothesis import strategies as st

from infra.vpc_network import plan_subnets


@given(
    st.integers(16, 22).flatmap(
        lambda bits: st.integers(0, 2**bits - 1).map(
            lambda n: f"{ipaddress.IPv4Address(n << (32 - bits))}/{bits}"
        )
    ),
    st.integers(1, 3),
)
def test_subnets_are_inside_vpc_and_disjoint(block: str, zones: int) -> None:
    plans = plan_subnets(block, zones)
    nets = [ipaddress.IPv4Network(net) for plan in plans for net in plan]
    assert len(plans) == zones
    assert all(net.subnet_of(ipaddress.IPv4Network(block)) for net in nets)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(nets, 2))
    assert all(net.prefixlen <= 28 for net in nets), "AWS allows no subnet smaller than /28"


@given(st.integers(1, 2))
def test_subnets_stay_when_a_zone_is_added(zones: int) -> None:
    assert plan_subnets("10.0.0.0/16", zones) == plan_subnets("10.0.0.0/16", zones + 1)[:zones]
