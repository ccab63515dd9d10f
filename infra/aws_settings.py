"""The settings of target aws, part by part. Read by `settings.py`. Imports no pulumi."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from infra import versions
from infra.reading import choice, rule
from infra.rules import ADMIN, KEY_ARN, POLICY_ARN, ZONE, blank_or, count, is_network, network


@dataclass(frozen=True)
class Network:
    """The stack's own VPC, or an existing one by `vpcId` and `subnetIds`."""

    vpc_cidr: str = network("10.0.0.0/16")
    service_cidr: str = network("172.20.0.0/16")
    zones: int = count(2, 2, 3, "EKS needs subnets in two zones, and a fourth adds nothing but cost")
    availability_zones: tuple[str, ...] = ()
    nat: str = choice(
        "single", "single", "per-az", "none", reason="private nodes reach the internet only by NAT"
    )
    vpc_id: str = rule(
        "",
        lambda value: re.fullmatch(r"(vpc-[0-9a-f]+)?", value) is not None,
        "the id of a VPC: vpc-…",
        "an existing network is named by its id",
        "leave it empty for an own network",
    )
    subnet_ids: tuple[str, ...] = rule(
        (),
        lambda ids: (
            all(re.fullmatch(r"subnet-[0-9a-f]+", value) for value in ids) and len(set(ids)) == len(ids)
        ),
        "different subnet ids: subnet-…",
        "existing subnets are named by their ids",
        "list at least two private subnets of different zones",
    )


@dataclass(frozen=True)
class Cluster:
    """The EKS control plane, who may use it, and from where."""

    version: str = rule(
        versions.KUBERNETES,
        lambda value: re.fullmatch(r"1\.\d{2}", value) is not None,
        'a Kubernetes minor version in quotes, such as "1.35"',
        "AWS takes no patch version, and an unquoted 1.30 would be read as 1.3",
        f'write "{versions.KUBERNETES}"',
    )
    admins: tuple[str, ...] = rule(
        (),
        lambda values: all(ADMIN.fullmatch(value) for value in values),
        "IAM roles or users: an ARN, role/NAME or user/NAME",
        "EKS takes no session (arn:aws:sts::…:assumed-role/…) as a principal of an access entry",
        "name the role itself, such as role/Admin",
    )
    viewers: tuple[str, ...] = rule(
        (),
        lambda values: all(ADMIN.fullmatch(value) for value in values),
        "IAM roles or users: an ARN, role/NAME or user/NAME",
        "they get read access only, as a pull request's preview needs",
        "name the role itself, such as role/preview",
    )
    public_cidrs: tuple[str, ...] = rule(
        (),
        lambda values: all(is_network(value) for value in values),
        "IPv4 networks in CIDR form",
        "they are who may reach the API server from outside; none makes it private",
        "write your office's or CI's address, such as 203.0.113.7/32",
    )
    open_to_world: bool = False
    log_retention_days: int = rule(
        90,
        lambda days: (
            days in (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 3653)
        ),
        "a period that CloudWatch knows, such as 30, 90 or 365",
        "control-plane logs would otherwise be kept, and paid, for ever",
        "use 90",
    )


@dataclass(frozen=True)
class Nodes:
    """The managed node group. `desired` may change in place: 1 → 3 replaces nothing."""

    instance_types: tuple[str, ...] = rule(
        ("m6i.large",),
        lambda types: (
            len(types) > 0 and all(re.fullmatch(r"[a-z0-9-]+\.[a-z0-9]+", value) for value in types)
        ),
        "at least one instance type, such as m6i.large",
        "the node group needs to know what to start",
        "use [m6i.large]",
    )
    min: int = count(1, 0, 1000, "a node group's size")
    desired: int = count(3, 0, 1000, "a node group's size")
    max: int = count(3, 1, 1000, "a node group's size")
    disk_gib: int = count(
        50, 20, 16384, "images, logs and staged shards need some 10 GiB; gp3 ends at 16 TiB"
    )
    capacity: str = choice(
        "ON_DEMAND", "ON_DEMAND", "SPOT", reason="spot nodes may be taken away, which restarts the gang"
    )
    ssh_key_name: str = ""
    placement_group: bool = False
    single_zone: bool = False


@dataclass(frozen=True)
class Dns:
    """Private zone of the network, and the API server's optional name in a public one."""

    zone: str = rule(
        "paddle.internal",
        lambda value: len(value) <= 253 and ZONE.fullmatch(value) is not None,
        "a lower-case domain name of at least two labels",
        "a single label resolves differently on each system",
        "use a name such as paddle.internal",
    )
    public_zone_id: str = rule(
        "",
        lambda value: re.fullmatch(r"[A-Z0-9]{0,32}", value) is not None,
        "the id of a Route53 hosted zone, such as Z0123456789ABC",
        "the external name's record is written there",
        "take the id from the zone's page, or leave both empty",
    )
    external_name: str = rule(
        "",
        blank_or(ZONE),
        "a lower-case domain name",
        "it becomes a CNAME of the API server",
        "use a name such as paddle.example.com",
    )


@dataclass(frozen=True)
class Artifacts:
    """The bucket. `uploads` puts local files into it: object key → path relative to the project."""

    uploads: dict[str, str] = field(default_factory=dict)
    keep_versions_days: int = count(30, 1, 3650, "older versions of an object are removed after this")


@dataclass(frozen=True)
class Kms:
    """`keyArn` uses a key that is there; it is never changed nor destroyed."""

    key_arn: str = rule(
        "",
        blank_or(KEY_ARN),
        "the ARN of a KMS key (no alias)",
        "EKS, EFS and EBS refer to keys by ARN",
        "use arn:aws:kms:REGION:ACCOUNT:key/ID, or leave it empty for an own key",
    )


@dataclass(frozen=True)
class Bastion:
    """A machine that mounts the file system, reached by Session Manager only."""

    enabled: bool = False
    instance_type: str = "t3.micro"


@dataclass(frozen=True)
class Iam:
    """What an account may demand of every role."""

    permissions_boundary: str = rule(
        "",
        blank_or(POLICY_ARN),
        "the ARN of an IAM policy",
        "every role gets it as its boundary",
        "use arn:aws:iam::ACCOUNT:policy/NAME, or leave it empty",
    )
    path: str = rule(
        "/",
        lambda value: re.fullmatch(r"/([\w+=,.@-]+/)*", value) is not None,
        "a path that begins and ends with a slash",
        "IAM takes no other path",
        "use / or /teams/paddle/",
    )
