"""Pulumi program for tests: one resource of each type of the real program, with the same references."""

import json

import pulumi
import pulumi_aws as aws

config = pulumi.Config()
name = f"sample-{pulumi.get_stack()}"
trust = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "eks.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
)
zones = aws.get_availability_zones(state="available").names[:2]
account = aws.get_caller_identity().account_id

vpc = aws.ec2.Vpc(
    "vpc", cidr_block=config.get("vpcCidr") or "10.0.0.0/16", enable_dns_hostnames=True, tags={"Name": name}
)
gateway = aws.ec2.InternetGateway("gateway", vpc_id=vpc.id)
prefix = (config.get("vpcCidr") or "10.0.0.0/16").split(".")[1]
subnets = [
    aws.ec2.Subnet(f"subnet-{i}", vpc_id=vpc.id, cidr_block=f"10.{prefix}.{i}.0/24", availability_zone=zone)
    for i, zone in enumerate(zones)
]
address = aws.ec2.Eip("address", domain="vpc")
nat = aws.ec2.NatGateway("nat", subnet_id=subnets[0].id, allocation_id=address.id)
table = aws.ec2.RouteTable("table", vpc_id=vpc.id)
route = aws.ec2.Route(
    "route", route_table_id=table.id, destination_cidr_block="0.0.0.0/0", nat_gateway_id=nat.id
)
for i, subnet in enumerate(subnets):
    aws.ec2.RouteTableAssociation(f"association-{i}", route_table_id=table.id, subnet_id=subnet.id)
aws.ec2.VpcEndpoint(
    "s3", vpc_id=vpc.id, service_name="com.amazonaws.us-west-2.s3", route_table_ids=[table.id]
)

key = aws.kms.Key("key", enable_key_rotation=True, description="all that is at rest")
aws.kms.Alias("alias", name=f"alias/{name}", target_key_id=key.key_id)
role = aws.iam.Role("role", assume_role_policy=trust)
policy = aws.iam.RolePolicyAttachment(
    "policy", role=role.name, policy_arn="arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
)
aws.iam.RolePolicy("inline", role=role.id, policy=key.arn.apply(lambda arn: json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "kms:Decrypt", "Resource": arn}]}
)))  # fmt: skip
logs = aws.cloudwatch.LogGroup("logs", name=f"/aws/eks/{name}/cluster", retention_in_days=90)
cluster = aws.eks.Cluster(
    "cluster",
    name=name,
    role_arn=role.arn,
    version="1.35",
    bootstrap_self_managed_addons=False,
    access_config={"authentication_mode": "API", "bootstrap_cluster_creator_admin_permissions": False},
    vpc_config={"subnet_ids": [s.id for s in subnets], "endpoint_private_access": True},
    encryption_config={"provider": {"key_arn": key.arn}, "resources": ["secrets"]},
    opts=pulumi.ResourceOptions(depends_on=[policy, logs]),
)
admin = f"arn:aws:iam::{account}:role/Admin"
entry = aws.eks.AccessEntry("admin", cluster_name=cluster.name, principal_arn=admin)
aws.eks.AccessPolicyAssociation(
    "admin-policy",
    cluster_name=cluster.name,
    principal_arn=entry.principal_arn,
    policy_arn="arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
    access_scope={"type": "cluster"},
)
cni = aws.eks.Addon("vpc-cni", cluster_name=cluster.name, addon_name="vpc-cni")
group = aws.ec2.SecurityGroup("efs", vpc_id=vpc.id, description="NFS from the nodes")
aws.vpc.SecurityGroupIngressRule(
    "efs-from-nodes",
    security_group_id=group.id,
    ip_protocol="tcp",
    from_port=2049,
    to_port=2049,
    referenced_security_group_id=cluster.vpc_config.cluster_security_group_id,
)
template = aws.ec2.LaunchTemplate(
    "nodes",
    update_default_version=True,
    metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 1},
    block_device_mappings=[
        {
            "device_name": "/dev/xvda",
            "ebs": {"volume_size": config.get_int("disk") or 50, "encrypted": "true"},
        }
    ],
)
nodes = aws.eks.NodeGroup(
    "nodes",
    cluster_name=cluster.name,
    node_role_arn=role.arn,
    subnet_ids=[s.id for s in subnets],
    instance_types=["m6i.large"],
    scaling_config={"min_size": 1, "desired_size": config.get_int("nodes") or 1, "max_size": 5},
    launch_template={"id": template.id, "version": template.latest_version.apply(str)},
    opts=pulumi.ResourceOptions(depends_on=[cni]),
)
coredns = aws.eks.Addon(
    "coredns",
    cluster_name=cluster.name,
    addon_name="coredns",
    opts=pulumi.ResourceOptions(depends_on=[nodes]),
)
aws.eks.PodIdentityAssociation(
    "pods", cluster_name=cluster.name, namespace="paddle", service_account="training", role_arn=role.arn
)

files = aws.efs.FileSystem("files", encrypted=True, kms_key_id=key.arn, throughput_mode="elastic")
for i, subnet in enumerate(subnets):
    aws.efs.MountTarget(
        f"mount-{i}", file_system_id=files.id, subnet_id=subnet.id, security_groups=[group.id]
    )
aws.efs.AccessPoint(
    "access", file_system_id=files.id, posix_user={"uid": 10001, "gid": 10001}, root_directory={"path": "/"}
)
aws.efs.BackupPolicy("backup", file_system_id=files.id, backup_policy={"status": "ENABLED"})

zone = aws.route53.Zone("zone", name=f"{name}.internal", vpcs=[{"vpc_id": vpc.id}])
aws.route53.Record("efs-name", zone_id=zone.zone_id, name=f"efs.{name}.internal", type="CNAME", ttl=60,
                   records=[files.dns_name])  # fmt: skip

bucket = aws.s3.Bucket("data", force_destroy=True)
versioning = aws.s3.BucketVersioning("data", bucket=bucket.id, versioning_configuration={"status": "Enabled"})
aws.s3.BucketPublicAccessBlock("data", bucket=bucket.id, block_public_acls=True, block_public_policy=True)
aws.s3.BucketServerSideEncryptionConfiguration(
    "data",
    bucket=bucket.id,
    rules=[
        {
            "apply_server_side_encryption_by_default": {
                "sse_algorithm": "aws:kms",
                "kms_master_key_id": key.arn,
            }
        }
    ],
)
aws.s3.BucketObjectv2("rows", bucket=bucket.id, key="data/rows.csv", content="a,b\n")
images = aws.ecr.Repository("images", image_tag_mutability="IMMUTABLE", force_delete=True)
aws.ecr.LifecyclePolicy("images", repository=images.name, policy=json.dumps(
    {"rules": [{"rulePriority": 1, "description": "keep ten images", "action": {"type": "expire"},
                "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 10}}]}
))  # fmt: skip

pulumi.export("endpoint", cluster.endpoint)
pulumi.export("vpcId", vpc.id)
pulumi.export("kubernetesCa", cluster.certificate_authority.data)
