"""Input fields whose change replaces the resource.

Each row cites a document. `CFN`: the CloudFormation resource reference ("Update requires: Replacement" at the
property). `TF`: the argument reference of the Terraform AWS provider ("Forces new resource"), for types and
properties that CloudFormation lacks.
"""

from __future__ import annotations

import re

CFN = "CloudFormation resource reference, Update requires: Replacement, "
TF = "Terraform AWS provider argument reference, Forces new resource, "

_ROWS: tuple[tuple[str, str, str], ...] = (
    ("aws:ec2/vpc:Vpc", "cidrBlock", CFN + "AWS::EC2::VPC CidrBlock"),
    ("aws:ec2/subnet:Subnet", "vpcId cidrBlock availabilityZone", CFN + "AWS::EC2::Subnet"),
    ("aws:ec2/natGateway:NatGateway", "subnetId allocationId connectivityType", CFN + "AWS::EC2::NatGateway"),
    ("aws:ec2/eip:Eip", "domain", CFN + "AWS::EC2::EIP Domain"),
    ("aws:ec2/routeTable:RouteTable", "vpcId", CFN + "AWS::EC2::RouteTable VpcId"),
    ("aws:ec2/route:Route", "routeTableId destinationCidrBlock", CFN + "AWS::EC2::Route"),
    (
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "subnetId gatewayId",
        CFN + "AWS::EC2::SubnetRouteTableAssociation SubnetId",
    ),
    (
        "aws:ec2/securityGroup:SecurityGroup",
        "name namePrefix description vpcId",
        CFN + "AWS::EC2::SecurityGroup",
    ),
    (
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        "securityGroupId",
        CFN + "AWS::EC2::SecurityGroupIngress GroupId",
    ),
    (
        "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
        "securityGroupId",
        CFN + "AWS::EC2::SecurityGroupEgress GroupId",
    ),
    ("aws:ec2/vpcEndpoint:VpcEndpoint", "vpcId serviceName vpcEndpointType", CFN + "AWS::EC2::VPCEndpoint"),
    (
        "aws:ec2/launchTemplate:LaunchTemplate",
        "name namePrefix",
        CFN + "AWS::EC2::LaunchTemplate LaunchTemplateName",
    ),
    (
        "aws:ec2/placementGroup:PlacementGroup",
        "name strategy partitionCount spreadLevel",
        CFN + "AWS::EC2::PlacementGroup",
    ),
    (
        "aws:ec2/instance:Instance",
        "ami subnetId keyName availabilityZone privateIp placementGroup rootBlockDevice.encrypted "
        "rootBlockDevice.kmsKeyId associatePublicIpAddress",
        CFN + "AWS::EC2::Instance",
    ),
    (
        "aws:efs/fileSystem:FileSystem",
        "encrypted kmsKeyId performanceMode availabilityZoneName creationToken",
        CFN + "AWS::EFS::FileSystem",
    ),
    ("aws:efs/mountTarget:MountTarget", "fileSystemId subnetId ipAddress", CFN + "AWS::EFS::MountTarget"),
    (
        "aws:efs/accessPoint:AccessPoint",
        "fileSystemId posixUser rootDirectory",
        CFN + "AWS::EFS::AccessPoint",
    ),
    ("aws:efs/backupPolicy:BackupPolicy", "fileSystemId", TF + "aws_efs_backup_policy file_system_id"),
    ("aws:route53/zone:Zone", "name delegationSetId", CFN + "AWS::Route53::HostedZone Name"),
    ("aws:route53/record:Record", "zoneId name type setIdentifier", CFN + "AWS::Route53::RecordSet"),
    (
        "aws:kms/key:Key",
        "customerMasterKeySpec keyUsage multiRegion",
        CFN + "AWS::KMS::Key KeySpec, KeyUsage",
    ),
    ("aws:kms/alias:Alias", "name namePrefix", CFN + "AWS::KMS::Alias AliasName"),
    ("aws:iam/role:Role", "name namePrefix path", CFN + "AWS::IAM::Role RoleName, Path"),
    (
        "aws:iam/rolePolicy:RolePolicy",
        "name namePrefix role",
        CFN + "AWS::IAM::RolePolicy PolicyName, RoleName",
    ),
    (
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        "role policyArn",
        TF + "aws_iam_role_policy_attachment role, policy_arn",
    ),
    ("aws:iam/instanceProfile:InstanceProfile", "name namePrefix path", CFN + "AWS::IAM::InstanceProfile"),
    ("aws:s3/bucket:Bucket", "bucket bucketPrefix objectLockEnabled", CFN + "AWS::S3::Bucket BucketName"),
    (
        "aws:s3/bucketVersioning:BucketVersioning",
        "bucket",
        TF + "aws_s3_bucket_versioning",
    ),
    (
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "bucket",
        TF + "aws_s3_bucket_server_side_encryption_configuration",
    ),
    (
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "bucket",
        TF + "aws_s3_bucket_public_access_block bucket",
    ),
    ("aws:s3/bucketPolicy:BucketPolicy", "bucket", CFN + "AWS::S3::BucketPolicy Bucket"),
    (
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "bucket",
        TF + "aws_s3_bucket_ownership_controls bucket",
    ),
    (
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "bucket",
        TF + "aws_s3_bucket_lifecycle_configuration",
    ),
    ("aws:s3/bucketObjectv2:BucketObjectv2", "bucket key", TF + "aws_s3_object bucket, key"),
    ("aws:ecr/repository:Repository", "name encryptionConfigurations", CFN + "AWS::ECR::Repository"),
    ("aws:ecr/lifecyclePolicy:LifecyclePolicy", "repository policy", TF + "aws_ecr_lifecycle_policy"),
    (
        "aws:eks/cluster:Cluster",
        "name roleArn bootstrapSelfManagedAddons kubernetesNetworkConfig.ipFamily "
        "kubernetesNetworkConfig.serviceIpv4Cidr accessConfig.bootstrapClusterCreatorAdminPermissions "
        "encryptionConfig.provider encryptionConfig.resources",
        CFN + "AWS::EKS::Cluster",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        "clusterName nodeGroupName nodeGroupNamePrefix amiType capacityType diskSize instanceTypes "
        "nodeRoleArn subnetIds remoteAccess launchTemplate.id launchTemplate.name",
        CFN + "AWS::EKS::Nodegroup (launchTemplate.id and .name: TF aws_eks_node_group)",
    ),
    ("aws:eks/addon:Addon", "clusterName addonName", CFN + "AWS::EKS::Addon AddonName, ClusterName"),
    ("aws:eks/accessEntry:AccessEntry", "clusterName principalArn type", CFN + "AWS::EKS::AccessEntry"),
    (
        "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
        "clusterName principalArn policyArn accessScope",
        TF + "aws_eks_access_policy_association",
    ),
    (
        "aws:eks/podIdentityAssociation:PodIdentityAssociation",
        "clusterName namespace serviceAccount",
        CFN + "AWS::EKS::PodIdentityAssociation",
    ),
    (
        "aws:cloudwatch/logGroup:LogGroup",
        "name namePrefix logGroupClass",
        CFN + "AWS::Logs::LogGroup LogGroupName",
    ),
)

TABLE: dict[str, dict[str, str]] = {kind: dict.fromkeys(fields.split(), doc) for kind, fields, doc in _ROWS}


def replacement_document(kind: str, path: str) -> str | None:
    """Return the document that says why a change at `path` replaces the resource, or None."""
    plain = re.sub(r"\[\d+\]", "", path)
    if plain == "region":
        return TF + "region (every resource since version 6)"
    rows = TABLE.get(kind, {})
    return next((rows[field] for field in rows if plain == field or plain.startswith(f"{field}.")), None)
