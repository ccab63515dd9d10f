"""EKS: its rules, which moto lacks, and its handlers: cluster and node group with moto, the others without it.

The handlers enforce the order that the real service requires: an add-on with pods stays DEGRADED without
nodes, a node never becomes Ready without the network add-on, and the subnets of a cluster are in two zones.
"""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from pathlib import Path

import jsonschema
from botocore.exceptions import ClientError

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.handler import Handler, MotoCloud, digest, pick_arguments, register_handler
from testkit.aws_emulator.property_values import Props

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
ADDON = "aws:eks/addon:Addon"
_NEEDS_NODES = (
    "amazon-cloudwatch-observability",
    "coredns",
    "aws-efs-csi-driver",
    "aws-ebs-csi-driver",
    "metrics-server",
)
# Zones without EKS control planes, from the EKS guide on network requirements.
_NO_CONTROL_PLANE = ("use1-az3", "usw1-az2", "cac1-az3")
# Output of `aws eks describe-addon-configuration`, as far as it is public.
_SCHEMAS = Path(__file__).with_name("addons")


def require_role(cloud: MotoCloud, arn: str, service: str) -> None:
    """Raise the error of EKS if IAM has no role with the name in this ARN, or the caller may not pass the role.

    The path in the ARN is not compared with the role's path. `service` is the service that gets the role.
    """
    cloud.account.authorize(["iam:PassRole"], arn, PassedToService=service)
    try:
        cloud.client("iam").get_role(RoleName=arn.rpartition("/")[2])
    except cloud.client("iam").exceptions.NoSuchEntityException as error:
        raise AwsError(f"InvalidParameterException: the role {arn} does not exist") from error


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
    if nodes > cloud.account.situation.node_quota:
        raise AwsError(
            f"AsgInstanceLaunchFailures: VcpuLimitExceeded: You have requested more vCPU capacity than your current "
            f"limit allows: {nodes} nodes, limit {cloud.account.situation.node_quota}"
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
    return f"v{_minor(kubernetes)}.{cloud.account.situation.addon_release}.0-eksbuild.1"


def version_of(cloud: MotoCloud, cluster: str) -> str:
    """Return the minor Kubernetes version of a cluster; `1.35` if the account has no such cluster."""
    record = cloud.account.get("aws:eks/cluster:Cluster", cluster)
    return str(record.outputs.get("version", "1.35")) if record else "1.35"


def require_known_configuration(addon: str, text: str | None) -> None:
    """Raise if an add-on's configuration does not match its closed schema. An add-on without a schema is accepted."""
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


def find_principal(cloud: MotoCloud, kind: str, name: str) -> str:
    """Return the ARN of the role or user with this name. Raises ClientError if IAM has none."""
    for arn in cloud.account.about["principals"]:
        if f":{kind}/" in arn and arn.endswith(f"/{name}"):
            return str(arn)
    iam = cloud.client("iam")
    found = iam.get_role(RoleName=name) if kind == "role" else iam.get_user(UserName=name)
    return str(found[kind.capitalize()]["Arn"])


def principal_exists(cloud: MotoCloud, arn: str) -> bool:
    """Return whether IAM has a role or user with exactly this ARN, including its path."""
    kind, _, name = arn.rpartition(":")[2].partition("/")
    try:
        return find_principal(cloud, kind, name.rpartition("/")[2]) == arn
    except ClientError:
        return False


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
    """Raise if the nodes are newer than their control plane, or their image release is of another version."""
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


def require_cluster(cloud: MotoCloud, name: str) -> None:
    """Raise if the cluster does not exist."""
    cloud.client("eks").describe_cluster(name=name)


@register_handler("aws:eks/cluster:Cluster")
class Cluster(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        ec2, network = cloud.client("ec2"), p["vpcConfig"]
        subnets = ec2.describe_subnets(SubnetIds=network["subnetIds"])["Subnets"]
        if len({subnet["AvailabilityZone"] for subnet in subnets}) < 2:
            raise AwsError(
                "InvalidParameterException: Subnets specified must be in at least two different AZs, "
                f"{network['subnetIds']} are all in one"
            )
        require_fitting_network(cloud, p, subnets)
        require_cidr_notation(network.get("publicAccessCidrs"))
        require_role(cloud, p["roleArn"], "eks.amazonaws.com")
        made = cloud.client("eks").create_cluster(
            name=p["name"],
            roleArn=p["roleArn"],
            resourcesVpcConfig={"subnetIds": network["subnetIds"]},
        )["cluster"]
        vpc = subnets[0]["VpcId"]
        group = ec2.create_security_group(
            GroupName=f"eks-cluster-sg-{p['name']}-{digest(p['name'], vpc)[:8]}",
            Description="EKS created security group",
            VpcId=vpc,
        )["GroupId"]
        about = cloud.account.about["cluster"]
        outputs = {
            "arn": made["arn"],
            # Each new cluster has another endpoint, also one with the name of an earlier cluster.
            "endpoint": about.get("server", f"https://{digest(p['name'], uuid.uuid4())}.eks.amazonaws.com"),
            "certificateAuthority": {"data": about.get("ca", "")},
            "version": p.get("version", "1.35"),
            "vpcConfig": network | {"clusterSecurityGroupId": group, "vpcId": vpc},
        }
        return p["name"], outputs

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        require_cluster(cloud, rid)
        return {"name": rid}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        before, after = str(old.get("version", "1.35")), str(new.get("version", "1.35"))
        if before != after:  # otherwise the provider sends no request
            require_next_version(version_of(cloud, rid), after)
            return {"version": after}
        return {"version": version_of(cloud, rid)}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        group = cloud.client("eks").describe_cluster(name=rid)["cluster"]["resourcesVpcConfig"]["subnetIds"]
        vpc = cloud.client("ec2").describe_subnets(SubnetIds=group)["Subnets"][0]["VpcId"]
        cloud.client("eks").delete_cluster(name=rid)
        name = f"eks-cluster-sg-{rid}-{digest(rid, vpc)[:8]}"
        filters = [{"Name": "group-name", "Values": [name]}]
        for found in cloud.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]:
            cloud.client("ec2").delete_security_group(GroupId=found["GroupId"])

    def owned(self, outputs: Props) -> list[str]:
        return [outputs["vpcConfig"]["clusterSecurityGroupId"]] if "vpcConfig" in outputs else []


def _require_template(cloud: MotoCloud, template: Props) -> None:
    """Raise if the launch template has no such version, or a key pair that does not exist.

    EC2 accepts a template with an unknown key pair, but no node starts.
    """
    ec2, version = cloud.client("ec2"), template["version"]
    latest = ec2.describe_launch_templates(LaunchTemplateIds=[template["id"]])["LaunchTemplates"][0]
    if int(version) > latest["LatestVersionNumber"]:
        raise AwsError(f"InvalidRequestException: launch template has no version {version}")
    found = ec2.describe_launch_template_versions(LaunchTemplateId=template["id"], Versions=[version])
    name = found["LaunchTemplateVersions"][0]["LaunchTemplateData"].get("KeyName")
    if name and name not in [pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]]:
        raise AwsError(f"NodeCreationFailure: InvalidKeyPair.NotFound: The key pair '{name}' does not exist")


@register_handler(NODE_GROUP)
class NodeGroup(Handler):
    def _scaling(self, p: Props) -> Props:
        sizes = p["scalingConfig"]
        low, wanted, high = sizes["minSize"], sizes["desiredSize"], sizes["maxSize"]
        if not low <= wanted <= high or high < 1:
            raise AwsError(
                f"InvalidParameterException: sizes must be min ≤ desired ≤ max ≥ 1: {low}, {wanted}, {high}"
            )
        return {"minSize": low, "desiredSize": wanted, "maxSize": high}

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cluster, name = p["clusterName"], p["nodeGroupName"]
        require_cluster(cloud, cluster)
        require_not_newer(cloud, p)
        require_role(cloud, p["nodeRoleArn"], "ec2.amazonaws.com")
        require_lasting_taints(p)
        cloud.client("ec2").describe_subnets(SubnetIds=p["subnetIds"])
        addons = [record.inputs for record in cloud.account.all(ADDON)]
        if not any(a["clusterName"] == cluster and a["addonName"] == "vpc-cni" for a in addons):
            owner = cloud.account.get("aws:eks/cluster:Cluster", cluster)
            if owner and owner.inputs.get("bootstrapSelfManagedAddons") is False:
                raise AwsError(
                    "NodeCreationFailure: Instances failed to join the kubernetes cluster: cni plugin not "
                    f"initialized ({cluster} has no add-on vpc-cni)"
                )
        if p.get("launchTemplate"):
            _require_template(cloud, p["launchTemplate"])
        require_quota(cloud, p, 0)
        require_balanced_zones(p)
        optional = ("launchTemplate", "instanceTypes", "labels")
        cloud.client("eks").create_nodegroup(
            clusterName=cluster,
            nodegroupName=name,
            subnets=p["subnetIds"],
            nodeRole=p["nodeRoleArn"],
            scalingConfig=self._scaling(p),
            **{name: p[name] for name in optional if name in p},
        )
        now = version_of(cloud, cluster)
        outputs = {"version": now, "releaseVersion": f"{now}.0-20261101"}
        return f"{cluster}:{name}", outputs | pick_arguments(
            p, version="version", releaseVersion="releaseVersion"
        )

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        cluster, name = rid.split(":")
        found = cloud.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
        return {"clusterName": cluster, "nodeGroupName": name, "scalingConfig": found["scalingConfig"]}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        cluster, name = rid.split(":")
        require_not_newer(cloud, new)
        require_lasting_taints(new)
        require_balanced_zones(new)
        replaces = any(
            new.get(key) != old.get(key) for key in ("version", "releaseVersion", "launchTemplate")
        )
        minimal = (new.get("updateConfig") or {}).get("updateStrategy") == "MINIMAL"
        require_quota(cloud, new, 2 * len(new["subnetIds"]) if replaces and not minimal else 0)
        cloud.client("eks").update_nodegroup_config(
            clusterName=cluster, nodegroupName=name, scalingConfig=self._scaling(new)
        )
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cluster, name = rid.split(":")
        cloud.client("eks").delete_nodegroup(clusterName=cluster, nodegroupName=name)


class OfCluster(Handler):
    """Base class of resources in a cluster, which are handled without moto.

    A resource's id consists of the values of its inputs `parts` (the cluster's name and others), joined by
    `separator`; `token` is its Pulumi type, which `register_handler` sets.
    """

    parts: tuple[str, ...] = ()
    separator = ":"
    token = ""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        require_cluster(cloud, p["clusterName"])
        rid = self.separator.join(str(p[part]) for part in self.parts)
        if cloud.account.get(self.token, rid):
            raise AwsError(f"ResourceInUseException: {self.token} {rid} already exists")
        self.check(cloud, p)
        return rid, {}

    def check(self, cloud: MotoCloud, p: Props) -> None:
        """Raise if EKS rejects the inputs of a new resource."""


@register_handler(ADDON)
class Addon(OfCluster):
    parts = ("clusterName", "addonName")

    def check(self, cloud: MotoCloud, p: Props) -> None:
        cluster, name = p["clusterName"], p["addonName"]
        require_known_configuration(name, p.get("configurationValues"))
        require_fitting_version(cloud, p)
        groups = [record.inputs for record in cloud.account.all(NODE_GROUP)]
        nodes = sum(g["scalingConfig"]["desiredSize"] for g in groups if g["clusterName"] == cluster)
        if name in _NEEDS_NODES and nodes == 0:
            raise AwsError(
                f"waiting for EKS Add-On ({cluster}:{name}) create: timeout while waiting for state "
                "to become 'ACTIVE' (last state: 'DEGRADED'): InsufficientNumberOfReplicas: "
                "no nodes available"
            )
        if name == "amazon-cloudwatch-observability":
            write_pod_logs(cloud, cluster, p.get("configurationValues"))

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        require_known_configuration(new["addonName"], new.get("configurationValues"))
        if new.get("addonVersion") != old.get("addonVersion"):  # otherwise the provider sends no version
            require_fitting_version(cloud, new)
        return {}


@register_handler("aws:eks/accessEntry:AccessEntry")
class AccessEntry(OfCluster):
    parts = ("clusterName", "principalArn")

    def check(self, cloud: MotoCloud, p: Props) -> None:
        if ":assumed-role/" in p["principalArn"]:
            raise AwsError(
                f"InvalidParameterException: The principalArn {p['principalArn']!r} is a session; "
                "give a role or user"
            )
        if f":{cloud.account.number}:" in p["principalArn"] and not principal_exists(
            cloud, p["principalArn"]
        ):
            raise AwsError(
                "InvalidParameterException: The specified principalArn is invalid: invalid principal."
            )


@register_handler("aws:eks/accessPolicyAssociation:AccessPolicyAssociation")
class AccessPolicyAssociation(OfCluster):
    parts, separator = ("clusterName", "principalArn", "policyArn"), "#"

    def check(self, cloud: MotoCloud, p: Props) -> None:
        entry = f"{p['clusterName']}:{p['principalArn']}"
        if not cloud.account.get("aws:eks/accessEntry:AccessEntry", entry):
            raise AwsError(f"ResourceNotFoundException: no access entry for {p['principalArn']}")


@register_handler("aws:eks/podIdentityAssociation:PodIdentityAssociation")
class PodIdentityAssociation(OfCluster):
    parts = ("clusterName", "namespace", "serviceAccount")

    def check(self, cloud: MotoCloud, p: Props) -> None:
        require_role(cloud, p["roleArn"], "pods.eks.amazonaws.com")
