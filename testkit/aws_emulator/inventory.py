"""List what is left in an account: resources of the generic model, and of moto beyond a new account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import MotoCloud


def list_leftovers(account: Account, region: str) -> list[str]:
    """Return one line, `kind id`, for each existing resource; an empty list means an empty account.

    Not included: a KMS key with scheduled deletion, a deleted NAT gateway and a terminated instance, which
    cost nothing; and the default VPC of every account.
    """
    cloud = MotoCloud(account, region)
    found = {f"{record.type} {record.id}" for record in account.all()}
    with suppress(ClientError):
        found |= set(_moto(cloud))
    return sorted(found)


def _moto(cloud: MotoCloud) -> Iterator[str]:
    ec2 = cloud.client("ec2")
    default = {vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if vpc["IsDefault"]}

    def of(kind: str, call: Callable[[], dict[str, Any]], list_key: str, rid: str) -> Iterator[str]:
        for item in call()[list_key]:
            gone = str(item.get("State")).lower() in ("deleted", "deleting")
            if item.get("VpcId") not in default and not gone:
                yield f"{kind} {item[rid]}"

    yield from of("vpc", ec2.describe_vpcs, "Vpcs", "VpcId")
    yield from of("subnet", ec2.describe_subnets, "Subnets", "SubnetId")
    yield from of("security-group", ec2.describe_security_groups, "SecurityGroups", "GroupId")
    yield from of("route-table", ec2.describe_route_tables, "RouteTables", "RouteTableId")
    interfaces = "NetworkInterfaces"
    yield from of("network-interface", ec2.describe_network_interfaces, interfaces, "NetworkInterfaceId")
    yield from of("address", ec2.describe_addresses, "Addresses", "AllocationId")
    yield from of("nat-gateway", ec2.describe_nat_gateways, "NatGateways", "NatGatewayId")
    yield from of("vpc-endpoint", ec2.describe_vpc_endpoints, "VpcEndpoints", "VpcEndpointId")
    yield from of("launch-template", ec2.describe_launch_templates, "LaunchTemplates", "LaunchTemplateId")
    yield from of("key-pair", ec2.describe_key_pairs, "KeyPairs", "KeyName")
    for gateway in ec2.describe_internet_gateways()["InternetGateways"]:
        if not {attachment["VpcId"] for attachment in gateway["Attachments"]} & default:
            yield f"internet-gateway {gateway['InternetGatewayId']}"
    for reservation in ec2.describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            if instance["State"]["Name"] != "terminated":
                yield f"instance {instance['InstanceId']}"
    efs = cloud.client("efs")
    yield from of("file-system", efs.describe_file_systems, "FileSystems", "FileSystemId")
    yield from of("hosted-zone", cloud.client("route53").list_hosted_zones, "HostedZones", "Id")
    yield from of("bucket", cloud.client("s3").list_buckets, "Buckets", "Name")
    yield from of("repository", cloud.client("ecr").describe_repositories, "repositories", "repositoryName")
    yield from of("log-group", cloud.client("logs").describe_log_groups, "logGroups", "logGroupName")
    iam = cloud.client("iam")
    yield from of("role", iam.list_roles, "Roles", "RoleName")
    yield from of("instance-profile", iam.list_instance_profiles, "InstanceProfiles", "InstanceProfileName")
    for policy in iam.list_policies(Scope="Local")["Policies"]:
        yield f"policy {policy['Arn']}"
    for cluster in cloud.client("eks").list_clusters()["clusters"]:
        yield f"cluster {cluster}"
    kms = cloud.client("kms")
    for key in kms.list_keys()["Keys"]:
        about = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if about["KeyManager"] == "CUSTOMER" and about["KeyState"] != "PendingDeletion":
            yield f"key {key['KeyId']}"
