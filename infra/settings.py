"""The settings of a stack: their defaults, meanings and rules, how they are read, and how mistakes are reported.

`Settings` and its sections are pydantic models. A field has its default, its meaning and its limits. The method
`problems` of a section checks the rules between the fields of this section, and `Settings.problems` checks the rules
between sections.

`load_settings` reads the settings, and `SettingsError` lists every mistake. docs/tables.py generates the table in
docs/reference/settings.md from the models. `python -m infra.settings` generates the section `config:` of Pulumi.yaml.
This module imports no pulumi.
"""

from __future__ import annotations

import difflib
import ipaddress
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from infra import aws_facts

PROJECT = "paddle-training"


@dataclass(frozen=True)
class Problem:
    """One mistake in the settings: a key, its value, and a text about the allowed values.

    The text says what is allowed, then why, and ends with `Fix: …`.
    """

    key: str
    value: object
    text: str

    @property
    def fix(self) -> str:
        """Return how to fix the mistake."""
        return self.text.partition("Fix: ")[2]

    @property
    def reason(self) -> str:
        """Return why the value is not allowed."""
        return self.text.partition(": ")[2].partition(". Fix: ")[0]

    def __str__(self) -> str:
        shown = "not set" if self.value is None else repr(self.value)
        return f"{self.key} is {shown}, but must be {self.text}".replace(" Fix: ", "\n    Fix: ")


class SettingsError(ValueError):
    """The settings are invalid; the text lists every problem. The program raises it before it registers a resource."""

    def __init__(self, problems: Sequence[Problem] = (), *, text: str = "") -> None:
        """Compose the message from `problems`. A `text` that is not empty is the message instead.

        Such a text is the output of a tool that found the mistakes, for example helm.
        """
        self.problems = tuple(problems)
        count = "1 setting is" if len(self.problems) == 1 else f"{len(self.problems)} settings are"
        listing = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(text or f"{count} invalid; no resource was created or changed.\n{listing}")


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


def is_open(cidr: str) -> bool:
    """Return whether a network counts as the whole internet: it is /7 or larger, such as 0.0.0.0/0."""
    return ipaddress.IPv4Network(cidr).prefixlen < 8


# An RFC 1123 label: the only form that Kubernetes accepts as the name of a namespace or release.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_ZONE = rf"^({_LABEL}(\.{_LABEL})+)?$"
_ARN = r"arn:aws[a-z-]*"
_ACCOUNT = r"[0-9]{12}"
_PATH_CHARACTERS = r"[a-zA-Z0-9_+=,.@/-]+"
_Cidr = Annotated[str, AfterValidator(_check_network)]
_Principal = Annotated[str, Field(pattern=rf"^({_ARN}:iam::{_ACCOUNT}:)?(role|user)/{_PATH_CHARACTERS}$")]
# AWS allows VPCs of /16 to /28. A /22 leaves 123 addresses in a private subnet, which pods use as well.
LARGEST_VPC = 16
SMALLEST_VPC = 22
# EKS allows service networks of /12 to /24, in private ranges.
LARGEST_SERVICE = 12
SMALLEST_SERVICE = 24
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
# Spot capacity varies by type, so spot nodes get several types of the same size to choose from.
SPOT_TYPES = ("m6i.large", "m6a.large", "m5.large", "m5a.large", "m7i.large", "m7a.large")


class Section(BaseModel):
    """Base class of a mapping of settings. All keys are in camelCase and optional.

    Unknown keys are rejected, and values are not converted to another type. The docstring of a field describes the
    setting. A paragraph of this docstring that begins with "Must be" is the message about an invalid value. Without
    such a paragraph, and for a setting whose value has a wrong type, the message is pydantic's own.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    def problems(self) -> Iterator[Problem]:
        """Yield a problem for each violated rule between the fields. The keys are relative to this mapping."""
        yield from ()

    @model_validator(mode="after")
    def check_rules(self) -> Self:
        """Check the rules between the fields, and return this section. pydantic has checked each field before.

        Raises:
            SettingsError: `problems` found violated rules; the error contains all of them.
        """
        if found := list(self.problems()):
            raise SettingsError(found)
        return self

    def problem(self, key: str, text: str, *value: object) -> Problem:
        """Return a Problem of the setting `key`, such as `nodes.min`, with the value that the setting has.

        If `value` is passed, the Problem has this value instead.
        """
        found: Any = self.model_dump(mode="json", by_alias=True)
        for part in key.split("."):
            found = found[part]
        return Problem(key, value[0] if value else found, text)


class KubeconfigSettings(Section):
    """The existing cluster of a stack with target `kubeconfig`. No other kubeconfig is read."""

    path: str = ""
    """Path of the kubeconfig file."""
    context: str = ""
    """Context in this file that selects the cluster."""


class NamespaceSettings(Section):
    """The Kubernetes namespace of the Helm release."""

    name: str = Field(default="paddle", pattern=rf"^{_LABEL}$")
    """Name of the namespace.

    Must be a DNS label of lower-case letters: Kubernetes accepts no other name. Fix: use for example paddle.
    """
    create: bool = True
    """Create the namespace. With `false` it must exist, and the program neither labels nor removes it."""


class ReleaseSettings(Section):
    """The Helm release of the chart `paddle-training`."""

    name: str = Field(default="paddle-training", pattern=rf"^{_LABEL}$", max_length=53)
    """Name of the release.

    Must be a DNS label of at most 53 characters: helm accepts no other release name. Fix: use for example
    paddle-training.
    """
    wait: bool = False
    """`pulumi up` waits until data Job and training Job are complete. With `false` it returns when they exist."""
    keep_manual_values: bool = False
    """`pulumi up` keeps chart values that somebody changed with `helm upgrade`. With `false` it resets them."""


class StorageSettings(Section):
    """The shared storage, on which all pods read and write data, checkpoints and models."""

    type: Literal["efs-csi", "nfs", "hostPath", "existingClaim"] = "efs-csi"
    """How the pods mount the storage: EFS driver, NFS, a folder of each node, or an existing claim
    (PersistentVolumeClaim). With `efs-csi`, the file system requires TLS, IAM and the access point of every client;
    with `nfs` it requires nothing, and whoever reaches it is root on all files.
    """
    protect: bool = True
    """`pulumi destroy` keeps file system, bucket, registry, key and logs (target `aws`)."""
    adopt: dict[
        Annotated[str, Field(pattern=r"^(fileSystem|accessPoint|bucket|registry|key)$")],
        Annotated[str, Field(min_length=1)],
    ] = {}
    """Ids of the resources that a destroy kept, by the keys `fileSystem`, `accessPoint`, `bucket`, `registry` and
    `key`: the next `pulumi up` uses them again. `make kept` prints the commands that set them.

    Must be ids under fileSystem, accessPoint, bucket, registry and key: the next `pulumi up` imports these resources,
    which an earlier `pulumi destroy` kept. Fix: run the commands that `make kept` prints.
    """
    path: str = Field(default="", pattern=r"^(/.*)?$")
    """With type `hostPath` the folder on each node; with `nfs` the exported folder.

    Must be an absolute path: it is a path on the nodes, or on the NFS server. Fix: begin it with a slash.
    """
    server: str = ""
    """With type `nfs` the name or address of the server; empty: the EFS file system of the stack."""
    claim: str = Field(default="", pattern=rf"^({_LABEL})?$")
    """With type `existingClaim` the name of the claim.

    Must be a DNS label: it is the name of a PersistentVolumeClaim. Fix: use the claim's metadata.name.
    """
    throughput: Literal["elastic", "bursting"] = "elastic"
    """Throughput mode of the EFS file system."""
    backup: bool = False
    """Daily backups of the EFS file system, shards included; AWS Backup keeps each for 35 days."""
    archive_after_days: Literal[0, 1, 7, 14, 30, 60, 90, 180, 270, 365] = 30
    """Days without access after which EFS moves files to cheaper storage; 0: never.

    Must be 0 (never), 1, 7, 14, 30, 60, 90, 180, 270 or 365 days: EFS moves files to cheaper storage when nobody has
    read them for one of these periods. Fix: use for example 30.
    """

    def problems(self) -> Iterator[Problem]:
        if self.type == "hostPath" and self.path == "":
            yield self.problem(
                "path", "a folder that all nodes share: pods mount it. Fix: set storage.path to it"
            )
        if self.type == "existingClaim" and self.claim == "":
            limit = "the name of a ReadWriteMany PersistentVolumeClaim"
            yield self.problem("claim", f"{limit}: pods mount it. Fix: set storage.claim to it")


class NetworkSettings(Section):
    """The network of the cluster (target `aws`): a new VPC, or an existing one."""

    vpc_cidr: _Cidr = "10.0.0.0/16"
    """Address range of the new VPC.

    Must be an IPv4 network in CIDR notation without host bits: AWS accepts no other form. Fix: use for example
    10.0.0.0/16.
    """
    service_cidr: _Cidr = "172.20.0.0/16"
    """Address range of Kubernetes Services.

    Must be an IPv4 network in CIDR notation without host bits: AWS accepts no other form. Fix: use for example
    172.20.0.0/16.
    """
    zones: int = Field(default=2, ge=2, le=3)
    """Number of availability zones with subnets.

    Must be 2 to 3: EKS requires two zones, and a fourth adds only cost. Fix: use a number from 2 to 3.
    """
    availability_zones: tuple[str, ...] = ()
    """Availability zones by name, instead of `zones`."""
    nat: Literal["single", "per-az", "none"] = "single"
    """NAT gateways, through which nodes reach the internet: one for the VPC, one per zone, or none. With `none` nodes
    reach only the AWS services that the program needs, through endpoints in the VPC.
    """
    vpc_id: str = Field(default="", pattern=r"^(vpc-[0-9a-f]+)?$")
    """Id of an existing VPC, instead of a new one.

    Must be the id of a VPC, vpc-…: AWS identifies VPCs by it. Fix: use the id, or an empty text to create a VPC.
    """
    subnet_ids: tuple[Annotated[str, Field(pattern=r"^subnet-[0-9a-f]+$")], ...] = ()
    """Ids of the subnets of the existing VPC.

    Must be subnet ids, subnet-…: AWS identifies subnets by them. Fix: use ids such as subnet-0a1b2c3d.
    """

    def problems(self) -> Iterator[Problem]:
        vpc, service = ipaddress.IPv4Network(self.vpc_cidr), ipaddress.IPv4Network(self.service_cidr)
        if self.vpc_id == "" and not LARGEST_VPC <= vpc.prefixlen <= SMALLEST_VPC:
            why = "AWS allows no larger VPC, and pods need the addresses"
            fix = "use for example 10.0.0.0/16"
            yield self.problem("vpcCidr", f"/{LARGEST_VPC} to /{SMALLEST_VPC}: {why}. Fix: {fix}")
        private = any(service.subnet_of(ipaddress.IPv4Network(block)) for block in _PRIVATE_NETWORKS)
        if not LARGEST_SERVICE <= service.prefixlen <= SMALLEST_SERVICE or not private:
            limit = f"/{LARGEST_SERVICE} to /{SMALLEST_SERVICE} inside {', '.join(_PRIVATE_NETWORKS)}"
            fix = "use for example 172.20.0.0/16"
            yield self.problem("serviceCidr", f"{limit}: EKS accepts no other service network. Fix: {fix}")
        if self.vpc_id == "":
            yield from self.service_network_problems("serviceCidr", self.vpc_cidr)
        ids, listed, zones = self.subnet_ids, self.availability_zones, self.zones
        if (self.vpc_id == "") != (not ids):
            limit, why = (
                "set together with network.vpcId, or not at all",
                "both describe one existing network",
            )
            yield self.problem("subnetIds", f"{limit}: {why}. Fix: set both or remove both")
        elif ids and len(set(ids)) < max(2, len(ids)):
            limit, why = "at least two different subnets", "EKS requires subnets in two zones"
            yield self.problem("subnetIds", f"{limit}: {why}. Fix: add a subnet of another zone")
        if listed and (len(listed) != zones or len(set(listed)) != len(listed)):
            limit, why = f"network.zones ({zones}) different zones", "each zone gets its subnets"
            yield self.problem("availabilityZones", f"{limit}: {why}. Fix: list {zones} zones")

    def service_network_problems(self, key: str, vpc_cidr: str) -> Iterator[Problem]:
        """Yield a problem with the key `key` if the network of Kubernetes Services overlaps `vpc_cidr`."""
        if ipaddress.IPv4Network(self.service_cidr).overlaps(ipaddress.IPv4Network(vpc_cidr)):
            why = (
                "EKS rejects overlapping networks, because an address could belong to a pod and to a Service"
            )
            fix = "use another network, for example 172.20.0.0/16"
            text = f"a network outside the VPC's {vpc_cidr}: {why}. Fix: {fix}"
            yield Problem(key, self.service_cidr, text)


class ClusterSettings(Section):
    """The EKS cluster (target `aws`)."""

    # The newest EKS version in standard support at the time of writing (until 2027-03-27; 1.34: 2026-12-02).
    # Only a default: newer versions are passed to AWS unchecked.
    version: str = Field(default="1.35", pattern=r"^1\.[0-9]{2}$")
    """Kubernetes version of EKS.

    Must be a minor version in quotes: EKS accepts no patch version. Fix: write it as "1.35".
    """
    admins: tuple[_Principal, ...] = ()
    """IAM roles or users that administer the cluster; include the one that deploys.

    Must be IAM roles or users: EKS accepts no session (assumed-role) as a principal. Fix: use the role, for example
    role/Admin.
    """
    viewers: tuple[_Principal, ...] = ()
    """IAM roles or users that may look at everything except Secrets.

    Must be IAM roles or users: EKS accepts no session (assumed-role) as a principal. Fix: use the role, for example
    role/Admin.
    """
    public_cidrs: tuple[_Cidr, ...] = ()
    """Address ranges that may reach the API server; empty: only the VPC.

    Must be IPv4 networks in CIDR notation without host bits: AWS accepts no other form. Fix: use for example
    203.0.113.0/24.
    """
    open_to_world: bool = False
    """Must be `true` if `publicCidrs` contains a network larger than /8, such as `0.0.0.0/0`."""
    log_retention_days: Literal[
        1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 3653
    ] = 90
    """Days to keep the logs of the control plane and of the pods in CloudWatch.

    Must be a number of days that CloudWatch accepts: these are 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400,
    545, 731, 1096, 1827 and 3653. Fix: use for example 30, 90 or 365.
    """
    pod_logs: bool = False
    """Send the logs of all pods and nodes to CloudWatch, without metrics."""
    upgrade_addons: bool = False
    """Each `up` upgrades the EKS add-ons to AWS' default version. `false`: they keep theirs, except in an upgrade of
    `cluster.version`.
    """

    def problems(self) -> Iterator[Problem]:
        seen = set()
        for key, names in (("admins", self.admins), ("viewers", self.viewers)):
            for name in names:
                part = name.rpartition(":")[2]
                if part in seen:
                    limit = "each role and user once in cluster.admins and cluster.viewers"
                    why = "EKS allows one access entry for each principal, and the program names it after role or user"
                    yield self.problem(key, f"{limit}: {why}. Fix: list it once", name)
                seen.add(part)
        for network in self.public_cidrs:
            if is_open(network) and not self.open_to_world:
                limit = "a network of /8 or smaller, unless cluster.openToWorld is true"
                why = "it would open the API server to the whole internet"
                fix = "list your addresses, or set cluster.openToWorld to true"
                yield self.problem("publicCidrs", f"{limit}: {why}. Fix: {fix}", network)


class NodesSettings(Section):
    """The machines on which the pods run (target `aws`), in managed node groups."""

    capacity: Literal["ON_DEMAND", "SPOT"] = "ON_DEMAND"
    """On-demand instances, or spot instances (cheaper, but AWS may reclaim them)."""
    instance_types: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9]+$")], ...] = Field(
        default_factory=lambda given: SPOT_TYPES if given.get("capacity") == "SPOT" else SPOT_TYPES[:1]
    )
    """EC2 instance types, either all with GPUs (such as `g6.xlarge`) or all without. With `SPOT` the default is six
    types of one size.

    Must be EC2 instance types: names of instance types have the form FAMILY.SIZE. Fix: use for example [m6i.large].
    """
    min: int = Field(default=1, ge=0, le=1000)
    """Smallest number of nodes.

    Must be 0 to 1000: EKS limits the size of a node group. Fix: use a number from 0 to 1000.
    """
    desired: int = Field(default=3, ge=0, le=1000)
    """Number of nodes; has no effect with `auto`.

    Must be 0 to 1000: EKS limits the size of a node group. Fix: use a number from 0 to 1000.
    """
    max: int = Field(default=3, ge=1, le=1000)
    """Largest number of nodes. With `auto` and `singleZone: false`, each zone may have this number.

    Must be 1 to 1000: EKS limits the size of a node group. Fix: use a number from 1 to 1000.
    """
    auto: bool = False
    """The cluster autoscaler adds nodes for pending pods and removes empty ones, between `min` and `max`."""
    fallback: bool = False
    """With `auto` and `SPOT`: on-demand nodes of the same types, up to `max`, while EC2 has no spot capacity."""
    disk_gib: int = Field(default=50, ge=20, le=16384)
    """Disk of a node in GiB.

    Must be 20 to 16384: images, logs and shards need about 10 GiB, and gp3 has at most 16 TiB. Fix: use a number from
    20 to 16384.
    """
    ami_release: str = Field(default="", pattern=r"^(newest|[0-9]+\.[0-9]+\.[0-9]+-[0-9]{8})?$")
    """Release of the machine image. Empty: existing nodes keep theirs until `cluster.version` changes. `newest`: the
    newest one at each `pulumi up`; another release replaces all nodes.

    Must be a release of the EKS machine image, newest, or an empty text: another release replaces all nodes, one by
    one. Fix: use a release such as 1.35.2-20261109, newest, or an empty text, which keeps the release of the nodes.
    """
    ssh_key_name: str = ""
    """EC2 key pair for SSH; empty: Session Manager only."""
    placement_group: bool = False
    """Place all nodes close together (cluster placement group)."""
    # Parameter servers and trainers exchange kilobytes per row, and AWS charges traffic between zones.
    single_zone: bool = True
    """All nodes in the first availability zone: AWS charges traffic between zones. `false`: a node group in each zone.
    """

    @property
    def is_arm(self) -> bool:
        """Return whether the nodes have Graviton processors."""
        return aws_facts.is_arm(self.instance_types[0])

    @property
    def has_gpus(self) -> bool:
        """Return whether the nodes have GPUs."""
        return any(map(aws_facts.has_gpus, self.instance_types))

    @property
    def has_system_group(self) -> bool:
        """Return whether add-ons run on their own small node group, because other nodes may be absent or have GPUs."""
        return self.auto or self.has_gpus

    def without_system_group(self) -> tuple[str, str]:
        """Return the setting of `nodes` that requires the small system node, and a value that would not require it.

        Both are texts for messages.
        """
        return ("auto", "false") if self.auto else ("instanceTypes", "no GPU types")

    def problems(self) -> Iterator[Problem]:
        # With auto, the autoscaler decides about the number of nodes.
        for low, high in itertools.pairwise(("min", "max") if self.auto else ("min", "desired", "max")):
            if getattr(self, low) > (most := getattr(self, high)):
                limit, why = f"at most nodes.{high} ({most})", "a node group requires min <= desired <= max"
                yield self.problem(low, f"{limit}: {why}. Fix: lower nodes.{low} or raise nodes.{high}")
        yield from self._type_problems()
        burstable = [kind for kind in self.instance_types if kind.startswith("t")]
        if self.placement_group and not self.single_zone:
            limit, why = "false, unless nodes.singleZone is true", "a placement group lies in one zone"
            yield self.problem("placementGroup", f"{limit}: {why}. Fix: set nodes.singleZone to true")
        if self.placement_group and burstable:
            limit, why = (
                "no burstable type with nodes.placementGroup",
                "EC2 starts no burstable instance there",
            )
            yield self.problem(
                "instanceTypes", f"{limit}: {why}. Fix: use for example m6i.large", burstable[0]
            )
        if self.placement_group and self.has_system_group:
            key, other = self.without_system_group()
            why = f"the small system node that nodes.{key} adds cannot start in a placement group"
            fix = f"set nodes.placementGroup to false, or nodes.{key} to {other}"
            yield self.problem(key, f"{other} with nodes.placementGroup: {why}. Fix: {fix}")
        if self.fallback and not (self.auto and self.capacity == "SPOT"):
            limit = "false, unless nodes.auto is true and nodes.capacity is SPOT"
            why = "only the autoscaler adds the fallback nodes"
            fix = "set nodes.auto to true and nodes.capacity to SPOT, or nodes.fallback to false"
            yield self.problem("fallback", f"{limit}: {why}. Fix: {fix}")

    def _type_problems(self) -> Iterator[Problem]:
        types, families = self.instance_types, aws_facts.GPU_FAMILIES
        with_gpus = [kind for kind in types if aws_facts.has_gpus(kind)]
        unknown = [kind for kind in with_gpus if kind.partition(".")[0] not in families]
        if not types:
            limit, why = "at least one instance type", "EKS starts nodes of these types"
            yield self.problem("instanceTypes", f"{limit}: {why}. Fix: use for example [m6i.large]")
        elif len({aws_facts.is_arm(kind) for kind in types}) > 1:
            limit, why = "types of one processor architecture", "the launcher image is built for one"
            fix = "list either Intel and AMD types or Graviton types"
            yield self.problem("instanceTypes", f"{limit}: {why}. Fix: {fix}")
        elif unknown:
            limit = f"types without GPUs, or of {', '.join(families)}"
            why = "other types with GPUs need another machine image or device plugin, or an image for arm64 (g5g)"
            yield self.problem("instanceTypes", f"{limit}: {why}. Fix: use for example g6.xlarge", unknown[0])
        elif 0 < len(with_gpus) < len(types):
            limit, why = "only types with GPUs, or only types without", "a node group has one machine image"
            fix = f"remove either {', '.join(with_gpus)} or the other types"
            yield self.problem("instanceTypes", f"{limit}: {why}. Fix: {fix}")


class DnsSettings(Section):
    """DNS names of the API server and of the file system (target `aws`)."""

    zone: str = Field(default="", pattern=_ZONE, max_length=253)
    """Name of the private zone, which only the VPC can resolve. Empty: `paddle.internal`; in an existing VPC, in which
    other stacks may be, `<project>-<stack>.internal`.

    Must be a lower-case domain name of at least two labels, or an empty text: a name of one label may resolve
    elsewhere. Fix: use for example paddle.internal.
    """
    public_zone_id: str = Field(default="", pattern=r"^[A-Z0-9]{0,32}$")
    """Id of an existing public hosted zone, in which `externalName` is created.

    Must be the id of a hosted zone: the record is written there. Fix: use an id such as Z012ABC.
    """
    external_name: str = Field(default="", pattern=_ZONE, max_length=253)
    """Public DNS name of the API server.

    Must be a lower-case domain name: it becomes a CNAME record. Fix: use for example api.example.com.
    """

    def problems(self) -> Iterator[Problem]:
        if (self.external_name == "") != (self.public_zone_id == ""):
            limit = "set together with dns.publicZoneId, or not at all"
            why = "the name becomes a record of that zone"
            yield self.problem("externalName", f"{limit}: {why}. Fix: set both or remove both")


class ArtifactsSettings(Section):
    """The S3 bucket for data and exported models (target `aws`)."""

    uploads: dict[str, str] = {}
    """Files that `pulumi up` uploads to the bucket: object key → path of the local file."""
    keep_versions_days: int = Field(default=30, ge=1, le=3650)
    """Days to keep old versions of replaced objects.

    Must be 1 to 3650: older versions are removed after this time. Fix: use a number from 1 to 3650.
    """

    def problems(self) -> Iterator[Problem]:
        names: dict[str, str] = {}
        for key in self.uploads:
            other = names.setdefault(key.replace("/", "-"), key)  # as in kept_data.py
            if other != key:
                limit = f"a key that differs from {other} in more than / and -"
                why = "both have the same Pulumi name"
                yield self.problem("uploads", f"{limit}: {why}. Fix: rename one of the two keys", key)


class KmsSettings(Section):
    """The key that encrypts file system, bucket, registry, disks and Kubernetes Secrets (target `aws`)."""

    key_arn: str = Field(default="", pattern=rf"^({_ARN}:kms:[a-z0-9-]+:{_ACCOUNT}:key/[a-zA-Z0-9_-]+)?$")
    """ARN of an existing key, which is never destroyed; empty: the stack creates one.

    Must be the ARN of a KMS key, not of an alias: EKS, EFS and EBS require key ARNs. Fix: use
    arn:aws:kms:REGION:ACCOUNT:key/ID.
    """


class BastionSettings(Section):
    """A machine for a shell with the shared file system (target `aws`)."""

    enabled: bool = False
    """Create the machine. It has no open port and is reached through AWS Session Manager."""
    instance_type: str = "t3.micro"
    """EC2 instance type of the machine."""


class IamSettings(Section):
    """Properties of the IAM roles that the program creates (target `aws`)."""

    permissions_boundary: str = Field(
        default="", pattern=rf"^({_ARN}:iam::({_ACCOUNT}|aws):policy/{_PATH_CHARACTERS})?$"
    )
    """ARN of the permissions boundary of all roles; empty: none.

    Must be the ARN of an IAM policy: it becomes the permissions boundary of every role. Fix: use
    arn:aws:iam::ACCOUNT:policy/NAME.
    """
    path: str = Field(default="/", pattern=r"^/([a-zA-Z0-9_+=,.@-]+/)*$")
    """Path of all roles.

    Must be a path that begins and ends with a slash: IAM accepts no other path. Fix: use / or for example
    /teams/paddle/.
    """


class BudgetSettings(Section):
    """Alarms about the monthly cost (target `aws`)."""

    dollars: int = Field(default=0, ge=0, le=1_000_000)
    """Budget in dollars per month for everything with the tags of the stack; 0: no budget.

    Must be 0 to 1000000: 0 means no budget. Fix: use a number from 0 to 1000000.
    """
    email: str = Field(default="", pattern=r"^([^@\s]+@[^@\s]+\.[^@\s]+)?$")
    """Address that receives a mail at 80 % and at 100 % of the budget.

    Must be an e-mail address: budget alarms are sent to it. Fix: use an address that somebody reads.
    """

    def problems(self) -> Iterator[Problem]:
        if (self.dollars == 0) != (self.email == ""):
            limit, why = "set together with budget.dollars, or not at all", "an alarm requires both"
            yield self.problem("email", f"{limit}: {why}. Fix: set both or remove both")


class Settings(Section):
    """All settings of a stack. What the training does is defined by chart values (`valuesFiles`)."""

    region: str = Field(default="", alias="aws:region")
    """The AWS region, `aws:region` of the stack."""
    target: Literal["aws", "kubeconfig"] = "aws"
    """aws creates network, EKS, EFS, DNS, bucket and registry; kubeconfig uses an existing cluster."""
    compute: Literal["on", "off"] = "on"
    """off removes cluster, nodes and NAT, and keeps file system, bucket, key, registry and logs."""
    image: str = ""
    """Image of all pods, preferably with a digest. {launcher} is replaced by the digest of the folder launcher/."""
    values_files: tuple[str, ...] = ()
    """Files of chart values, relative to the project; later files override earlier ones. They define the training."""
    values: dict[str, Any] = {}
    """Chart values that override valuesFiles. {bucket} is replaced by the stack's bucket."""
    kubeconfig: KubeconfigSettings = KubeconfigSettings()
    namespace: NamespaceSettings = NamespaceSettings()
    release: ReleaseSettings = ReleaseSettings()
    storage: StorageSettings = StorageSettings()
    network: NetworkSettings = NetworkSettings()
    cluster: ClusterSettings = ClusterSettings()
    nodes: NodesSettings = NodesSettings()
    dns: DnsSettings = DnsSettings()
    artifacts: ArtifactsSettings = ArtifactsSettings()
    kms: KmsSettings = KmsSettings()
    bastion: BastionSettings = BastionSettings()
    iam: IamSettings = IamSettings()
    budget: BudgetSettings = BudgetSettings()
    tags: dict[
        Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_check_tag_key)],
        Annotated[str, Field(max_length=256)],
    ] = Field(default={}, max_length=40)
    """Your own tags for the AWS resources of the stack, except objects in its bucket; the program adds tags that
    identify the stack. A changed tag replaces all nodes, one after the other.

    Must be at most 40 tags, with keys of 1 to 128 characters that do not begin with aws:, and values of at most 256:
    AWS accepts no other tags. Fix: shorten or remove the tag.
    """

    def problem(self, key: str, text: str, *value: object) -> Problem:
        found = super().problem(key, text, *value)
        return Problem(_full_key(key), found.value, text)

    def problems(self) -> Iterator[Problem]:
        yield from self._kubeconfig_problems() if self.target == "kubeconfig" else self._aws_problems()

    def _kubeconfig_problems(self) -> Iterator[Problem]:
        why, fix = "no other kubeconfig is used", "set kubeconfig.path and kubeconfig.context"
        if self.kubeconfig.path == "":
            yield self.problem("kubeconfig.path", f"the path of a kubeconfig file: {why}. Fix: {fix}")
        if self.kubeconfig.context == "":
            yield self.problem("kubeconfig.context", f"the name of a context in that file: {why}. Fix: {fix}")
        if self.image == "":
            limit, fix = "an image that the cluster can pull", "set image, preferably with a digest"
            yield self.problem("image", f"{limit}: all pods run it. Fix: {fix}")
        if self.storage.type == "efs-csi":
            limit, why = "hostPath, nfs or existingClaim", "only target aws creates an EFS file system"
            yield self.problem("storage.type", f"{limit}: {why}. Fix: set storage.type to one of these")
        if self.storage.type == "nfs" and self.storage.server == "":
            limit = "the host name or address of an NFS server"
            yield self.problem(
                "storage.server", f"{limit}: pods mount its export. Fix: set storage.server to it"
            )
        if self.compute == "off":
            why = "this stack does not own an existing cluster, so it cannot stop it"
            yield self.problem("compute", f"on: {why}. Fix: use pulumi destroy instead")

    def _aws_problems(self) -> Iterator[Problem]:
        region, name, key_arn = self.region, self.namespace.name, self.kms.key_arn
        if region == "":
            fix = "pulumi config set aws:region us-west-2"
            yield self.problem(
                "aws:region", f"an AWS region: all resources are created there. Fix: {fix}", None
            )
        for zone in self.network.availability_zones if region else ():
            if zone[:-1] != region or not zone[-1:].isalpha():
                limit, why = f"a zone of {region}", "subnets are created in the stack's region"
                text = f"{limit}: {why}. Fix: use for example {region}a"
                yield self.problem("network.availabilityZones", text, zone)
        if key_arn != "" and region not in ("", key_arn.split(":")[3]):
            why = "services can use only keys of their own region"
            yield self.problem("kms.keyArn", f"a key of {region}: {why}. Fix: use a key of {region}")
        if not self.cluster.admins:
            why = (
                "only listed roles and users can use the cluster, and this program installs the release in it"
            )
            fix = "list the role that deploys, for example role/Admin"
            yield self.problem("cluster.admins", f"at least one IAM role or user: {why}. Fix: {fix}")
        if self.namespace.create and (name == "default" or name.startswith("kube-")):
            limit = "a namespace of your own, if namespace.create is true"
            why = "Kubernetes creates or reserves this one"
            yield self.problem("namespace.name", f"{limit}: {why}. Fix: use for example paddle")
        nodes, network = self.nodes, self.network
        if nodes.has_system_group and network.nat == "none" and network.vpc_id == "":
            key, other = nodes.without_system_group()
            image = "cluster autoscaler" if nodes.auto else "device plugin"
            why = f"the image of the {image} is pulled from outside AWS"
            fix = f"set network.nat to single, or nodes.{key} to {other}"
            yield self.problem(f"nodes.{key}", f"{other} with network.nat none: {why}. Fix: {fix}")


def _full_key(key: str) -> str:
    return key if ":" in key else f"{PROJECT}:{key}"


def read_yaml(path: Path, key: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    `key` is the setting that refers to the file. Error messages contain this key.

    Raises:
        SettingsError: the file does not exist, is not YAML, or contains no mapping.
    """

    def invalid(reason: str) -> SettingsError:
        text = f"a YAML file with a mapping: {reason}. Fix: correct the path or the file"
        return SettingsError([Problem(key, str(path), text)])

    # libyaml's loader takes a tenth of the time of the one in Python, where each read of the chart's values took 0.1 s.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise invalid(f"the file cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise invalid(f"the file is not YAML: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise invalid(f"the file contains a {type(loaded).__name__} instead of a mapping")
    return loaded


def merge_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` merged into it, as helm merges files of values: mappings are merged by key.

    Values of other types, also lists, are replaced. A null in `over` stays a null in the result, because helm needs the
    null to remove the chart's default.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        deeper = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge_values(dict(below or {}), value) if deeper else value
    return merged


def read_stack_config(folder: Path, stack: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings in the file Pulumi.<stack>.yaml of `folder`, as `namespace:key` → value.

    `changes` are texts KEY=VALUE that override settings of the file; VALUE is YAML. A dot in KEY leads into a section,
    as in `nodes.desired`. A KEY without a namespace gets `paddle-training:`.

    Raises:
        SettingsError: the file does not exist or contains no YAML mapping; a change has no key or no `=`, or its VALUE
            is no YAML.
    """
    stacks = sorted(path.name.split(".")[1] for path in folder.glob("Pulumi.*.yaml"))
    if stack not in stacks:
        why, fix = f"there is no Pulumi.{stack}.yaml", "copy Pulumi.dev.yaml, or use STACK=dev"
        text = f"one of {', '.join(stacks)}: {why}. Fix: {fix}"
        raise SettingsError([Problem("STACK", stack, text)])
    config = read_yaml(folder / f"Pulumi.{stack}.yaml", "STACK").get("config") or {}
    found = {_full_key(key): value for key, value in config.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        if "" in (name, equals):
            limit = "KEY=VALUE: a change has a key and a value. Fix: write for example nodes.desired=1"
            raise SettingsError([Problem("SET", change, limit)])
        first, *below = name.split(".")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            limit = f"KEY=VALUE with a VALUE in YAML: {' '.join(str(error).split())}"
            raise SettingsError(
                [Problem("SET", change, f"{limit}. Fix: write for example nodes.desired=1")]
            ) from None
        for key in reversed(below):
            value = {key: value}
        found = merge_values(found, {_full_key(first): value})
    return found


# Settings whose text is no JSON.
_TEXT_KEYS = ("aws:region", "target", "compute", "image")
# Spellings of on and off in other tools and in YAML 1.1.
_COMPUTE_ALIASES = {"true": "on", "false": "off"}
# Settings of the AWS provider that select its credentials; only the provider reads them.
_PROVIDER_CREDENTIALS = (
    *("profile", "accessKey", "secretKey", "token", "assumeRole", "assumeRoles", "assumeRoleWithWebIdentity"),
    *("sharedConfigFiles", "sharedCredentialsFile", "sharedCredentialsFiles"),
)


def load_settings(config: Mapping[str, Any], secrets: Iterable[str] = ()) -> Settings:
    """Return the validated settings of a stack.

    Args:
        config: `namespace:key` → value. The values come from the stack's file or from the engine, which passes each
            value as text (objects and lists as JSON).
        secrets: the keys of `config` whose values are Pulumi secrets. Encrypted values of a stack's file are found even
            if `secrets` does not list their keys.

    Raises:
        SettingsError: a key is unknown, a value has the wrong type, a rule is violated, a setting is a Pulumi secret,
            or `config` has credentials for the AWS provider, such as `aws:profile`.
    """
    hidden = {*secrets, *(key for key, value in config.items() if _is_encrypted(value))}
    problems = [
        Problem(
            key,
            "(not shown)",
            "without Pulumi secrets: settings become chart values and names, which are plain text in the release and "
            "in AWS. Fix: create a Secret (kubectl create secret generic NAME --from-literal=KEY=…), refer to it in "
            "`values` by extraEnv (valueFrom.secretKeyRef) or data.sourceSecret, and remove the secret with pulumi "
            "config rm",
        )
        for key in sorted(hidden)
        if key.startswith(f"{PROJECT}:")
    ]
    if problems:
        raise SettingsError(problems)  # alone: a message about another mistake could show the secret
    # All tools take the credentials of the environment. A profile has its name only on the machine of one user, and the
    # file of the stack is for all users and for CI.
    problems = [
        Problem(
            f"aws:{name}",
            "(not shown)",
            "not set: only Pulumi's AWS provider would use it, but not `pulumi login`, kubectl and `make push`. Fix: "
            f"pulumi config rm aws:{name}, write a profile to ~/.aws/config, and export AWS_PROFILE=its name",
        )
        for name in _PROVIDER_CREDENTIALS
        if config.get(f"aws:{name}")
    ]
    own = {
        key.removeprefix(f"{PROJECT}:"): value
        for key, value in config.items()
        if key.startswith(f"{PROJECT}:") or (key == "aws:region" and key not in hidden)
    }
    decoded = {key: _decode(key, value) for key, value in own.items()}
    settings, found, invalid = _validate(decoded)
    if invalid and "target" not in invalid:
        # The rules between sections, without the invalid ones: a rule that involves one of them would report nonsense.
        # The target decides which rules apply.
        _, more, _ = _validate({key: value for key, value in decoded.items() if key not in invalid})
        sections = {_full_key(key) for key in invalid}
        found += [problem for problem in more if problem.key.partition(".")[0] not in sections]
    if problems + found or settings is None:
        raise SettingsError(problems + found)
    return settings


def _is_encrypted(value: object) -> bool:
    """Return whether a value of the stack's file contains a Pulumi secret: an object whose only key is `secure`."""
    if isinstance(value, list):
        return any(map(_is_encrypted, value))
    return isinstance(value, dict) and (set(value) == {"secure"} or any(map(_is_encrypted, value.values())))


def _decode(key: str, value: Any) -> Any:
    if key == "compute":
        text = json.dumps(value) if isinstance(value, bool) else value
        return _COMPUTE_ALIASES.get(text, text)
    if not isinstance(value, str) or key in _TEXT_KEYS:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _validate(config: Mapping[str, Any]) -> tuple[Settings | None, list[Problem], set[str]]:
    """Return the settings (None if they are invalid), their problems, and the top-level keys with invalid values.

    A violated rule between sections is a problem, but makes no key invalid.
    """
    try:
        return Settings.model_validate_json(json.dumps(config)), [], set()
    except ValidationError as error:
        # pydantic adds this error for a default that depends on an invalid field.
        errors = [one for one in error.errors() if one["type"] != "default_factory_not_called"]
    # An item of a list is reported as its list, once.
    found = {(problem.key, problem.text): problem for one in errors for problem in _problems_of(config, one)}
    return None, list(found.values()), {str(one["loc"][0]) for one in errors if one["loc"]}


def _problems_of(config: Mapping[str, Any], error: ErrorDetails) -> Iterator[Problem]:
    """Yield the problems in one error of pydantic.

    An error about the rules of a section contains all violated rules of this section. Every other error is one problem.
    """
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, SettingsError):
        section = "".join(f"{part}." for part in error["loc"])
        yield from (Problem(_full_key(f"{section}{p.key}"), p.value, p.text) for p in raised.problems)
        return
    model: type[BaseModel] = Settings
    value: Any = config
    path: list[str] = []
    for part in map(str, error["loc"]):
        fields = {str(field.alias): field for field in model.model_fields.values()}
        path.append(part)
        key, value = ".".join(path), value[part]
        if part not in fields:
            near = difflib.get_close_matches(part, fields, n=1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            listed = ", ".join(sorted(name for name in fields if ":" not in name))
            text = f"one of {listed}: an unknown key would have no effect. Fix: {fix}"
            yield Problem(_full_key(key), value, text)
            return
        field = fields[part]
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        model = field.annotation
    in_item = len(error["loc"]) > len(path)
    _, rule = describe_field(field)
    if rule and (in_item or not error["type"].endswith("_type")):
        yield Problem(_full_key(key), value, rule)
        return
    limit = error["msg"].removeprefix("Input should be ")
    # JSON's words, in which pydantic reports, for a list and a mapping of YAML.
    limit = {"a valid array": "a list", "an object": "a mapping"}.get(limit, limit)
    why = f"{error['input']!r} is of type {type(error['input']).__name__}"
    why = "no other value is supported" if error["type"] == "literal_error" else why
    fix = f"set {key} to {limit}"
    if in_item:
        fix = f"replace {error['input']!r} in {key} by {limit}"
        limit = f"a {'mapping' if isinstance(value, Mapping) else 'list'} in which each value is {limit}"
    yield Problem(_full_key(key), value, f"{limit}: {why}. Fix: {fix} in the stack's file")


def describe_field(field: FieldInfo) -> tuple[str, str]:
    """Return two texts of one line: the meaning of a field, and the rule for its values (`2 to 3: …`).

    The second text is empty if the field has no rule.
    """
    meaning, _, rule = (field.description or "").partition("\n\nMust be ")
    return " ".join(meaning.split()), " ".join(rule.split()).removesuffix(".")


PULUMI_YAML = Path(__file__).resolve().parent.parent / "Pulumi.yaml"
_MARKER = "# The section below is written by `python -m infra.settings`.\n"


def describe_settings() -> Iterator[tuple[str, str, Any, type[Section] | None]]:
    """Yield a tuple for each top-level setting: key, description, default (as a value for YAML), and model.

    The model is the class of the section; None for a setting that is not a section. The setting `aws:region` is left
    out.
    """
    defaults = Settings.model_construct().model_dump(mode="json", by_alias=True)
    for field in Settings.model_fields.values():
        section = field.annotation if isinstance(field.annotation, type) else None
        section = section if section is not None and issubclass(section, Section) else None
        key, text = str(field.alias), (section.__doc__ or "") if section else describe_field(field)[0]
        if ":" not in key:
            yield key, text, defaults[key], section


def pulumi_yaml() -> str:
    """Return the text of Pulumi.yaml with the section `config:`, which `pulumi config` and editors read.

    Every key has a default, because Pulumi treats a key without a default as required. Pulumi has no way to declare the
    keys inside an object, so the description of a section lists them.
    """
    properties = Settings.model_json_schema()["properties"]
    declared = {}
    for key, text, default, section in describe_settings():
        kind = properties[key].get("type", "object")  # a section is a reference to its own schema
        items = {"items": {"type": properties[key]["items"]["type"]}} if kind == "array" else {}
        fields = section.model_fields.values() if section else ()
        description = " ".join([text, *(f"{field.alias}: {describe_field(field)[0]}" for field in fields)])
        declared[key] = {"type": kind, **items, "description": description, "default": default}
    text = PULUMI_YAML.read_text(encoding="utf-8").partition(_MARKER)[0] + _MARKER
    return text + yaml.safe_dump({"config": declared}, sort_keys=False, width=100, allow_unicode=True)


if __name__ == "__main__":
    PULUMI_YAML.write_text(pulumi_yaml(), encoding="utf-8")
