"""The settings of a stack as frozen pydantic models. Imports no pulumi.

`settings_loader.load_settings` reads them from a stack's configuration. `setting_types.py` has the rules of
single values, `settings_rules.py` the rules between several settings. The docstring of each section is its
description in docs/reference/settings.md and in Pulumi.yaml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from infra import constants, instance_types
from infra import setting_types as types
from infra.setting_types import int_help

# Spot capacity varies by type, so spot nodes get several types of the same size to choose from.
SPOT_TYPES = ("m6i.large", "m6a.large", "m5.large", "m5a.large", "m7i.large", "m7a.large")

_NodeCount = Annotated[int, Field(ge=0, le=1000), int_help(0, 1000, "EKS limits the size of a node group")]


class SettingsModel(BaseModel):
    """A mapping of settings: keys in camelCase, all optional; unknown keys are rejected, types are strict."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True
    )


class KubeconfigSettings(SettingsModel):
    """Path and context of an existing cluster (target kubeconfig). No other kubeconfig is used."""

    path: str = ""
    context: str = ""


class NamespaceSettings(SettingsModel):
    """Name of the namespace. With create false, it must exist and is neither labelled nor removed."""

    name: types.Label = "paddle"
    create: bool = True


class ReleaseSettings(SettingsModel):
    """Name of the Helm release. wait: `up` waits for both Jobs. keepManualValues: `up` keeps values that
    were set with helm."""

    name: types.ReleaseName = "paddle-training"
    wait: bool = False
    keep_manual_values: bool = False


class StorageSettings(SettingsModel):
    """type: efs-csi, nfs, hostPath or existingClaim. protect: destroy keeps file system, bucket, registry,
    key and logs. adopt: their ids, with which the next `up` uses them again. backup: daily backups, kept
    for 35 days even after a destroy."""

    type: Literal["efs-csi", "nfs", "hostPath", "existingClaim"] = "efs-csi"
    protect: bool = True
    adopt: types.Adopted = Field(default_factory=dict)
    path: types.AbsolutePath = ""
    server: str = ""
    claim: types.ClaimName = ""
    throughput: Literal["elastic", "bursting"] = "elastic"
    backup: bool = False
    archive_after_days: types.ArchiveAfterDays = 30


class NetworkSettings(SettingsModel):
    """A new VPC (vpcCidr; zones or availabilityZones; nat: single, per-az or none), or an existing one
    (vpcId and subnetIds). serviceCidr: the network of Kubernetes Services."""

    vpc_cidr: types.Cidr = "10.0.0.0/16"
    service_cidr: types.Cidr = "172.20.0.0/16"
    zones: Annotated[
        int, Field(ge=2, le=3), int_help(2, 3, "EKS requires two zones, and a fourth adds only cost")
    ] = 2
    availability_zones: tuple[str, ...] = ()
    nat: Literal["single", "per-az", "none"] = "single"
    vpc_id: types.VpcId = ""
    subnet_ids: tuple[types.SubnetId, ...] = ()


class ClusterSettings(SettingsModel):
    """EKS version; admins and viewers (IAM roles or users); publicCidrs: networks that reach the API; log
    retention. podLogs: the logs of pods and nodes are sent to CloudWatch. upgradeAddons: each `up` upgrades
    the EKS add-ons to AWS' default version; otherwise they keep theirs."""

    version: types.KubernetesVersion = constants.KUBERNETES
    admins: tuple[types.Principal, ...] = ()
    viewers: tuple[types.Principal, ...] = ()
    public_cidrs: tuple[types.Cidr, ...] = ()
    open_to_world: bool = False
    log_retention_days: types.LogRetentionDays = 90
    pod_logs: bool = False
    upgrade_addons: bool = False


class NodesSettings(SettingsModel):
    """The node group: capacity, instanceTypes (with or without GPUs), min, desired, max, diskGib, sshKeyName,
    placementGroup, singleZone (all nodes in the first zone). auto: nodes are added for pending pods, between
    min and max, and removed when empty; desired has no effect. fallback: on-demand nodes, also up to max, when
    there is no spot capacity. amiRelease: release of the machine image; newest replaces the nodes when AWS has
    a newer one."""

    capacity: Literal["ON_DEMAND", "SPOT"] = "ON_DEMAND"
    instance_types: tuple[types.InstanceType, ...] = Field(
        default_factory=lambda given: SPOT_TYPES if given.get("capacity") == "SPOT" else SPOT_TYPES[:1]
    )
    min: _NodeCount = 1
    desired: _NodeCount = 3
    max: Annotated[int, Field(ge=1, le=1000), int_help(1, 1000, "EKS limits the size of a node group")] = 3
    auto: bool = False
    fallback: bool = False
    disk_gib: Annotated[
        int,
        Field(ge=20, le=16384),
        int_help(20, 16384, "images, logs and shards need about 10 GiB, and gp3 has at most 16 TiB"),
    ] = 50
    ami_release: types.AmiRelease = ""
    ssh_key_name: str = ""
    placement_group: bool = False
    # Parameter servers and trainers exchange kilobytes per row, and AWS charges traffic between zones.
    single_zone: bool = True

    @property
    def has_gpus(self) -> bool:
        """Return whether the nodes have GPUs."""
        return any(map(instance_types.has_gpus, self.instance_types))

    @property
    def has_system_group(self) -> bool:
        """Return whether add-ons run on a small node group of their own: other nodes may be absent or have GPUs."""
        return self.auto or self.has_gpus


class DnsSettings(SettingsModel):
    """zone: private zone of the network; an empty text: paddle.internal, or a name of the stack's own in an existing
    VPC. externalName in publicZoneId: public name of the API server."""

    zone: types.ZoneName = ""
    public_zone_id: types.HostedZoneId = ""
    external_name: types.OptionalZoneName = ""


class ArtifactsSettings(SettingsModel):
    """The S3 bucket for data and models. uploads: object keys and the local files to upload.
    keepVersionsDays: days to keep old versions of replaced objects."""

    uploads: dict[str, str] = Field(default_factory=dict)
    keep_versions_days: Annotated[
        int, Field(ge=1, le=3650), int_help(1, 3650, "older versions are removed after this time")
    ] = 30


class KmsSettings(SettingsModel):
    """keyArn: an existing KMS key for all stored data; never destroyed. Without it, the stack creates a key."""

    key_arn: types.KeyArn = ""


class BastionSettings(SettingsModel):
    """enabled: a machine that mounts the file system, reached by Session Manager."""

    enabled: bool = False
    instance_type: str = "t3.micro"


class IamSettings(SettingsModel):
    """permissionsBoundary and path of every IAM role."""

    permissions_boundary: types.PolicyArn = ""
    path: types.IamPath = "/"


class BudgetSettings(SettingsModel):
    """dollars: monthly budget for everything with the stack's tags; email: receives alarms at 80 % and
    100 %. With 0 dollars, there is no budget."""

    dollars: Annotated[int, Field(ge=0, le=1_000_000), int_help(0, 1_000_000, "0 means no budget")] = 0
    email: types.Email = ""


class Settings(SettingsModel):
    """All settings of a stack. What the training does is defined by chart values (`valuesFiles`)."""

    target: Literal["aws", "kubeconfig"] = Field(
        default="aws",
        description="aws creates network, EKS, EFS, DNS, bucket and registry; kubeconfig uses an existing "
        "cluster.",
    )
    compute: Literal["on", "off"] = Field(
        default="on",
        description="off removes cluster, nodes and NAT, and keeps file system, bucket, key, registry and "
        "logs.",
    )
    image: str = Field(
        default="",
        description="Image of all pods, preferably with a digest. {launcher} is replaced by the digest of "
        "the folder launcher/.",
    )
    values_files: tuple[str, ...] = Field(
        default=(),
        description="Files of chart values, relative to the project; later files override earlier ones. They "
        "define the training.",
    )
    values: dict[str, Any] = Field(
        default_factory=dict,
        description="Chart values that override valuesFiles. {bucket} is replaced by the stack's bucket.",
    )
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
    tags: types.Tags = Field(
        default_factory=dict,
        description="Tags of every resource, in addition to the stack's own tags. A change replaces all nodes, one "
        "after the other.",
    )
