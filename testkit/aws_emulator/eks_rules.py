"""Rules that EKS enforces before it creates anything, and that moto lacks."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

import jsonschema
from botocore.exceptions import ClientError

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.property_values import Props

# Zones without EKS control planes, from the EKS guide on network requirements.
_NO_CONTROL_PLANE = ("use1-az3", "usw1-az2", "cac1-az3")
# Output of `aws eks describe-addon-configuration`, as far as it is public.
_SCHEMAS = Path(__file__).with_name("addons")


def require_role(cloud: MotoCloud, arn: str, service: str) -> None:
    """Raise the error of EKS if IAM has no role with this ARN, or the caller may not pass it to the service."""
    cloud.account.authorize(["iam:PassRole"], arn, PassedToService=service)
    try:
        cloud.client("iam").get_role(RoleName=arn.rpartition("/")[2])
    except cloud.client("iam").exceptions.NoSuchEntityException as error:
        raise AwsError(f"InvalidParameterException: the role {arn} does not exist") from error


def require_key_pair(cloud: MotoCloud, template: str, version: str) -> None:
    """Raise if the template's key pair does not exist: EC2 accepts the template, but no node starts."""
    found = cloud.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=template, Versions=[version]
    )
    name = found["LaunchTemplateVersions"][0]["LaunchTemplateData"].get("KeyName")
    known = [pair["KeyName"] for pair in cloud.client("ec2").describe_key_pairs()["KeyPairs"]]
    if name and name not in known:
        raise AwsError(f"NodeCreationFailure: InvalidKeyPair.NotFound: The key pair '{name}' does not exist")


def require_quota(cloud: MotoCloud, p: Props, surge: int) -> None:
    """Raise if the nodes of all groups, with `p` in place of its group, exceed the quota of the account.

    `surge` is the number of nodes that an update starts before it removes one: up to twice the number of zones ("Scale
    up phase" of managed node updates in the EKS user guide), and none with the update strategy MINIMAL.
    """
    groups = {
        record.inputs["nodeGroupName"]: record.inputs
        for record in cloud.account.all("aws:eks/nodeGroup:NodeGroup")
    }
    groups[p["nodeGroupName"]] = p
    nodes = surge + sum(group["scalingConfig"]["desiredSize"] for group in groups.values())
    if nodes > cloud.account.node_quota():
        raise AwsError(
            f"AsgInstanceLaunchFailures: VcpuLimitExceeded: You have requested more vCPU capacity than your current "
            f"limit allows: {nodes} nodes, limit {cloud.account.node_quota()}"
        )


def require_balanced_zones(p: Props) -> None:
    """Raise for several nodes of a group in several zones: the Auto Scaling group terminates some to balance the zones.

    EKS has no setting that suspends this process (AZRebalance; aws/containers-roadmap 1453). In AWS it happens later,
    after a zone had no capacity or the autoscaler removed nodes.
    """
    if len(p["subnetIds"]) > 1 and p["scalingConfig"]["desiredSize"] > 1:
        raise AwsError("AZRebalance: an instance was selected for termination to balance instances in zones")


def require_lasting_taints(p: Props) -> None:
    """Raise for a taint that a node's daemon removes once at its start: no pod would ever be scheduled.

    EKS sets the taints of a node group about half a minute after the node has joined (aws/containers-roadmap 1962).
    A CSI driver looks for its taint before that, and never again.
    """
    late = [taint["key"] for taint in p.get("taints") or () if taint["key"].endswith("/agent-not-ready")]
    if late:
        raise AwsError(f"the taint {late[0]} was set after the driver had removed it, so no pod is scheduled")


def _minor(version: str) -> int:
    return int(version.partition(".")[2].partition(".")[0])


def addon_version(cloud: MotoCloud, kubernetes: str) -> str:
    """Return the present default version of every add-on for a minor version of Kubernetes."""
    return f"v{_minor(kubernetes)}.{cloud.account.addon_release()}.0-eksbuild.1"


def version_of(cloud: MotoCloud, cluster: str) -> str:
    """Return the minor Kubernetes version of a cluster."""
    record = cloud.account.get("aws:eks/cluster:Cluster", cluster)
    return str(record.outputs.get("version", "1.35")) if record else "1.35"


def require_known_configuration(addon: str, text: str | None) -> None:
    """Raise if an add-on's configuration does not match its closed schema."""
    schema = _SCHEMAS / f"{addon}.json"
    if text is None or not schema.exists():
        return
    checked = jsonschema.Draft201909Validator(json.loads(schema.read_text(encoding="utf-8")))
    wrong = [f"{error.json_path}: {error.message}" for error in checked.iter_errors(json.loads(text))]
    if wrong:
        raise AwsError(
            "InvalidParameterException: ConfigurationValue provided in request is not supported: "
            f"Json schema validation failed with error: {wrong}"
        )


def require_fitting_version(cloud: MotoCloud, p: Props) -> None:
    """Raise if an add-on's version does not support the cluster's minor version."""
    version = version_of(cloud, p["clusterName"])
    if not str(p.get("addonVersion") or f"v{_minor(version)}.").startswith(f"v{_minor(version)}."):
        raise AwsError(
            f"InvalidParameterException: Addon version specified ({p['addonVersion']}) is not supported by "
            f"Kubernetes {version} of the cluster"
        )


def principal_exists(cloud: MotoCloud, arn: str) -> bool:
    """Return whether IAM has a role or user with exactly this ARN, including its path."""
    kind, _, name = arn.rpartition(":")[2].partition("/")
    iam, name = cloud.client("iam"), name.rpartition("/")[2]
    if arn in cloud.account.about["principals"]:
        return True
    try:
        found = iam.get_role(RoleName=name)["Role"] if kind == "role" else iam.get_user(UserName=name)["User"]
    except ClientError:
        return False
    return bool(found["Arn"] == arn)


def require_fitting_network(cloud: MotoCloud, p: Props, subnets: list[Props]) -> None:
    """Raise the error of EKS if it has no control planes in a subnet's zone, or Service addresses overlap the VPC."""
    ec2 = cloud.client("ec2")
    for subnet in subnets:
        if subnet["AvailabilityZoneId"] in _NO_CONTROL_PLANE:
            raise AwsError(
                "UnsupportedAvailabilityZoneException: cannot create cluster because "
                f"{subnet['AvailabilityZoneId']} does not currently have sufficient capacity "
                "to support the cluster. Choose subnets in other availability zones"
            )
    services = (p.get("kubernetesNetworkConfig") or {}).get("serviceIpv4Cidr")
    for vpc in ec2.describe_vpcs(VpcIds=[subnets[0]["VpcId"]])["Vpcs"]:
        for block in (item["CidrBlock"] for item in vpc["CidrBlockAssociationSet"]):
            if services and ipaddress.ip_network(services).overlaps(ipaddress.ip_network(block)):
                raise AwsError(
                    f"InvalidParameterException: serviceIpv4Cidr {services} overlaps the VPC's {block}"
                )


def require_cidr_notation(blocks: list[str] | None) -> None:
    """Raise if a network that may reach the API server is not in the notation ADDRESS/BITS."""
    for block in blocks or ():
        if not re.fullmatch(r"\d+(\.\d+){3}/\d{1,2}", block):
            raise AwsError(f"InvalidParameterException: The following CIDRs are invalid: [{block}]")


def require_not_newer(cloud: MotoCloud, p: Props) -> None:
    """Raise if the nodes are newer than their control plane."""
    version = version_of(cloud, p["clusterName"])
    wanted = str(p.get("version", version))
    if _minor(wanted) > _minor(version):
        raise AwsError(
            f"InvalidParameterException: Nodegroup version {wanted} is invalid. It is newer than "
            f"the cluster's {version}"
        )
    release = str(p.get("releaseVersion", f"{wanted}."))
    if not release.startswith(f"{wanted}."):
        raise AwsError(f"InvalidParameterException: release version {release} is not of {wanted}")


def require_next_version(before: str, after: str) -> None:
    """Raise unless a control plane is upgraded by one minor version."""
    if _minor(after) - _minor(before) != 1:
        raise AwsError(
            f"InvalidParameterException: Unsupported Kubernetes minor version update from {before} to {after}"
        )


def write_pod_logs(cloud: MotoCloud, cluster: str, configuration: str | None) -> None:
    """Create the log groups of the observability add-on that do not exist, as its agents do at their start.

    Container Insights writes to `performance`, unless the agent has a configuration of its own.
    """
    chosen = json.loads(configuration or "{}")
    names = ["application", "dataplane", "host"]
    names += [] if "config" in chosen.get("agent", {}) else ["performance"]
    logs = cloud.client("logs")
    for name in (f"/aws/containerinsights/{cluster}/{part}" for part in names):
        if not logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]:
            logs.create_log_group(logGroupName=name)
