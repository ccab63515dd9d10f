"""Functions of the provider that an ordinary program calls (`aws.get_caller_identity()` and the like)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .cloud import AwsError, Cloud, digest, tag_map
from .eks_rules import addon_version
from .wire import Props

FUNCTIONS: dict[str, Callable[[Cloud, Props], Props]] = {}


def function(token: str) -> Callable[[Callable[[Cloud, Props], Props]], Callable[[Cloud, Props], Props]]:
    """Register the answer to one token."""

    def register(call: Callable[[Cloud, Props], Props]) -> Callable[[Cloud, Props], Props]:
        FUNCTIONS[token] = call
        return call

    return register


def invoke(cloud: Cloud, token: str, arguments: Props) -> Props:
    """Answer a call; the region is part of every answer, as in version 7 of the provider."""
    call = FUNCTIONS.get(token)
    if call is None:
        raise AwsError(f"the emulator has no function {token}; it has {', '.join(sorted(FUNCTIONS))}")
    answer = {"region": cloud.region} | arguments | call(cloud, arguments)
    return {"id": token} | answer


@function("aws:index/getCallerIdentity:getCallerIdentity")
def _identity(cloud: Cloud, p: Props) -> Props:
    number = cloud.account.number
    return {
        "accountId": number,
        "arn": f"arn:aws:iam::{number}:user/emulator",
        "userId": "AIDAEMULATOR",
        "id": number,
    }


@function("aws:index/getRegion:getRegion")
def _region(cloud: Cloud, p: Props) -> Props:
    name = p.get("region") or p.get("name") or cloud.region
    return {
        "id": name,
        "name": name,
        "region": name,
        "description": name,
        "endpoint": f"ec2.{name}.amazonaws.com",
    }


@function("aws:index/getPartition:getPartition")
def _partition(cloud: Cloud, p: Props) -> Props:
    return {
        "partition": "aws",
        "id": "aws",
        "dnsSuffix": "amazonaws.com",
        "reverseDnsPrefix": "com.amazonaws",
    }


@function("aws:index/getAvailabilityZones:getAvailabilityZones")
def _zones(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("ec2").describe_availability_zones()["AvailabilityZones"]
    zones = [zone for zone in found if zone["ZoneId"] not in (p.get("excludeZoneIds") or [])]
    return {
        "id": cloud.region,
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone["ZoneId"] for zone in zones],
        "groupNames": [cloud.region],
    }


@function("aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings")
def _offerings(cloud: Cloud, p: Props) -> Props:
    filters = [{"Name": f["name"], "Values": f["values"]} for f in p.get("filters") or []]
    kind = p.get("locationType", "region")
    found = cloud.client("ec2").describe_instance_type_offerings(LocationType=kind, Filters=filters)
    offers = found["InstanceTypeOfferings"]
    return {
        "instanceTypes": [offer["InstanceType"] for offer in offers],
        "locations": [offer["Location"] for offer in offers],
        "locationTypes": [kind for _ in offers],
    }


@function("aws:ec2/getInstanceType:getInstanceType")
def _instance_type(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("ec2").describe_instance_types(InstanceTypes=[p["instanceType"]])["InstanceTypes"][0]
    return {
        "id": p["instanceType"],
        "defaultVcpus": found["VCpuInfo"]["DefaultVCpus"],
        "memorySize": found["MemoryInfo"]["SizeInMiB"],
        "supportedArchitectures": found["ProcessorInfo"]["SupportedArchitectures"],
    }


@function("aws:ssm/getParameter:getParameter")
def _parameter(cloud: Cloud, p: Props) -> Props:
    name = p["name"]
    if not name.startswith("/aws/service/"):
        found = cloud.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    else:  # Amazon's public parameters: images and release versions
        minor = name.partition("/optimized-ami/")[2].partition("/")[0]
        found = f"{minor}.0-20261101" if name.endswith("release_version") else f"ami-{digest(name)}"
    return {
        "value": found,
        "insecureValue": found,
        "type": "String",
        "version": 1,
        "id": name,
        "arn": cloud.arn("ssm", f"parameter{name}"),
    }


@function("aws:ec2/getAmi:getAmi")
def _ami(cloud: Cloud, p: Props) -> Props:
    image = f"ami-{digest(json.dumps(p, sort_keys=True))}"
    return {
        "id": image,
        "imageId": image,
        "name": "emulated",
        "rootDeviceName": "/dev/xvda",
        "architecture": "x86_64",
        "arn": cloud.arn("ec2", f"image/{image}"),
        "state": "available",
    }


@function("aws:iam/getPolicyDocument:getPolicyDocument")
def _policy(cloud: Cloud, p: Props) -> Props:
    statements = []
    for given in p.get("statements") or []:
        made: Props = {"Effect": given.get("effect", "Allow")}
        for source, target in (
            ("sid", "Sid"),
            ("actions", "Action"),
            ("notActions", "NotAction"),
            ("resources", "Resource"),
            ("notResources", "NotResource"),
        ):
            if given.get(source):
                made[target] = given[source]
        for principal in given.get("principals") or []:
            made.setdefault("Principal", {})[principal["type"]] = principal["identifiers"]
        for condition in given.get("conditions") or []:
            made.setdefault("Condition", {}).setdefault(condition["test"], {})[condition["variable"]] = (
                condition["values"]
            )
        statements.append(made)
    text = json.dumps({"Version": p.get("version", "2012-10-17"), "Statement": statements})
    return {"json": text, "minifiedJson": text, "id": digest(text)}


def _filters(p: Props) -> list[dict[str, Any]]:
    named = [{"Name": f["name"], "Values": f["values"]} for f in p.get("filters") or []]
    return named + [{"Name": f"tag:{key}", "Values": [text]} for key, text in (p.get("tags") or {}).items()]


@function("aws:ec2/getVpc:getVpc")
def _vpc(cloud: Cloud, p: Props) -> Props:
    ids = {"VpcIds": [p["id"]]} if p.get("id") else {}
    found = cloud.client("ec2").describe_vpcs(Filters=_filters(p), **ids)["Vpcs"]
    if len(found) != 1:
        raise AwsError(f"{len(found)} VPCs match; exactly one must")
    flags = {}
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        answer = cloud.client("ec2").describe_vpc_attribute(VpcId=found[0]["VpcId"], Attribute=name)
        flags[name] = answer[name[0].upper() + name[1:]]["Value"]
    rid = found[0]["VpcId"]
    return {
        "id": rid,
        "cidrBlock": found[0]["CidrBlock"],
        "arn": cloud.arn("ec2", f"vpc/{rid}"),
        "tags": tag_map(found[0].get("Tags")),
        "default": found[0]["IsDefault"],
        "cidrBlockAssociations": [
            {"cidrBlock": item["CidrBlock"], "associationId": item["AssociationId"], "state": "associated"}
            for item in found[0]["CidrBlockAssociationSet"]
        ],
        **flags,
    }


@function("aws:ec2/getSubnets:getSubnets")
def _subnets(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("ec2").describe_subnets(Filters=_filters(p))["Subnets"]
    return {"ids": [subnet["SubnetId"] for subnet in found], "id": cloud.region}


@function("aws:ec2/getSubnet:getSubnet")
def _subnet(cloud: Cloud, p: Props) -> Props:
    ids = {"SubnetIds": [p["id"]]} if p.get("id") else {}
    found = cloud.client("ec2").describe_subnets(Filters=_filters(p), **ids)["Subnets"]
    if len(found) != 1:
        raise AwsError(f"{len(found)} subnets match; exactly one must")
    one = found[0]
    return {
        "id": one["SubnetId"],
        "vpcId": one["VpcId"],
        "cidrBlock": one["CidrBlock"],
        "availabilityZone": one["AvailabilityZone"],
        "availabilityZoneId": one["AvailabilityZoneId"],
        "availableIpAddressCount": one["AvailableIpAddressCount"],
        "tags": tag_map(one.get("Tags")),
        "mapPublicIpOnLaunch": one["MapPublicIpOnLaunch"],
        "arn": cloud.arn("ec2", f"subnet/{one['SubnetId']}"),
    }


@function("aws:ec2/getSecurityGroup:getSecurityGroup")
def _security_group(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("ec2").describe_security_groups(GroupIds=[p["id"]])["SecurityGroups"][0]
    return {"id": p["id"], "name": found["GroupName"], "vpcId": found["VpcId"]}


@function("aws:ec2/getRouteTable:getRouteTable")
def _route_table(cloud: Cloud, p: Props) -> Props:
    filters = _filters(p)
    if p.get("subnetId"):
        filters.append({"Name": "association.subnet-id", "Values": [p["subnetId"]]})
    found = cloud.client("ec2").describe_route_tables(Filters=filters)["RouteTables"]
    if len(found) != 1:
        raise AwsError(f"{len(found)} route tables match; exactly one must")
    return {
        "id": found[0]["RouteTableId"],
        "routeTableId": found[0]["RouteTableId"],
        "vpcId": found[0]["VpcId"],
    }


@function("aws:eks/getCluster:getCluster")
def _cluster(cloud: Cloud, p: Props) -> Props:
    record = cloud.account.get("aws:eks/cluster:Cluster", p["name"])
    if record is None:
        raise AwsError(f"ResourceNotFoundException: No cluster found for name: {p['name']}")
    known = record.outputs
    return known | {"id": p["name"], "certificateAuthorities": [known["certificateAuthority"]]}


@function("aws:eks/getClusterAuth:getClusterAuth")
def _auth(cloud: Cloud, p: Props) -> Props:
    return {"id": p["name"], "token": token(cloud.account.about["cluster"])}


@function("aws:eks/getAddonVersion:getAddonVersion")
def _addon_version(cloud: Cloud, p: Props) -> Props:
    return {"id": p["addonName"], "version": addon_version(p["kubernetesVersion"])}


@function("aws:resourcegroupstaggingapi/getResources:getResources")
def _by_tags(cloud: Cloud, p: Props) -> Props:
    wanted = {item["key"]: item["values"] for item in p.get("tagFilters") or []}
    found = [
        {"resourceArn": record.outputs["arn"], "tags": record.inputs["tags"], "complianceDetails": []}
        for record in cloud.account.all()
        if record.inputs.get("tags")
        and record.outputs.get("arn")
        and all(record.inputs["tags"].get(key) in values for key, values in wanted.items())
    ]
    return {"resourceTagMappingLists": found, "id": cloud.region}


@function("aws:cloudwatch/getLogGroups:getLogGroups")
def _log_groups(cloud: Cloud, p: Props) -> Props:
    prefix = p.get("logGroupNamePrefix") or ""
    found = cloud.client("logs").describe_log_groups(logGroupNamePrefix=prefix)["logGroups"]
    names = [group["logGroupName"] for group in found]
    return {"logGroupNames": names, "arns": [cloud.arn("logs", f"log-group:{name}") for name in names]}


@function("aws:efs/getFileSystem:getFileSystem")
def _file_system(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("efs").describe_file_systems(FileSystemId=p["fileSystemId"])["FileSystems"][0]
    arn = cloud.arn("elasticfilesystem", f"file-system/{p['fileSystemId']}")
    return {"id": p["fileSystemId"], "arn": arn, "kmsKeyId": found.get("KmsKeyId", "")}


@function("aws:efs/getAccessPoint:getAccessPoint")
def _access_point(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("efs").describe_access_points(AccessPointId=p["accessPointId"])["AccessPoints"][0]
    return {"id": p["accessPointId"], "arn": found["AccessPointArn"], "fileSystemId": found["FileSystemId"]}


@function("aws:s3/getBucket:getBucket")
def _bucket(cloud: Cloud, p: Props) -> Props:
    cloud.client("s3").head_bucket(Bucket=p["bucket"])
    return {"id": p["bucket"], "arn": f"arn:aws:s3:::{p['bucket']}"}


@function("aws:ecr/getRepository:getRepository")
def _repository(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("ecr").describe_repositories(repositoryNames=[p["name"]])["repositories"][0]
    return {"id": p["name"], "arn": found["repositoryArn"], "repositoryUrl": found["repositoryUri"]}


@function("aws:route53/getZone:getZone")
def _zone(cloud: Cloud, p: Props) -> Props:
    route53 = cloud.client("route53")
    wanted = str(p.get("name", "")).rstrip(".")
    for zone in route53.list_hosted_zones()["HostedZones"]:
        rid, name = zone["Id"].rpartition("/")[2], zone["Name"].rstrip(".")
        private = zone["Config"]["PrivateZone"]
        if p.get("zoneId") == rid or (name == wanted and private == bool(p.get("privateZone"))):
            servers = route53.get_hosted_zone(Id=rid).get("DelegationSet", {}).get("NameServers", [])
            return {
                "id": rid,
                "zoneId": rid,
                "name": name,
                "nameServers": servers,
                "privateZone": private,
                "arn": f"arn:aws:route53:::hostedzone/{rid}",
            }
    raise AwsError(f"no matching Route 53 Hosted Zone found: {p}")


@function("aws:kms/getKey:getKey")
def _key(cloud: Cloud, p: Props) -> Props:
    found = cloud.client("kms").describe_key(KeyId=p["keyId"])["KeyMetadata"]
    return {
        "id": found["KeyId"],
        "arn": found["Arn"],
        "enabled": found["Enabled"],
        "keyState": found["KeyState"],
    }


def token(cluster: dict[str, str]) -> str:
    """The token that the emulated cluster's API server knows.

    Raises:
        AwsError: the account was made without a token file.
    """
    path = cluster.get("tokenFile")
    if not path:
        raise AwsError(
            "this emulated account has no cluster token: Account.create(cluster={'tokenFile': …}) gives one"
        )
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.read().strip()
