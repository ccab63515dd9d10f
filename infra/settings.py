"""Every setting of a stack, read in one place into frozen models. Imports no pulumi.

`load` takes the stack's configuration as the engine hands it over and raises one SettingsError that lists
all mistakes. A rule of one value is `limit: reason. Mend`; rules between several settings are in `checks.py`.
The first words of each section's docstring are its row in the README.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from infra import checks, versions
from infra.problems import P, Problem, SettingsError
from infra.reading import Section, count, is_network, read, rule

PROJECT = "paddle-training"

# RFC 1123 label: what Kubernetes takes as the name of a namespace or release.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_ZONE = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})+"
_ARN = r"arn:aws[a-z-]*"
_LOG_DAYS = {1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 3653}
_IDLE_DAYS = {0, 1, 7, 14, 30, 60, 90, 180, 270, 365}
# Spot takes what it has, so that it gets several types of one size to choose from.
SPOT_TYPES = ("m6i.large", "m6a.large", "m5.large", "m5a.large", "m7i.large", "m7a.large")

Label = Annotated[
    str, rule(_LABEL, "a DNS label of lower-case letters: Kubernetes takes no other name. Use paddle")
]
ReleaseName = Annotated[
    Label, rule(r".{1,53}", "a label of at most 53 characters: helm takes no other. Use paddle-training")
]
Claim = Annotated[str, rule(rf"({_LABEL})?", "a DNS label: it is a claim's name. Use its metadata.name")]
Folder = Annotated[
    str, rule(r"(/.*)?", "an absolute path: nodes or the server have it there. Begin it with a slash")
]
Cidr = Annotated[
    str,
    rule(is_network, "an IPv4 network in CIDR form without host bits: AWS takes no other. Use 10.0.0.0/16"),
]
Principal = Annotated[
    str,
    rule(
        rf"({_ARN}:iam::\d{{12}}:)?(role|user)/[\w+=,.@/-]+",
        "IAM roles or users: EKS takes no session (assumed-role) as a principal. Name the role: role/Admin",
    ),
]
VpcId = Annotated[
    str,
    rule(r"(vpc-[0-9a-f]+)?", "a VPC's id, vpc-…: AWS knows it by that. Leave it empty for an own network"),
]
SubnetId = Annotated[
    str, rule(r"subnet-[0-9a-f]+", "subnet ids, subnet-…: AWS knows them by that. Use those")
]
Minor = Annotated[
    str, rule(r"1\.\d{2}", 'a minor version in quotes: AWS takes no patch version. Write it as "1.35"')
]
InstanceType = Annotated[
    str, rule(r"[a-z0-9-]+\.[a-z0-9]+", "instance types: EC2 knows no other names. Use [m6i.large]")
]
AmiRelease = Annotated[
    str,
    rule(
        r"(\d+\.\d+\.\d+-\d{8})?",
        "a release of EKS' machine image: nodes keep it until it changes. Use 1.35.2-20261109, or none",
    ),
]
Zone = Annotated[
    str, rule(_ZONE, "a lower-case domain name of two labels: one resolves anyhow. Use paddle.internal")
]
NoZone = Annotated[
    str, rule(rf"({_ZONE})?", "a lower-case domain name: it becomes a CNAME. Use one such as api.example.com")
]
ZoneId = Annotated[
    str,
    rule(r"[A-Z0-9]{0,32}", "the id of a hosted zone: a record is written there. Use one such as Z012ABC"),
]
KeyArn = Annotated[
    str,
    rule(
        rf"({_ARN}:kms:[a-z0-9-]+:\d{{12}}:key/[\w-]+)?",
        "the ARN of a KMS key, no alias: EKS, EFS and EBS take ARNs. Use arn:aws:kms:REGION:ACCOUNT:key/ID",
    ),
]
PolicyArn = Annotated[
    str,
    rule(
        rf"({_ARN}:iam::(\d{{12}}|aws):policy/[\w+=,.@/-]+)?",
        "the ARN of an IAM policy: roles get it as their boundary. Use arn:aws:iam::ACCOUNT:policy/NAME",
    ),
]
IamPath = Annotated[
    str, rule(r"/([\w+=,.@-]+/)*", "a path from slash to slash: IAM takes no other. Use / or /teams/paddle/")
]
Mail = Annotated[
    str, rule(r"([^@\s]+@[^@\s]+\.[^@\s]+)?", "a mail address: alarms go there. Use one that somebody reads")
]
Size = Annotated[int, count(0, 1000, "a node group's size")]
LogDays = Annotated[
    int, rule(_LOG_DAYS.__contains__, "a period that CloudWatch knows: it takes no other. Use 30, 90 or 365")
]
IdleDays = Annotated[
    int,
    rule(
        _IDLE_DAYS.__contains__,
        "0 (never), 1, 7, 14, 30, 60, 90, 180, 270 or 365: EFS archives after one of these. Use 30",
    ),
]
Tags = Annotated[
    dict[str, str],
    rule(
        lambda own: (
            len(own) <= 40
            and all(0 < len(k) <= 128 and len(v) <= 256 and not k.startswith("aws:") for k, v in own.items())
        ),
        "at most 40 tags, keys without aws: and of 128, values of 256 characters: AWS takes no other. "
        "Shorten or remove it",
    ),
]


class Kubeconfig(Section):
    """path and context of an existing cluster (target kubeconfig). The ambient kubeconfig is never used."""

    path: str = ""
    context: str = ""


class Namespace(Section):
    """name of the namespace; with create false it must be there, and is never labelled nor removed."""

    name: Label = "paddle"
    create: bool = True


class Release(Section):
    """name of the Helm release; wait makes up wait for both Jobs; keepManualValues leaves values alone that
    were set by helm."""

    name: ReleaseName = "paddle-training"
    wait: bool = False
    keep_manual_values: bool = False


class Storage(Section):
    """type efs-csi, nfs, hostPath or existingClaim. protect: destroy keeps file system, bucket, registry, key
    and logs, and the next up uses them again."""

    type: Literal["efs-csi", "nfs", "hostPath", "existingClaim"] = "efs-csi"
    protect: bool = True
    path: Folder = ""
    server: str = ""
    claim: Claim = ""
    throughput: Literal["elastic", "bursting"] = "elastic"
    backup: bool = True
    archive_after_days: IdleDays = 30


class Network(Section):
    """An own VPC (vpcCidr, zones or availabilityZones, nat single, per-az or none), or vpcId and subnetIds.
    serviceCidr is Kubernetes' own."""

    vpc_cidr: Cidr = "10.0.0.0/16"
    service_cidr: Cidr = "172.20.0.0/16"
    zones: Annotated[int, count(2, 3, "EKS needs two zones, and a fourth adds nothing but cost")] = 2
    availability_zones: tuple[str, ...] = ()
    nat: Literal["single", "per-az", "none"] = "single"
    vpc_id: VpcId = ""
    subnet_ids: tuple[SubnetId, ...] = ()


class Cluster(Section):
    """EKS version, admins and viewers (IAM roles or users), publicCidrs that reach the API, log retention.
    podLogs sends the pods' logs to CloudWatch."""

    version: Minor = versions.KUBERNETES
    admins: tuple[Principal, ...] = ()
    viewers: tuple[Principal, ...] = ()
    public_cidrs: tuple[Cidr, ...] = ()
    open_to_world: bool = False
    log_retention_days: LogDays = 90
    pod_logs: bool = False


class Nodes(Section):
    """The node group: instanceTypes, min, desired, max, diskGib, capacity, sshKeyName, placementGroup,
    singleZone. auto: nodes come with pending pods, from min to max, and go when they are empty. amiRelease
    holds the machine image."""

    # Not strict: behind `_spot` a JSON list is a Python list, which is no tuple.
    instance_types: Annotated[tuple[InstanceType, ...], Field(strict=False)] = ("m6i.large",)
    min: Size = 1
    desired: Size = 3
    max: Annotated[int, count(1, 1000, "a node group's size")] = 3
    auto: bool = False
    disk_gib: Annotated[
        int, count(20, 16384, "images, logs and shards need some 10 GiB; gp3 ends at 16 TiB")
    ] = 50
    capacity: Literal["ON_DEMAND", "SPOT"] = "ON_DEMAND"
    ami_release: AmiRelease = ""
    ssh_key_name: str = ""
    placement_group: bool = False
    single_zone: bool = False

    @model_validator(mode="before")
    @classmethod
    def _spot(cls, given: Any) -> Any:
        spot = isinstance(given, dict) and given.get("capacity") == "SPOT"
        return {"instanceTypes": list(SPOT_TYPES), **given} if spot else given


class Dns(Section):
    """zone is private to the network; externalName in publicZoneId becomes the API server's public name."""

    zone: Zone = "paddle.internal"
    public_zone_id: ZoneId = ""
    external_name: NoZone = ""


class Artifacts(Section):
    """The bucket: uploads maps object keys to local files; keepVersionsDays for older versions."""

    uploads: dict[str, str] = Field(default_factory=dict)
    keep_versions_days: Annotated[int, count(1, 3650, "older versions are removed after this")] = 30


class Kms(Section):
    """keyArn uses an existing key, which is never destroyed; else the stack has its own."""

    key_arn: KeyArn = ""


class Bastion(Section):
    """enabled starts a machine that mounts the file system, reached by Session Manager."""

    enabled: bool = False
    instance_type: str = "t3.micro"


class Iam(Section):
    """permissionsBoundary and path of every role."""

    permissions_boundary: PolicyArn = ""
    path: IamPath = "/"


class Budget(Section):
    """dollars a month for all with the stack's tag; email hears of 80% and of all of it. 0: no budget."""

    dollars: Annotated[int, count(0, 1_000_000, "0 is no budget")] = 0
    email: Mail = ""


TARGET = "aws makes network, EKS, EFS, DNS, bucket and registry; kubeconfig uses a cluster there is."
COMPUTE = "off removes cluster, nodes and NAT and keeps file system, bucket, key, registry and logs."
IMAGE = "Image of all pods, best with a digest. {launcher} stands for the digest of the folder launcher/."
FILES = "Files of chart values, relative to the project; later ones win. What the training does is there."
VALUES = "Chart values on top of valuesFiles; {bucket} in a text stands for the stack's bucket."
TAGS = "Tags of every resource, besides the stack's own."


class Settings(Section):
    """A stack's settings. What the training does is not here: it is in the chart's values (`valuesFiles`)."""

    target: Annotated[Literal["aws", "kubeconfig"], Field(description=TARGET)] = "aws"
    compute: Annotated[Literal["on", "off"], Field(description=COMPUTE)] = "on"
    image: Annotated[str, Field(description=IMAGE)] = ""
    values_files: Annotated[tuple[str, ...], Field(description=FILES)] = ()
    values: Annotated[dict[str, Any], Field(description=VALUES)] = Field(default_factory=dict)
    kubeconfig: Kubeconfig = Kubeconfig()
    namespace: Namespace = Namespace()
    release: Release = Release()
    storage: Storage = Storage()
    network: Network = Network()
    cluster: Cluster = Cluster()
    nodes: Nodes = Nodes()
    dns: Dns = Dns()
    artifacts: Artifacts = Artifacts()
    kms: Kms = Kms()
    bastion: Bastion = Bastion()
    iam: Iam = Iam()
    budget: Budget = Budget()
    tags: Annotated[Tags, Field(description=TAGS)] = Field(default_factory=dict)


_TEXTS = {"target", "compute", "image"}
# Words that other tools write for on and off.
_SWITCH = {"true": "on", "false": "off"}


def decode(config: Mapping[str, str], project: str) -> dict[str, Any]:
    """The project's own keys of the engine's configuration, decoded."""
    found: dict[str, Any] = {}
    for full_key, text in config.items():
        namespace, _, key = full_key.partition(":")
        if namespace != project:
            continue
        if key in _TEXTS:
            found[key] = _SWITCH.get(text, text) if key == "compute" else text
            continue
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _section(problem: Problem) -> str:
    return problem.key.removeprefix(P).partition(".")[0]


def load(config: Mapping[str, str], project: str = PROJECT) -> Settings:
    """The settings of a stack.

    Args:
        config: `namespace:key` → text, objects and lists as JSON, as `pulumi config --json` or the engine
            gives it.
        project: namespace of the stack's own keys.

    Raises:
        SettingsError: a key is unknown, of the wrong type, or breaks a rule; all of them in one message.
    """
    settings, problems = read(Settings, decode(config, project))
    # A section with a mistake holds a default in its place: what its settings are together is not known yet.
    broken = {_section(problem) for problem in problems}
    together = checks.settings_problems(settings, config.get("aws:region", ""))
    problems += [problem for problem in together if _section(problem) not in broken]
    problems += checks.credential_problems(config)
    if problems:
        raise SettingsError(problems)
    return settings
