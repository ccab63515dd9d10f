"""A small EC2 instance that mounts the file system, for users who want to inspect it by Session Manager."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra import constants, node_capacity
from infra.aws_context import AwsComponent, AwsContext
from infra.efs_storage import EfsStorage
from infra.iam_roles import attach_aws_policy, create_role

IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{architecture}"
MOUNT_POINT = "/efs"


def user_data(file_system_host: str) -> str:
    """Return the start script of the instance: it mounts the file system now and after every restart."""
    entry = f"{file_system_host}:/ {MOUNT_POINT} nfs4 {constants.NFS_MOUNT_OPTIONS},_netdev 0 0"
    return "\n".join(
        [
            "#!/bin/bash",
            "set -euo pipefail",
            "dnf install -y nfs-utils",
            f"mkdir -p {MOUNT_POINT}",
            f"echo '{entry}' >> /etc/fstab",
            # The name of a new mount target resolves only after about a minute.
            f"for i in $(seq 30); do mount {MOUNT_POINT} && break; sleep 10; done",
            f"mountpoint -q {MOUNT_POINT}",
            "",
        ]
    )


class Bastion(AwsComponent):
    """paddle:infra:Bastion: an EC2 instance that mounts the file system, without open ports and ssh keys.

    `ready` are the resources that give its subnet internet access.
    """

    def __init__(
        self,
        context: AwsContext,
        storage: EfsStorage,
        *,
        vpc_id: pulumi.Input[str],
        subnet_id: pulumi.Input[str],
        key_arn: pulumi.Input[str],
        instance_type: str,
        ready: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Bastion", context, "bastion")
        name = context.named("bastion")
        role = create_role(context, "bastion", "ec2.amazonaws.com", self)
        attached = attach_aws_policy(context, "bastion", role, "AmazonSSMManagedInstanceCore", self)
        profile = aws.iam.InstanceProfile(name, role=role.name, path=context.iam.path, opts=self.child)
        group = aws.ec2.SecurityGroup(
            name, vpc_id=vpc_id, description="The bastion: nothing in", opts=self.child
        )
        egress = aws.vpc.SecurityGroupEgressRule(
            context.named("bastion-out"),
            security_group_id=group.id,
            cidr_ipv4="0.0.0.0/0",
            ip_protocol="-1",
            description="Session Manager, packages and the file system",
            opts=self.child,
        )
        nfs = storage.allow_nfs("bastion", group.id)
        architecture = "arm64" if node_capacity.is_arm(instance_type) else "x86_64"
        image = aws.ssm.get_parameter(
            name=IMAGE.format(architecture=architecture), opts=pulumi.InvokeOptions(parent=self)
        )
        self.instance = aws.ec2.Instance(
            name,
            ami=image.value,
            instance_type=instance_type,
            subnet_id=subnet_id,
            vpc_security_group_ids=[group.id],
            iam_instance_profile=profile.name,
            associate_public_ip_address=False,
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            },
            root_block_device={"encrypted": True, "kms_key_id": key_arn, "volume_type": "gp3"},
            user_data=storage.file_system.dns_name.apply(user_data),
            user_data_replace_on_change=True,
            volume_tags=context.tagged("bastion"),
            # A newer machine image must not replace an instance that somebody may be using.
            opts=pulumi.ResourceOptions(
                parent=self,
                ignore_changes=["ami"],
                depends_on=[attached, egress, nfs, *storage.mount_targets, *ready],
            ),
        )
        self.register_outputs({"instanceId": self.instance.id})
