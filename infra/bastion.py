"""A small EC2 instance that mounts the shared file system. Users log in with Session Manager to look at the files."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import aws_facts
from infra.aws_context import AwsComponent, AwsContext
from infra.efs_storage import EfsStorage
from infra.vpc_network import SelectedNetwork

IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{architecture}"
MOUNT_POINT = "/efs"


def mount_entry(host: str, file_system: str, access_point: str, *, with_iam: bool) -> str:
    """Return the line of /etc/fstab that mounts the stack's EFS file system.

    With `with_iam` (storage type `efs-csi`), the line mounts the access point through efs-utils, with TLS and the role
    of the instance: the file-system policy requires these. Without `with_iam` (every other storage type), the line
    mounts the root of the file system by NFS. `host` is the DNS name of the file system, `file_system` and
    `access_point` are ids.
    """
    options = f"{aws_facts.NFS_MOUNT_OPTIONS},_netdev"
    if with_iam:
        return f"{file_system}:/ {MOUNT_POINT} efs {options},tls,iam,accesspoint={access_point} 0 0"
    return f"{host}:/ {MOUNT_POINT} nfs4 {options} 0 0"


def user_data(entry: str) -> str:
    """Return the script that the instance runs at its first start.

    The script writes `entry` to /etc/fstab and mounts the file system. Because of this entry, the file system is
    mounted again after every restart.
    """
    return "\n".join(
        [
            "#!/bin/bash",
            "set -euo pipefail",
            # It brings the mount types efs and nfs4.
            "dnf install -y amazon-efs-utils",
            f"mkdir -p {MOUNT_POINT}",
            f"echo '{entry}' >> /etc/fstab",
            # The name of a new mount target resolves only after about a minute.
            f"for i in $(seq 30); do mount {MOUNT_POINT} && break; sleep 10; done",
            f"mountpoint -q {MOUNT_POINT}",
            "",
        ]
    )


class Bastion(AwsComponent):
    """paddle:infra:Bastion: an EC2 instance that mounts the file system. It has no open port and no SSH key."""

    def __init__(
        self, context: AwsContext, network: SelectedNetwork, storage: EfsStorage, key_arn: pulumi.Input[str]
    ) -> None:
        super().__init__("paddle:infra:Bastion", context, "bastion")
        name, instance_type = context.named("bastion"), context.settings.bastion.instance_type
        with_iam = context.settings.storage.type == "efs-csi"
        role = self.create_role("bastion", "trust of EC2")
        # The network comes first, because it gives the subnet internet access.
        ready = [*network.ready, self.attach_aws_policy("bastion", role, "AmazonSSMManagedInstanceCore")]
        if with_iam:
            ready.append(self.add_inline_policy("bastion", role, storage.policy("EFS mount")))
        profile = aws.iam.InstanceProfile(
            name, role=role.name, path=context.settings.iam.path, opts=self.child
        )
        group = aws.ec2.SecurityGroup(
            name, vpc_id=network.vpc_id, description="The bastion: nothing in", opts=self.child
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
        architecture = "arm64" if aws_facts.is_arm(instance_type) else "x86_64"
        image = aws.ssm.get_parameter(
            name=IMAGE.format(architecture=architecture), opts=pulumi.InvokeOptions(parent=self)
        )
        self.instance = aws.ec2.Instance(
            name,
            ami=image.value,
            instance_type=instance_type,
            subnet_id=next(iter(network.subnets.values())),
            vpc_security_group_ids=[group.id],
            iam_instance_profile=profile.name,
            associate_public_ip_address=False,
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            },
            root_block_device={"encrypted": True, "kms_key_id": key_arn, "volume_type": "gp3"},
            user_data=pulumi.Output.all(
                storage.file_system.dns_name, storage.file_system.id, storage.access_point.id
            ).apply(lambda found: user_data(mount_entry(*found, with_iam=with_iam))),
            user_data_replace_on_change=True,
            volume_tags=context.tagged("bastion"),
            # A newer machine image must not replace an instance that somebody may be using.
            opts=pulumi.ResourceOptions(
                parent=self, ignore_changes=["ami"], depends_on=[egress, nfs, *storage.mount_targets, *ready]
            ),
        )
        self.register_outputs({"instanceId": self.instance.id})
