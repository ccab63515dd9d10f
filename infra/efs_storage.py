"""The shared file system: EFS, a mount target in each zone, and an access point that sets the pods' user."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import iam_policies
from infra.aws_context import AwsComponent, AwsContext
from infra.kept_data import ACCESS_POINT, FILE_SYSTEM
from infra.vpc_network import SelectedNetwork

NFS_PORT = 2049
POD_UID = 10001
POD_GID = 10001


class EfsStorage(AwsComponent):
    """paddle:infra:Storage: the file system with its mount targets, access point and policies.

    Security groups have no access to the file system until `allow_nfs` is called for them.
    """

    def __init__(self, context: AwsContext, network: SelectedNetwork, key_arn: pulumi.Input[str]) -> None:
        super().__init__("paddle:infra:Storage", context, "storage")
        settings = context.settings.storage
        days = settings.archive_after_days
        policies: list[dict[str, str]] = []
        if days > 0:
            period = "AFTER_1_DAY" if days == 1 else f"AFTER_{days}_DAYS"
            # A file moves back when it is read, so a resumed training does not pay for each access.
            policies = [
                {"transition_to_ia": period},
                {"transition_to_primary_storage_class": "AFTER_1_ACCESS"},
            ]
        self.file_system = aws.efs.FileSystem(
            context.named("efs"),
            encrypted=True,
            kms_key_id=key_arn,
            performance_mode="generalPurpose",
            throughput_mode=settings.throughput,
            lifecycle_policies=policies,
            opts=context.retain(self, FILE_SYSTEM),
        )
        # Retained with the file system: removing the policy would turn off the backups of retained data.
        aws.efs.BackupPolicy(
            context.named("efs"),
            file_system_id=self.file_system.id,
            backup_policy={"status": "ENABLED" if settings.backup else "DISABLED"},
            opts=context.retain(self),
        )
        self.group = aws.ec2.SecurityGroup(
            context.named("efs"),
            vpc_id=network.vpc_id,
            description="NFS from the nodes to the file system",
            opts=self.child,
        )
        self.mount_targets = [
            aws.efs.MountTarget(
                context.named(f"efs-{name}"),
                file_system_id=self.file_system.id,
                subnet_id=subnet,
                security_groups=[self.group.id],
                opts=self.child,
            )
            for name, subnet in network.subnets.items()
        ]
        # uid and gid of every pod of the chart; the access point enforces the same.
        user = {"uid": POD_UID, "gid": POD_GID}
        self.access_point = aws.efs.AccessPoint(
            context.named("pods"),
            file_system_id=self.file_system.id,
            posix_user=user,
            root_directory={
                "path": "/paddle-training",
                "creation_info": {"owner_uid": user["uid"], "owner_gid": user["gid"], "permissions": "0775"},
            },
            opts=context.retain(self, ACCESS_POINT),
        )
        if settings.type == "efs-csi":
            # Never retained: with another storage type, nodes mount without IAM, and the policy would reject them.
            aws.efs.FileSystemPolicy(
                context.named("efs"),
                file_system_id=self.file_system.id,
                policy=self.policy("file system"),
                opts=self.child,
            )
        elif settings.type == "nfs" and settings.server == "":
            pulumi.log.warn(
                "storage.type nfs: the file system has no file-system policy, because Kubernetes mounts NFS without "
                "TLS and IAM. Whoever reaches its mount targets can read and write all of it as root; only security "
                "groups and NetworkPolicies prevent this. Fix: set storage.type to efs-csi"
            )
        self.register_outputs({"fileSystemId": self.file_system.id, "accessPointId": self.access_point.id})

    def policy(self, document: str) -> pulumi.Output[str]:
        """Return the policy `document` of infra/policies.yaml, with the ARNs of file system and access point."""
        arns = pulumi.Output.all(file_system=self.file_system.arn, access_point=self.access_point.arn)
        return arns.apply(lambda found: iam_policies.policy(document, **found))

    def allow_nfs(self, who: str, group: pulumi.Input[str]) -> aws.vpc.SecurityGroupIngressRule:
        """Allow NFS, and nothing else, from the security group `group`. The name of the rule contains `who`."""
        return aws.vpc.SecurityGroupIngressRule(
            self.context.named(f"efs-from-{who}"),
            security_group_id=self.group.id,
            referenced_security_group_id=group,
            ip_protocol="tcp",
            from_port=NFS_PORT,
            to_port=NFS_PORT,
            description=f"NFS from the {who}",
            opts=self.child,
        )
