"""The shared file system: EFS, a mount target per zone, an access point that enforces the pods' user."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from infra import kept, versions
from infra.context import Context
from infra.settings import Storage as StorageSettings


class Storage(pulumi.ComponentResource):
    """paddle:infra:Storage: outlives cluster and nodes; who may mount it is added by `admit`.

    `subnets`: one subnet of each zone in use, by a name that stays (EFS takes one mount target a zone).
    """

    def __init__(
        self,
        context: Context,
        *,
        vpc_id: pulumi.Input[str],
        subnets: Mapping[str, pulumi.Input[str]],
        key_arn: pulumi.Input[str],
        settings: StorageSettings,
    ) -> None:
        super().__init__("paddle:infra:Storage", context.named("storage"))
        self._context = context
        own = pulumi.ResourceOptions(parent=self)
        days = settings.archive_after_days
        policies: list[aws.efs.FileSystemLifecyclePolicyArgs] = []
        if days > 0:
            period = "AFTER_1_DAY" if days == 1 else f"AFTER_{days}_DAYS"
            # Read again, a file comes back, so that a resumed training does not pay for each access.
            policies = [
                aws.efs.FileSystemLifecyclePolicyArgs(transition_to_ia=period),
                aws.efs.FileSystemLifecyclePolicyArgs(transition_to_primary_storage_class="AFTER_1_ACCESS"),
            ]
        self.file_system = aws.efs.FileSystem(
            context.named("efs"),
            encrypted=True,
            kms_key_id=key_arn,
            performance_mode="generalPurpose",
            throughput_mode=settings.throughput,
            lifecycle_policies=policies,
            tags=context.tagged("efs"),
            opts=context.keep(self, kept.FILES),
        )
        # Kept with the file system: removing it would turn the backups of kept data off.
        aws.efs.BackupPolicy(
            context.named("efs"),
            file_system_id=self.file_system.id,
            backup_policy={"status": "ENABLED" if settings.backup else "DISABLED"},
            opts=context.keep(self),
        )
        self.group = aws.ec2.SecurityGroup(
            context.named("efs"),
            vpc_id=vpc_id,
            description="NFS from the nodes to the file system",
            tags=context.tagged("efs"),
            opts=own,
        )
        self.mount_targets = [
            aws.efs.MountTarget(
                context.named(f"efs-{name}"),
                file_system_id=self.file_system.id,
                subnet_id=subnet,
                security_groups=[self.group.id],
                opts=own,
            )
            for name, subnet in subnets.items()
        ]
        user = {"uid": versions.POD_UID, "gid": versions.POD_GID}
        self.access_point = aws.efs.AccessPoint(
            context.named("pods"),
            file_system_id=self.file_system.id,
            posix_user=user,
            root_directory={
                "path": "/paddle-training",
                "creation_info": {"owner_uid": user["uid"], "owner_gid": user["gid"], "permissions": "0775"},
            },
            tags=context.tagged("pods"),
            opts=context.keep(self, kept.POINT),
        )
        self.register_outputs({"fileSystemId": self.file_system.id, "accessPointId": self.access_point.id})

    def admit(self, who: str, group: pulumi.Input[str]) -> aws.vpc.SecurityGroupIngressRule:
        """Opens NFS, and nothing else, to one security group."""
        name = self._context.named(f"efs-from-{who}")
        return aws.vpc.SecurityGroupIngressRule(
            name,
            security_group_id=self.group.id,
            referenced_security_group_id=group,
            ip_protocol="tcp",
            from_port=versions.NFS_PORT,
            to_port=versions.NFS_PORT,
            description=f"NFS from the {who}",
            tags=self._context.tagged(f"efs-from-{who}"),
            opts=pulumi.ResourceOptions(parent=self),
        )
