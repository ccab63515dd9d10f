"""Types of setting values, such as `Cidr` or `IamPath`: their constraints, and the help for invalid values.

pydantic checks the constraints. `Help` supplies what pydantic's own message lacks: the reason and the fix.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field


@dataclass(frozen=True)
class Help:
    """The text of the message for an invalid value of a type: what is allowed, why, and how to fix it."""

    limit: str
    reason: str
    fix: str


def int_help(low: int, high: int, reason: str) -> Help:
    """Return the help for an integer between two limits, both included."""
    return Help(f"{low} to {high}", reason, f"use a number from {low} to {high}")


def _check_network(value: str) -> str:
    # The constructor raises ValueError for host bits, and accepts an address without mask and masks such as
    # 255.255.0.0, which AWS rejects.
    if str(ipaddress.IPv4Network(value)) != value:
        raise ValueError("AWS accepts only the notation ADDRESS/BITS")
    return value


def _check_tag_key(value: str) -> str:
    if value.startswith("aws:"):
        raise ValueError("AWS reserves tag keys that begin with aws:")
    return value


# An RFC 1123 label: the only form that Kubernetes accepts as the name of a namespace or release.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_ZONE = rf"{_LABEL}(\.{_LABEL})+"
_ARN = r"arn:aws[a-z-]*"
_ACCOUNT = r"[0-9]{12}"
_PATH_CHARACTERS = r"[a-zA-Z0-9_+=,.@/-]+"

Label = Annotated[
    str,
    Field(pattern=rf"^{_LABEL}$"),
    Help("a DNS label of lower-case letters", "Kubernetes accepts no other name", "use for example paddle"),
]
ReleaseName = Annotated[
    str,
    Field(pattern=rf"^{_LABEL}$", max_length=53),
    Help(
        "a DNS label of at most 53 characters",
        "helm accepts no other release name",
        "use for example paddle-training",
    ),
]
ClaimName = Annotated[
    str,
    Field(pattern=rf"^({_LABEL})?$"),
    Help("a DNS label", "it is the name of a PersistentVolumeClaim", "use the claim's metadata.name"),
]
AbsolutePath = Annotated[
    str,
    Field(pattern=r"^(/.*)?$"),
    Help("an absolute path", "it is a path on the nodes, or on the NFS server", "begin it with a slash"),
]
Cidr = Annotated[
    str,
    AfterValidator(_check_network),
    Help(
        "an IPv4 network in CIDR notation without host bits",
        "AWS accepts no other form",
        "use for example 10.0.0.0/16",
    ),
]
Principal = Annotated[
    str,
    Field(pattern=rf"^({_ARN}:iam::{_ACCOUNT}:)?(role|user)/{_PATH_CHARACTERS}$"),
    Help(
        "IAM roles or users",
        "EKS accepts no session (assumed-role) as a principal",
        "use the role, for example role/Admin",
    ),
]
VpcId = Annotated[
    str,
    Field(pattern=r"^(vpc-[0-9a-f]+)?$"),
    Help(
        "the id of a VPC, vpc-…", "AWS identifies VPCs by it", "use the id, or an empty text to create a VPC"
    ),
]
SubnetId = Annotated[
    str,
    Field(pattern=r"^subnet-[0-9a-f]+$"),
    Help("subnet ids, subnet-…", "AWS identifies subnets by them", "use ids such as subnet-0a1b2c3d"),
]
KubernetesVersion = Annotated[
    str,
    Field(pattern=r"^1\.[0-9]{2}$"),
    Help("a minor version in quotes", "EKS accepts no patch version", 'write it as "1.35"'),
]
InstanceType = Annotated[
    str,
    Field(pattern=r"^[a-z0-9-]+\.[a-z0-9]+$"),
    Help(
        "EC2 instance types",
        "names of instance types have the form FAMILY.SIZE",
        "use for example [m6i.large]",
    ),
]
AmiRelease = Annotated[
    str,
    Field(pattern=r"^(newest|[0-9]+\.[0-9]+\.[0-9]+-[0-9]{8})?$"),
    Help(
        "a release of the EKS machine image, newest, or an empty text",
        "another release replaces all nodes, one by one",
        "use a release such as 1.35.2-20261109, newest, or an empty text, which keeps the release of the nodes",
    ),
]
ZoneName = Annotated[
    str,
    Field(pattern=rf"^({_ZONE})?$", max_length=253),
    Help(
        "a lower-case domain name of at least two labels, or an empty text",
        "a name of one label may resolve elsewhere",
        "use for example paddle.internal",
    ),
]
OptionalZoneName = Annotated[
    str,
    Field(pattern=rf"^({_ZONE})?$", max_length=253),
    Help("a lower-case domain name", "it becomes a CNAME record", "use for example api.example.com"),
]
HostedZoneId = Annotated[
    str,
    Field(pattern=r"^[A-Z0-9]{0,32}$"),
    Help("the id of a hosted zone", "the record is written there", "use an id such as Z012ABC"),
]
KeyArn = Annotated[
    str,
    Field(pattern=rf"^({_ARN}:kms:[a-z0-9-]+:{_ACCOUNT}:key/[a-zA-Z0-9_-]+)?$"),
    Help(
        "the ARN of a KMS key, not of an alias",
        "EKS, EFS and EBS require key ARNs",
        "use arn:aws:kms:REGION:ACCOUNT:key/ID",
    ),
]
PolicyArn = Annotated[
    str,
    Field(pattern=rf"^({_ARN}:iam::({_ACCOUNT}|aws):policy/{_PATH_CHARACTERS})?$"),
    Help(
        "the ARN of an IAM policy",
        "it becomes the permissions boundary of every role",
        "use arn:aws:iam::ACCOUNT:policy/NAME",
    ),
]
IamPath = Annotated[
    str,
    Field(pattern=r"^/([a-zA-Z0-9_+=,.@-]+/)*$"),
    Help(
        "a path that begins and ends with a slash",
        "IAM accepts no other path",
        "use / or for example /teams/paddle/",
    ),
]
Email = Annotated[
    str,
    Field(pattern=r"^([^@\s]+@[^@\s]+\.[^@\s]+)?$"),
    Help("an e-mail address", "budget alarms are sent to it", "use an address that somebody reads"),
]
LogRetentionDays = Annotated[
    Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 3653],
    Help(
        "a number of days that CloudWatch accepts",
        "CloudWatch accepts 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827 and 3653",
        "use for example 30, 90 or 365",
    ),
]
ArchiveAfterDays = Annotated[
    Literal[0, 1, 7, 14, 30, 60, 90, 180, 270, 365],
    Help(
        "0 (never), 1, 7, 14, 30, 60, 90, 180, 270 or 365 days",
        "EFS moves files to cheaper storage when nobody has read them for one of these periods",
        "use for example 30",
    ),
]
_AdoptedKind = Annotated[str, Field(pattern=r"^(fileSystem|accessPoint|bucket|registry|key)$")]
Adopted = Annotated[
    dict[_AdoptedKind, Annotated[str, Field(min_length=1)]],
    Help(
        "ids under fileSystem, accessPoint, bucket, registry and key",
        "the next `pulumi up` imports these resources, which an earlier `pulumi destroy` kept",
        "run the commands that `make kept` prints",
    ),
]
_TagKey = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_check_tag_key)]
_TagValue = Annotated[str, Field(max_length=256)]
Tags = Annotated[
    dict[_TagKey, _TagValue],
    Field(max_length=40),
    Help(
        "at most 40 tags; keys of 1 to 128 characters that do not begin with aws:; values of at most 256",
        "AWS accepts no other tags",
        "shorten or remove the tag",
    ),
]
