"""Handlers of EFS, KMS, ECR and log groups, with moto."""

from __future__ import annotations

import uuid
from typing import Any

from testkit.aws_emulator.handler import (
    Handler,
    MotoCloud,
    pick_arguments,
    register_handler,
    tag_changes,
    tag_list,
    tag_map,
)
from testkit.aws_emulator.property_values import Props


def _lifecycle(p: Props) -> list[Props]:
    names = {
        "transitionToIa": "TransitionToIA",
        "transitionToArchive": "TransitionToArchive",
        "transitionToPrimaryStorageClass": "TransitionToPrimaryStorageClass",
    }
    return [{names[key]: text} for rule in p.get("lifecyclePolicies") or [] for key, text in rule.items()]


class EfsHandler(Handler):
    def efs(self, cloud: MotoCloud) -> Any:
        return cloud.client("efs")

    def retag(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> None:
        added, removed = tag_changes(old, new)
        if added:
            self.efs(cloud).tag_resource(ResourceId=rid, Tags=tag_list(added))
        if removed:
            self.efs(cloud).untag_resource(ResourceId=rid, TagKeys=removed)


@register_handler("aws:efs/fileSystem:FileSystem")
class FileSystem(EfsHandler):
    filled = ("creationToken", "kmsKeyId", "performanceMode", "throughputMode", "encrypted", "protection")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            CreationToken="creationToken",
            PerformanceMode="performanceMode",
            Encrypted="encrypted",
            KmsKeyId="kmsKeyId",
            ThroughputMode="throughputMode",
            AvailabilityZoneName="availabilityZoneName",
        )
        wanted.setdefault("CreationToken", uuid.uuid4().hex)
        made = self.efs(cloud).create_file_system(Tags=tag_list(p.get("tags")), **wanted)
        rid = made["FileSystemId"]
        if p.get("lifecyclePolicies"):
            self.efs(cloud).put_lifecycle_configuration(FileSystemId=rid, LifecyclePolicies=_lifecycle(p))
        outputs = {
            "arn": cloud.arn("elasticfilesystem", f"file-system/{rid}"),
            "dnsName": f"{rid}.efs.{cloud.region}.amazonaws.com",
            "creationToken": wanted["CreationToken"],
            "performanceMode": p.get("performanceMode", "generalPurpose"),
            "throughputMode": p.get("throughputMode", "bursting"),
            "encrypted": p.get("encrypted", False),
            "numberOfMountTargets": 0,
            "ownerId": cloud.account.number,
            "name": (p.get("tags") or {}).get("Name", ""),
            "sizeInBytes": [{"value": 6144, "valueInIa": 0, "valueInStandard": 6144}],
        }
        return rid, outputs

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.efs(cloud).describe_file_systems(FileSystemId=rid)["FileSystems"][0]
        seen: Props = {"encrypted": found.get("Encrypted", False), "tags": tag_map(found.get("Tags"))}
        return seen | ({"throughputMode": found["ThroughputMode"]} if "ThroughputMode" in found else {})

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self.retag(cloud, rid, old, new)
        if old.get("lifecyclePolicies") != new.get("lifecyclePolicies"):
            self.efs(cloud).put_lifecycle_configuration(FileSystemId=rid, LifecyclePolicies=_lifecycle(new))
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.efs(cloud).delete_file_system(FileSystemId=rid)


@register_handler("aws:efs/mountTarget:MountTarget")
class MountTarget(EfsHandler):
    filled = ("ipAddress", "securityGroups", "ipAddressType")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            FileSystemId="fileSystemId",
            SubnetId="subnetId",
            IpAddress="ipAddress",
            SecurityGroups="securityGroups",
        )
        made = self.efs(cloud).create_mount_target(**wanted)
        name = f"{p['fileSystemId']}.efs.{cloud.region}.amazonaws.com"
        outputs = {
            "ipAddress": made["IpAddress"],
            "networkInterfaceId": made["NetworkInterfaceId"],
            "availabilityZoneName": made["AvailabilityZoneName"],
            "availabilityZoneId": made["AvailabilityZoneId"],
            "dnsName": name,
            "mountTargetDnsName": f"{made['AvailabilityZoneName']}.{name}",
            "fileSystemArn": cloud.arn("elasticfilesystem", f"file-system/{p['fileSystemId']}"),
            "ownerId": cloud.account.number,
        }
        return made["MountTargetId"], outputs

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        self.efs(cloud).describe_mount_targets(MountTargetId=rid)
        groups = self.efs(cloud).describe_mount_target_security_groups(MountTargetId=rid)["SecurityGroups"]
        return {"securityGroups": groups} if p.get("securityGroups") else {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        groups = new.get("securityGroups") or []
        self.efs(cloud).modify_mount_target_security_groups(MountTargetId=rid, SecurityGroups=groups)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.efs(cloud).delete_mount_target(MountTargetId=rid)


@register_handler("aws:efs/accessPoint:AccessPoint")
class AccessPoint(EfsHandler):
    filled = ("rootDirectory",)

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        made = self.efs(cloud).create_access_point(
            FileSystemId=p["fileSystemId"], Tags=tag_list(p.get("tags"))
        )
        rid = made["AccessPointId"]
        outputs = {
            "arn": cloud.arn("elasticfilesystem", f"access-point/{rid}"),
            "fileSystemArn": cloud.arn("elasticfilesystem", f"file-system/{p['fileSystemId']}"),
            "ownerId": cloud.account.number,
        }
        return rid, outputs

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.efs(cloud).describe_access_points(AccessPointId=rid)["AccessPoints"][0]
        return {"fileSystemId": found["FileSystemId"], "tags": tag_map(found.get("Tags"))}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self.retag(cloud, rid, old, new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.efs(cloud).delete_access_point(AccessPointId=rid)


@register_handler("aws:efs/backupPolicy:BackupPolicy")
class FileSystemSetting(Handler):
    """Base class of handlers of a file system's settings; the id of a setting is that of its file system."""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cloud.client("efs").describe_file_systems(FileSystemId=p["fileSystemId"])
        return p["fileSystemId"], {}


@register_handler("aws:kms/key:Key")
class Key(Handler):
    filled = (
        "keyUsage",
        "customerMasterKeySpec",
        "policy",
        "enableKeyRotation",
        "isEnabled",
        "multiRegion",
        "rotationPeriodInDays",
        "deletionWindowInDays",
    )

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        kms = cloud.client("kms")
        wanted = pick_arguments(p, Policy="policy", Description="description", KeyUsage="keyUsage")
        made = kms.create_key(Tags=tag_list(p.get("tags"), "TagKey", "TagValue"), **wanted)["KeyMetadata"]
        self._rotation(cloud, made["KeyId"], p)
        return made["KeyId"], {
            "arn": made["Arn"],
            "keyId": made["KeyId"],
            "isEnabled": p.get("isEnabled", True),
        }

    def _rotation(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        call = "enable_key_rotation" if p.get("enableKeyRotation") else "disable_key_rotation"
        getattr(cloud.client("kms"), call)(KeyId=rid)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        kms = cloud.client("kms")
        about = kms.describe_key(KeyId=rid)["KeyMetadata"]
        if about["KeyState"] == "PendingDeletion":
            return None
        tags = tag_map(kms.list_resource_tags(KeyId=rid).get("Tags"), "TagKey", "TagValue")
        rotates = kms.get_key_rotation_status(KeyId=rid)["KeyRotationEnabled"]
        return {"tags": tags, "description": about.get("Description", ""), "enableKeyRotation": rotates}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        kms = cloud.client("kms")
        added, removed = tag_changes(old, new)
        if added:
            kms.tag_resource(KeyId=rid, Tags=tag_list(added, "TagKey", "TagValue"))
        if removed:
            kms.untag_resource(KeyId=rid, TagKeys=removed)
        if new.get("policy") and old.get("policy") != new["policy"]:
            kms.put_key_policy(KeyId=rid, PolicyName="default", Policy=new["policy"])
        self._rotation(cloud, rid, new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        days = p.get("deletionWindowInDays", 30)
        cloud.client("kms").schedule_key_deletion(KeyId=rid, PendingWindowInDays=days)


@register_handler("aws:kms/alias:Alias")
class Alias(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        key = p["targetKeyId"].rpartition("/")[2]
        cloud.client("kms").create_alias(AliasName=p["name"], TargetKeyId=key)
        return p["name"], {"arn": cloud.arn("kms", p["name"]), "targetKeyArn": cloud.arn("kms", f"key/{key}")}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        aliases = cloud.client("kms").list_aliases()["Aliases"]
        return {} if any(alias["AliasName"] == rid for alias in aliases) else None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        key = new["targetKeyId"].rpartition("/")[2]
        cloud.client("kms").update_alias(AliasName=rid, TargetKeyId=key)
        return {"targetKeyArn": cloud.arn("kms", f"key/{key}")}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("kms").delete_alias(AliasName=rid)


@register_handler("aws:ecr/repository:Repository")
class Repository(Handler):
    filled = ("imageTagMutability", "encryptionConfigurations", "imageScanningConfiguration")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted: Props = pick_arguments(
            p,
            imageTagMutability="imageTagMutability",
            imageScanningConfiguration="imageScanningConfiguration",
        )
        for encryption in p.get("encryptionConfigurations") or []:
            chosen = pick_arguments(encryption, encryptionType="encryptionType", kmsKey="kmsKey")
            wanted["encryptionConfiguration"] = {"encryptionType": "AES256"} | chosen
        made = cloud.client("ecr").create_repository(
            repositoryName=p["name"], tags=tag_list(p.get("tags")), **wanted
        )["repository"]
        outputs = {
            "arn": made["repositoryArn"],
            "repositoryUrl": f"{cloud.account.number}.dkr.ecr.{cloud.region}.amazonaws.com/{p['name']}",
            "registryId": cloud.account.number,
            "imageTagMutability": p.get("imageTagMutability", "MUTABLE"),
        }
        return p["name"], outputs

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        ecr = cloud.client("ecr")
        found = ecr.describe_repositories(repositoryNames=[rid])["repositories"][0]
        tags = ecr.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]
        return {"tags": tag_map(tags), "imageTagMutability": found["imageTagMutability"]}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        ecr, arn = cloud.client("ecr"), cloud.arn("ecr", f"repository/{rid}")
        added, removed = tag_changes(old, new)
        if added:
            ecr.tag_resource(resourceArn=arn, tags=tag_list(added))
        if removed:
            ecr.untag_resource(resourceArn=arn, tagKeys=removed)
        mutability = new.get("imageTagMutability", "MUTABLE")
        if mutability in ("MUTABLE", "IMMUTABLE"):
            ecr.put_image_tag_mutability(repositoryName=rid, imageTagMutability=mutability)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("ecr").delete_repository(repositoryName=rid, force=bool(p.get("forceDelete")))


@register_handler("aws:ecr/lifecyclePolicy:LifecyclePolicy")
class LifecyclePolicy(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        text = p["policy"]
        cloud.client("ecr").put_lifecycle_policy(repositoryName=p["repository"], lifecyclePolicyText=text)
        return p["repository"], {"registryId": cloud.account.number}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = cloud.client("ecr").get_lifecycle_policy(repositoryName=rid)
        return {"repository": rid, "policy": found["lifecyclePolicyText"]}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("ecr").delete_lifecycle_policy(repositoryName=rid)


@register_handler("aws:cloudwatch/logGroup:LogGroup")
class LogGroup(Handler):
    filled = ("logGroupClass", "retentionInDays", "deletionProtectionEnabled")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cloud.client("logs").create_log_group(logGroupName=p["name"], tags=p.get("tags") or {})
        self.update(cloud, p["name"], {"tags": p.get("tags")}, p)
        return p["name"], {"arn": cloud.arn("logs", f"log-group:{p['name']}")}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        logs = cloud.client("logs")
        groups = logs.describe_log_groups(logGroupNamePrefix=rid)["logGroups"]
        found = next((group for group in groups if group["logGroupName"] == rid), None)
        if found is None:
            return None
        seen = {"name": rid, "tags": logs.list_tags_log_group(logGroupName=rid)["tags"]}
        return seen | pick_arguments(found, retentionInDays="retentionInDays")

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        logs = cloud.client("logs")
        if new.get("retentionInDays"):
            logs.put_retention_policy(logGroupName=rid, retentionInDays=new["retentionInDays"])
        added, removed = tag_changes(old, new)
        if added:
            logs.tag_log_group(logGroupName=rid, tags=added)
        if removed:
            logs.untag_log_group(logGroupName=rid, tags=removed)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        if p.get("skipDestroy"):
            return
        cloud.client("logs").delete_log_group(logGroupName=rid)
        if cloud.account.has_late_logs() and rid.startswith("/aws/eks/"):
            # The control plane's last lines arrive later and create the group again, without retention and tags.
            cloud.client("logs").create_log_group(logGroupName=rid)
