"""Address arithmetic of the network. Pure.

One block is cut in eight. The first ones become the private subnets, one a zone; the last one is cut in eight
again for the public subnets, which hold nothing but NAT gateways and load balancers. So 10.0.0.0/16 gives
private /19s (8,187 usable addresses) and public /22s, and a third zone may be added later without moving the
first two.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

# AWS takes VPCs of /16 to /28. A /22 leaves 123 addresses in a private subnet; pods take theirs from there.
LARGEST_VPC = 16
SMALLEST_VPC = 22
# EKS takes service networks of /12 to /24, in private ranges.
LARGEST_SERVICE = 12
SMALLEST_SERVICE = 24
MAX_ZONES = 3


@dataclass(frozen=True)
class SubnetPlan:
    """One zone's networks, in CIDR form."""

    private: str
    public: str


def plan(vpc_cidr: str, zones: int) -> tuple[SubnetPlan, ...]:
    """The subnets of `zones` zones. A zone's networks do not depend on how many zones there are.

    Raises:
        ValueError: `vpc_cidr` is no network of /16 to /22, or `zones` is not 1 to 3.
    """
    network = ipaddress.IPv4Network(vpc_cidr)
    if not LARGEST_VPC <= network.prefixlen <= SMALLEST_VPC:
        raise ValueError(f"{vpc_cidr} is not between /{LARGEST_VPC} and /{SMALLEST_VPC}")
    if not 1 <= zones <= MAX_ZONES:
        raise ValueError(f"{zones} zones: must be 1 to {MAX_ZONES}")
    blocks = list(network.subnets(prefixlen_diff=3))
    publics = list(blocks[-1].subnets(prefixlen_diff=3))
    return tuple(SubnetPlan(str(blocks[zone]), str(publics[zone])) for zone in range(zones))


def overlap(one: str, other: str) -> bool:
    """Whether two networks share an address."""
    return ipaddress.IPv4Network(one).overlaps(ipaddress.IPv4Network(other))


def is_open(cidr: str) -> bool:
    """Whether a network is the internet, or so large a part of it that it limits nothing (/7 and larger)."""
    return ipaddress.IPv4Network(cidr).prefixlen < 8
