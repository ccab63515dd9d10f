"""Calculate the subnets of the VPC. Imports no pulumi.

The block of the VPC is split into eight. The first ones are the private subnets, one for each zone. The last
one is split into eight again for the public subnets, which hold only NAT gateways and load balancers. So
10.0.0.0/16 has private /19s (8,187 usable addresses) and public /22s, and a third zone can be added later
without changing the first two.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

# AWS allows VPCs of /16 to /28. A /22 leaves 123 addresses in a private subnet, which pods use as well.
LARGEST_VPC = 16
SMALLEST_VPC = 22
# EKS allows service networks of /12 to /24, in private ranges.
LARGEST_SERVICE = 12
SMALLEST_SERVICE = 24


@dataclass(frozen=True)
class SubnetPlan:
    """The two subnets of one zone, in CIDR notation."""

    private: str
    public: str


def plan_subnets(vpc_cidr: str, zones: int) -> tuple[SubnetPlan, ...]:
    """Return the subnets of each zone. The subnets of a zone do not depend on the number of zones.

    settings_rules.py rejects other sizes than LARGEST_VPC to SMALLEST_VPC, and settings.py more than three zones.
    """
    blocks = list(ipaddress.IPv4Network(vpc_cidr).subnets(prefixlen_diff=3))
    publics = list(blocks[-1].subnets(prefixlen_diff=3))
    return tuple(SubnetPlan(str(blocks[zone]), str(publics[zone])) for zone in range(zones))


def is_open(cidr: str) -> bool:
    """Return whether a network is /7 or larger, such as 0.0.0.0/0: such a network counts as the whole internet."""
    return ipaddress.IPv4Network(cidr).prefixlen < 8
