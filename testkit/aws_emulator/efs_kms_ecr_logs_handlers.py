"""Handlers of EFS, KMS, ECR and log groups, with moto."""

from __future__ import annotations

import json
import uuid
from typing import Any

from testkit.aws_emulator.handler import (
    Handler,
    MotoCloud,
    pick_arguments,
    register_handler,
    tag_list,
    tag_map,
)
from testkit.aws_emulator.property_values import Props


class EfsHandler(Handler):
    def efs(self, cloud: MotoCloud) -> Any:
        return cloud.client("efs")

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        self.efs(cloud).tag_resource(ResourceId=rid, Tags=tag_list(tags))

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        self.efs(cloud).untag_resource(ResourceId=rid, TagKeys=keys)


@register_handler("aws:efs/fileSystem:FileSystem")
class FileSystem(EfsHandler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            PerformanceMode="performanceMode",
            Encrypted="encrypted",
            KmsKeyId="kmsKeyId",
            ThroughputMode="throughputMode",
        )
        rid = self.efs(cloud).create_file_system(CreationToken=uuid.uuid4().hex, **wanted)["FileSystemId"]
        return rid, {"dnsName": f"{rid}.efs.{cloud.region}.amazonaws.com"}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.efs(cloud).describe_file_systems(FileSystemId=rid)["FileSystems"][0]
        seen = pick_arguments(found, encrypted="Encrypted", throughputMode="ThroughputMode")
        return seen | {"tags": tag_map(found["Tags"])}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.efs(cloud).delete_file_system(FileSystemId=rid)


@register_handler("aws:efs/mountTarget:MountTarget")
class MountTarget(EfsHandler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p, FileSystemId="fileSystemId", SubnetId="subnetId", SecurityGroups="securityGroups"
        )
        return self.efs(cloud).create_mount_target(**wanted)["MountTargetId"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.efs(cloud).describe_mount_target_security_groups(MountTargetId=rid)
        return {"securityGroups": found["SecurityGroups"]}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        groups = new.get("securityGroups") or []
        self.efs(cloud).modify_mount_target_security_groups(MountTargetId=rid, SecurityGroups=groups)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.efs(cloud).delete_mount_target(MountTargetId=rid)


@register_handler("aws:efs/accessPoint:AccessPoint")
class AccessPoint(EfsHandler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        return self.efs(cloud).create_access_point(FileSystemId=p["fileSystemId"])["AccessPointId"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.efs(cloud).describe_access_points(AccessPointId=rid)["AccessPoints"][0]
        return {"fileSystemId": found["FileSystemId"], "tags": tag_map(found.get("Tags"))}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.efs(cloud).delete_access_point(AccessPointId=rid)


@register_handler("aws:efs/fileSystemPolicy:FileSystemPolicy")
class FileSystemPolicy(EfsHandler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        self.update(cloud, "", {}, p)
        return p["fileSystemId"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.efs(cloud).describe_file_system_policy(FileSystemId=rid)
        return {"fileSystemId": rid, "policy": found["Policy"]}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self.efs(cloud).put_file_system_policy(FileSystemId=new["fileSystemId"], Policy=new["policy"])
        return {}


@register_handler("aws:efs/backupPolicy:BackupPolicy")
class BackupPolicy(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cloud.client("efs").describe_file_systems(FileSystemId=p["fileSystemId"])
        return p["fileSystemId"], {}


@register_handler("aws:kms/key:Key")
class Key(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, Policy="policy", Description="description")
        rid = cloud.client("kms").create_key(**wanted)["KeyMetadata"]["KeyId"]
        self.update(cloud, rid, p, p)
        return rid, {}

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
        if new.get("policy") != old.get("policy"):
            kms.put_key_policy(KeyId=rid, PolicyName="default", Policy=new["policy"])
        (kms.enable_key_rotation if new.get("enableKeyRotation") else kms.disable_key_rotation)(KeyId=rid)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        days = p.get("deletionWindowInDays", 30)
        cloud.client("kms").schedule_key_deletion(KeyId=rid, PendingWindowInDays=days)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        cloud.client("kms").tag_resource(KeyId=rid, Tags=tag_list(tags, "TagKey", "TagValue"))

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        cloud.client("kms").untag_resource(KeyId=rid, TagKeys=keys)


@register_handler("aws:kms/alias:Alias")
class Alias(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cloud.client("kms").create_alias(AliasName=p["name"], TargetKeyId=p["targetKeyId"])
        return p["name"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        aliases = cloud.client("kms").list_aliases()["Aliases"]
        return {} if any(alias["AliasName"] == rid for alias in aliases) else None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        cloud.client("kms").update_alias(AliasName=rid, TargetKeyId=new["targetKeyId"])
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("kms").delete_alias(AliasName=rid)


@register_handler("aws:ecr/repository:Repository")
class Repository(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, imageTagMutability="imageTagMutability")
        for encryption in p.get("encryptionConfigurations") or []:
            wanted["encryptionConfiguration"] = encryption
        cloud.client("ecr").create_repository(repositoryName=p["name"], **wanted)
        url = f"{cloud.account.number}.dkr.ecr.{cloud.region}.amazonaws.com/{p['name']}"
        return p["name"], {"repositoryUrl": url}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        ecr = cloud.client("ecr")
        found = ecr.describe_repositories(repositoryNames=[rid])["repositories"][0]
        tags = ecr.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]
        return {"tags": tag_map(tags), "imageTagMutability": found["imageTagMutability"]}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        mutability = new.get("imageTagMutability", "MUTABLE")
        cloud.client("ecr").put_image_tag_mutability(repositoryName=rid, imageTagMutability=mutability)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("ecr").delete_repository(repositoryName=rid, force=bool(p.get("forceDelete")))

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        arn = cloud.arn("ecr", f"repository/{rid}")
        cloud.client("ecr").tag_resource(resourceArn=arn, tags=tag_list(tags))

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        arn = cloud.arn("ecr", f"repository/{rid}")
        cloud.client("ecr").untag_resource(resourceArn=arn, tagKeys=keys)


@register_handler("aws:ecr/lifecyclePolicy:LifecyclePolicy")
class LifecyclePolicy(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        text = p["policy"]
        cloud.client("ecr").put_lifecycle_policy(repositoryName=p["repository"], lifecyclePolicyText=text)
        return p["repository"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = cloud.client("ecr").get_lifecycle_policy(repositoryName=rid)
        return {"repository": rid, "policy": found["lifecyclePolicyText"]}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("ecr").delete_lifecycle_policy(repositoryName=rid)


def expire_images(cloud: MotoCloud) -> None:
    """Remove the images that the lifecycle policies select, as ECR does within a day, with all images a year old."""
    ecr = cloud.client("ecr")
    for record in cloud.account.all("aws:ecr/lifecyclePolicy:LifecyclePolicy"):
        repository = record.inputs["repository"]
        images = ecr.list_images(repositoryName=repository)[
            "imageIds"
        ]  # in the order in which they were pushed
        for rule in json.loads(record.inputs["policy"])["rules"]:
            chosen = rule["selection"]
            found = [each for each in images if chosen["tagStatus"] != "untagged" or not each.get("imageTag")]
            by_number = chosen["countType"] == "imageCountMoreThan"
            old = found[: max(len(found) - chosen["countNumber"], 0)] if by_number else found
            if old:
                ecr.batch_delete_image(repositoryName=repository, imageIds=old)


@register_handler("aws:cloudwatch/logGroup:LogGroup")
class LogGroup(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cloud.client("logs").create_log_group(logGroupName=p["name"])
        self.update(cloud, p["name"], {}, p)
        return p["name"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        logs = cloud.client("logs")
        groups = logs.describe_log_groups(logGroupNamePrefix=rid)["logGroups"]
        found = next((group for group in groups if group["logGroupName"] == rid), None)
        if found is None:
            return None
        seen = {"name": rid, "tags": logs.list_tags_log_group(logGroupName=rid)["tags"]}
        return seen | pick_arguments(found, retentionInDays="retentionInDays")

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        if new.get("retentionInDays"):
            days = new["retentionInDays"]
            cloud.client("logs").put_retention_policy(logGroupName=rid, retentionInDays=days)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("logs").delete_log_group(logGroupName=rid)
        if cloud.account.has_late_logs() and rid.startswith("/aws/eks/"):
            # The control plane's last lines arrive later and create the group again, without retention and tags.
            cloud.client("logs").create_log_group(logGroupName=rid)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        cloud.client("logs").tag_log_group(logGroupName=rid, tags=tags)

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        cloud.client("logs").untag_log_group(logGroupName=rid, tags=keys)
