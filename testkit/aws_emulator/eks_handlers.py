"""Handlers of EKS: cluster and node group with moto; add-ons, access and pod identity without it.

The handlers enforce the order that the real service requires: an add-on with pods stays DEGRADED without
nodes, a node never becomes Ready without the network add-on, and the subnets of a cluster are in two zones.
"""

from __future__ import annotations

import uuid
from typing import Any

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.eks_rules import (
    principal_exists,
    require_balanced_zones,
    require_cidr_notation,
    require_fitting_network,
    require_fitting_version,
    require_key_pair,
    require_known_configuration,
    require_lasting_taints,
    require_next_version,
    require_not_newer,
    require_quota,
    require_role,
    version_of,
    write_pod_logs,
)
from testkit.aws_emulator.handler import (
    Handler,
    MotoCloud,
    digest,
    pick_arguments,
    register_handler,
)
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


def _eks(cloud: MotoCloud) -> Any:
    return cloud.client("eks")


def require_cluster(cloud: MotoCloud, name: str) -> None:
    """Raise if the cluster does not exist."""
    _eks(cloud).describe_cluster(name=name)


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
        made = _eks(cloud).create_cluster(
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
        group = _eks(cloud).describe_cluster(name=rid)["cluster"]["resourcesVpcConfig"]["subnetIds"]
        vpc = cloud.client("ec2").describe_subnets(SubnetIds=group)["Subnets"][0]["VpcId"]
        _eks(cloud).delete_cluster(name=rid)
        name = f"eks-cluster-sg-{rid}-{digest(rid, vpc)[:8]}"
        filters = [{"Name": "group-name", "Values": [name]}]
        for found in cloud.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]:
            cloud.client("ec2").delete_security_group(GroupId=found["GroupId"])

    def owned(self, outputs: Props) -> list[str]:
        return [outputs["vpcConfig"]["clusterSecurityGroupId"]] if "vpcConfig" in outputs else []


def _require_template(cloud: MotoCloud, template: Props) -> None:
    """Raise if the launch template has no such version, or a key pair that does not exist."""
    ec2 = cloud.client("ec2")
    found = ec2.describe_launch_templates(LaunchTemplateIds=[template["id"]])["LaunchTemplates"][0]
    if int(template["version"]) > found["LatestVersionNumber"]:
        raise AwsError(f"InvalidRequestException: launch template has no version {template['version']}")
    require_key_pair(cloud, template["id"], template["version"])


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
        _eks(cloud).create_nodegroup(
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
        found = _eks(cloud).describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
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
        _eks(cloud).update_nodegroup_config(
            clusterName=cluster, nodegroupName=name, scalingConfig=self._scaling(new)
        )
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cluster, name = rid.split(":")
        _eks(cloud).delete_nodegroup(clusterName=cluster, nodegroupName=name)


class OfCluster(Handler):
    """Base class of resources in a cluster, which are handled without moto.

    A resource's id consists of the values of its inputs `parts` (the cluster's name and others), joined by
    `separator`; `token` is its Pulumi type.
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
    token, parts = ADDON, ("clusterName", "addonName")

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
    token, parts = "aws:eks/accessEntry:AccessEntry", ("clusterName", "principalArn")

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
    token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
    parts, separator = ("clusterName", "principalArn", "policyArn"), "#"

    def check(self, cloud: MotoCloud, p: Props) -> None:
        entry = f"{p['clusterName']}:{p['principalArn']}"
        if not cloud.account.get("aws:eks/accessEntry:AccessEntry", entry):
            raise AwsError(f"ResourceNotFoundException: no access entry for {p['principalArn']}")


@register_handler("aws:eks/podIdentityAssociation:PodIdentityAssociation")
class PodIdentityAssociation(OfCluster):
    token = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    parts = ("clusterName", "namespace", "serviceAccount")

    def check(self, cloud: MotoCloud, p: Props) -> None:
        require_role(cloud, p["roleArn"], "pods.eks.amazonaws.com")
