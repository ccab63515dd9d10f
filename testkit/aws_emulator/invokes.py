"""Provider functions (invokes) that a Pulumi program calls, such as `aws.get_caller_identity()`."""

from __future__ import annotations

import re
from collections.abc import Callable

import jmespath

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.eks_handlers import addon_version, find_principal, version_of
from testkit.aws_emulator.handler import TABLE, MotoCloud, digest, run_calls, tag_map
from testkit.aws_emulator.moto_handlers import private_zone
from testkit.aws_emulator.property_values import Props

# Public parameters of AL2023 images for EKS ("Retrieve recommended Amazon Linux AMI IDs", EKS user guide).
EKS_IMAGE = re.compile(
    r"/aws/service/eks/optimized-ami/1\.\d\d/amazon-linux-2023/((x86_64|arm64)/(standard|nvidia)|x86_64/neuron)"
    r"/recommended/(image_id|release_version)"
)
Function = Callable[[MotoCloud, Props], Props]


def _call_of_row(row: Props) -> Function:
    def call(cloud: MotoCloud, p: Props) -> Props:
        result: Props = jmespath.search(row["result"], run_calls(cloud, row["calls"], p))
        if isinstance(result.get("tags"), list):
            result["tags"] = tag_map(result["tags"])
        return result

    return call


FUNCTIONS: dict[str, Function] = {token: _call_of_row(row) for token, row in TABLE.items() if "result" in row}


def function(token: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a Python function as the provider function `token`."""

    def register(call: Function) -> Function:
        FUNCTIONS[token] = call
        return call

    return register


def invoke(cloud: MotoCloud, token: str, arguments: Props) -> Props:
    """Return the result of the provider function `token`, with the region, as in version 7 of pulumi-aws."""
    call = FUNCTIONS.get(token)
    if call is None:
        known = ", ".join(sorted(FUNCTIONS))
        raise AwsError(f"the emulator has no function {token}; it has {known}. Fix: add it to {__name__}")
    answer = {"region": cloud.region} | arguments | call(cloud, arguments)
    return {"id": token} | answer


@function("aws:index/getCallerIdentity:getCallerIdentity")
def _identity(cloud: MotoCloud, p: Props) -> Props:
    kind, name = cloud.account.caller.rpartition(":")[2].split("/", 1)
    session = f"arn:aws:sts::{cloud.account.number}:assumed-role/{name.rpartition('/')[2]}/session"
    return {
        "accountId": cloud.account.number,
        "arn": session if kind == "role" else cloud.account.caller,
    }


@function("aws:iam/getSessionContext:getSessionContext")
def _session_context(cloud: MotoCloud, p: Props) -> Props:
    return {"issuerArn": cloud.account.caller if ":assumed-role/" in p["arn"] else p["arn"]}


@function("aws:iam/getRole:getRole")
def _role(cloud: MotoCloud, p: Props) -> Props:
    return {"arn": find_principal(cloud, "role", p["name"])}


@function("aws:iam/getUser:getUser")
def _user(cloud: MotoCloud, p: Props) -> Props:
    return {"arn": find_principal(cloud, "user", p["userName"])}


@function("aws:index/getAvailabilityZones:getAvailabilityZones")
def _zones(cloud: MotoCloud, p: Props) -> Props:
    found = cloud.client("ec2").describe_availability_zones()["AvailabilityZones"]
    excluded = p.get("excludeZoneIds") or []
    return {"names": [zone["ZoneName"] for zone in found if zone["ZoneId"] not in excluded]}


@function("aws:ssm/getParameter:getParameter")
def _parameter(cloud: MotoCloud, p: Props) -> Props:
    """Return a public parameter of AWS: an image, or a release version."""
    name = p["name"]
    if "/optimized-ami/" in name and EKS_IMAGE.fullmatch(name) is None:
        raise AwsError(f"ParameterNotFound: {name}")
    minor = name.partition("/optimized-ami/")[2].partition("/")[0]
    release = f"{minor}.0-{cloud.account.situation.image_date}"
    found = release if name.endswith("release_version") else f"ami-{digest(name)}"
    return {"value": found, "insecureValue": found}


@function("aws:route53/getZone:getZone")
def _zone(cloud: MotoCloud, p: Props) -> Props:
    zone = private_zone(cloud, p["vpcId"], p["name"])
    if zone is None:
        raise AwsError("no matching Route 53 Hosted Zone found")
    tags = cloud.client("route53").list_tags_for_resource(ResourceType="hostedzone", ResourceId=zone)
    return {"id": zone, "zoneId": zone, "tags": tag_map(tags["ResourceTagSet"]["Tags"])}


@function("aws:eks/getAddonVersion:getAddonVersion")
def _addon_version(cloud: MotoCloud, p: Props) -> Props:
    return {"id": p["addonName"], "version": addon_version(cloud, p["kubernetesVersion"])}


@function("aws:eks/getCluster:getCluster")
def _cluster(cloud: MotoCloud, p: Props) -> Props:
    record = cloud.account.get("aws:eks/cluster:Cluster", p["name"])
    if record is None:
        raise AwsError(f"reading EKS Cluster ({p['name']}): couldn't find resource")
    return {"id": p["name"], "arn": record.outputs["arn"], "version": version_of(cloud, p["name"])}


@function("aws:eks/getNodeGroup:getNodeGroup")
def _node_group(cloud: MotoCloud, p: Props) -> Props:
    cluster, name = p["clusterName"], p["nodeGroupName"]
    found = cloud.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
    record = cloud.account.get("aws:eks/nodeGroup:NodeGroup", f"{cluster}:{name}")
    known = record.outputs if record else {}
    return {
        "id": f"{cluster}:{name}",
        "scalingConfigs": [found["scalingConfig"]],
        "version": known.get("version", ""),
        "status": "ACTIVE",
    }


@function("aws:resourcegroupstaggingapi/getResources:getResources")
def _by_tags(cloud: MotoCloud, p: Props) -> Props:
    wanted = {item["key"]: item["values"] for item in p.get("tagFilters") or []}
    found = [
        {"resourceArn": record.outputs["arn"], "tags": record.inputs["tags"], "complianceDetails": []}
        for record in cloud.account.all()
        if record.inputs.get("tags")
        and record.outputs.get("arn")
        and all(record.inputs["tags"].get(key) in values for key, values in wanted.items())
    ]
    return {"resourceTagMappingLists": found, "id": cloud.region}
