"""A small machine that mounts the file system, for people who want to look into it. Session Manager only."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra import capacity, versions
from infra.context import Context, attach, role
from infra.storage import Storage

IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{architecture}"
MOUNT_POINT = "/efs"


def user_data(file_system_host: str) -> str:
    """What the machine does at its first start: mounts the file system, now and after every restart. Pure."""
    entry = f"{file_system_host}:/ {MOUNT_POINT} nfs4 {versions.NFS_MOUNT_OPTIONS},_netdev 0 0"
    return "\n".join(
        [
            "#!/bin/bash",
            "set -euo pipefail",
            "dnf install -y nfs-utils",
            f"mkdir -p {MOUNT_POINT}",
            f"echo '{entry}' >> /etc/fstab",
            # The name of a new mount target takes a minute to resolve.
            f"for i in $(seq 30); do mount {MOUNT_POINT} && break; sleep 10; done",
            f"mountpoint -q {MOUNT_POINT}",
            "",
        ]
    )


class Bastion(pulumi.ComponentResource):
    """paddle:infra:Bastion: no port is open, no key is installed. `ready`: what its network waits for."""

    def __init__(
        self,
        context: Context,
        storage: Storage,
        *,
        vpc_id: pulumi.Input[str],
        subnet_id: pulumi.Input[str],
        file_system_host: pulumi.Input[str],
        key_arn: pulumi.Input[str],
        instance_type: str,
        ready: Sequence[pulumi.Resource],
    ) -> None:
        after = pulumi.ResourceOptions(depends_on=list(ready))
        super().__init__("paddle:infra:Bastion", context.named("bastion"), None, after)
        own = pulumi.ResourceOptions(parent=self)
        machine_role = role(context, "bastion", "ec2.amazonaws.com", self)
        allowed = attach(context, "bastion", machine_role, "AmazonSSMManagedInstanceCore", self)
        profile = aws.iam.InstanceProfile(
            context.named("bastion"),
            role=machine_role.name,
            path=context.iam_path,
            tags=context.tagged("bastion"),
            opts=own,
        )
        group = aws.ec2.SecurityGroup(
            context.named("bastion"),
            vpc_id=vpc_id,
            description="The bastion: nothing in",
            tags=context.tagged("bastion"),
            opts=own,
        )
        out = aws.vpc.SecurityGroupEgressRule(
            context.named("bastion-out"),
            security_group_id=group.id,
            cidr_ipv4="0.0.0.0/0",
            ip_protocol="-1",
            description="Session Manager, packages and the file system",
            tags=context.tagged("bastion-out"),
            opts=own,
        )
        mount = storage.admit("bastion", group.id)
        architecture = "arm64" if capacity.is_arm(instance_type) else "x86_64"
        image = aws.ssm.get_parameter(
            name=IMAGE.format(architecture=architecture), opts=pulumi.InvokeOptions(parent=self)
        )
        self.instance = aws.ec2.Instance(
            context.named("bastion"),
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
            user_data=pulumi.Output.from_input(file_system_host).apply(user_data),
            user_data_replace_on_change=True,
            tags=context.tagged("bastion"),
            volume_tags=context.tagged("bastion"),
            # A newer machine image is no reason to replace a machine that somebody may be using.
            opts=pulumi.ResourceOptions(
                parent=self, ignore_changes=["ami"], depends_on=[allowed, out, mount, *storage.mount_targets]
            ),
        )
        self.register_outputs({"instanceId": self.instance.id})
