"""Input fields whose change replaces the resource.

Each row cites a document. `CFN`: the CloudFormation resource reference ("Update requires: Replacement" at the
property). `TF`: the argument reference of the Terraform AWS provider ("Forces new resource"), for types and
properties that CloudFormation lacks.
"""

from __future__ import annotations

import re

# Type | fields | document. An indented line continues the row above it.
_ROWS = """
ec2/vpc:Vpc | cidrBlock | CFN AWS::EC2::VPC CidrBlock
ec2/subnet:Subnet | vpcId cidrBlock availabilityZone | CFN AWS::EC2::Subnet
ec2/natGateway:NatGateway | subnetId allocationId connectivityType | CFN AWS::EC2::NatGateway
ec2/eip:Eip | domain | CFN AWS::EC2::EIP Domain
ec2/routeTable:RouteTable | vpcId | CFN AWS::EC2::RouteTable VpcId
ec2/route:Route | routeTableId destinationCidrBlock | CFN AWS::EC2::Route
ec2/routeTableAssociation:RouteTableAssociation | subnetId gatewayId | CFN
    AWS::EC2::SubnetRouteTableAssociation SubnetId
ec2/securityGroup:SecurityGroup | name namePrefix description vpcId | CFN AWS::EC2::SecurityGroup
vpc/securityGroupIngressRule:SecurityGroupIngressRule | securityGroupId | CFN
    AWS::EC2::SecurityGroupIngress GroupId
vpc/securityGroupEgressRule:SecurityGroupEgressRule | securityGroupId | CFN AWS::EC2::SecurityGroupEgress
    GroupId
ec2/vpcEndpoint:VpcEndpoint | vpcId serviceName vpcEndpointType | CFN AWS::EC2::VPCEndpoint
ec2/launchTemplate:LaunchTemplate | name namePrefix | CFN AWS::EC2::LaunchTemplate LaunchTemplateName
ec2/placementGroup:PlacementGroup | name strategy partitionCount spreadLevel | CFN AWS::EC2::PlacementGroup
ec2/instance:Instance | ami subnetId keyName availabilityZone privateIp placementGroup
    rootBlockDevice.encrypted rootBlockDevice.kmsKeyId associatePublicIpAddress | CFN AWS::EC2::Instance
efs/fileSystem:FileSystem | encrypted kmsKeyId performanceMode availabilityZoneName creationToken | CFN
    AWS::EFS::FileSystem
efs/mountTarget:MountTarget | fileSystemId subnetId ipAddress | CFN AWS::EFS::MountTarget
efs/accessPoint:AccessPoint | fileSystemId posixUser rootDirectory | CFN AWS::EFS::AccessPoint
efs/fileSystemPolicy:FileSystemPolicy | fileSystemId | CFN AWS::EFS::FileSystem; TF aws_efs_file_system_policy
efs/backupPolicy:BackupPolicy | fileSystemId | TF aws_efs_backup_policy file_system_id
route53/zone:Zone | name delegationSetId | CFN AWS::Route53::HostedZone Name
route53/record:Record | zoneId name type setIdentifier | CFN AWS::Route53::RecordSet
kms/key:Key | customerMasterKeySpec keyUsage multiRegion | CFN AWS::KMS::Key KeySpec, KeyUsage
kms/alias:Alias | name namePrefix | CFN AWS::KMS::Alias AliasName
iam/role:Role | name namePrefix path | CFN AWS::IAM::Role RoleName, Path
iam/rolePolicy:RolePolicy | name namePrefix role | CFN AWS::IAM::RolePolicy PolicyName, RoleName
iam/rolePolicyAttachment:RolePolicyAttachment | role policyArn | TF aws_iam_role_policy_attachment role,
    policy_arn
iam/instanceProfile:InstanceProfile | name namePrefix path | CFN AWS::IAM::InstanceProfile
s3/bucket:Bucket | bucket bucketPrefix objectLockEnabled | CFN AWS::S3::Bucket BucketName
s3/bucketVersioning:BucketVersioning | bucket | TF aws_s3_bucket_versioning
s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration | bucket | TF
    aws_s3_bucket_server_side_encryption_configuration
s3/bucketPublicAccessBlock:BucketPublicAccessBlock | bucket | TF aws_s3_bucket_public_access_block bucket
s3/bucketPolicy:BucketPolicy | bucket | CFN AWS::S3::BucketPolicy Bucket
s3/bucketOwnershipControls:BucketOwnershipControls | bucket | TF aws_s3_bucket_ownership_controls bucket
s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration | bucket | TF
    aws_s3_bucket_lifecycle_configuration
s3/bucketObjectv2:BucketObjectv2 | bucket key | TF aws_s3_object bucket, key
ecr/repository:Repository | name encryptionConfigurations | CFN AWS::ECR::Repository
ecr/lifecyclePolicy:LifecyclePolicy | repository policy | TF aws_ecr_lifecycle_policy
eks/cluster:Cluster | name roleArn bootstrapSelfManagedAddons kubernetesNetworkConfig.ipFamily
    kubernetesNetworkConfig.serviceIpv4Cidr accessConfig.bootstrapClusterCreatorAdminPermissions
    encryptionConfig.provider encryptionConfig.resources | CFN AWS::EKS::Cluster
eks/nodeGroup:NodeGroup | clusterName nodeGroupName nodeGroupNamePrefix amiType capacityType diskSize
    instanceTypes nodeRoleArn subnetIds remoteAccess launchTemplate.id launchTemplate.name | CFN
    AWS::EKS::Nodegroup (launchTemplate.id and .name: TF aws_eks_node_group)
eks/addon:Addon | clusterName addonName | CFN AWS::EKS::Addon AddonName, ClusterName
eks/accessEntry:AccessEntry | clusterName principalArn type | CFN AWS::EKS::AccessEntry
eks/accessPolicyAssociation:AccessPolicyAssociation | clusterName principalArn policyArn accessScope | TF
    aws_eks_access_policy_association
eks/podIdentityAssociation:PodIdentityAssociation | clusterName namespace serviceAccount | CFN
    AWS::EKS::PodIdentityAssociation
cloudwatch/logGroup:LogGroup | name namePrefix logGroupClass | CFN AWS::Logs::LogGroup LogGroupName
"""


def _read_rows() -> dict[str, tuple[list[str], str]]:
    rows = [row.split(" | ") for row in re.sub(r"\n +", " ", _ROWS).strip().splitlines()]
    return {f"aws:{kind}": (fields.split(), document) for kind, fields, document in rows}


TABLE = _read_rows()
"""Type → its fields and their document."""


def is_replaced(kind: str, path: str) -> bool:
    """Return whether a change of the input at `path` replaces a resource of the type `kind`."""
    plain = re.sub(r"\[\d+\]", "", path)
    fields, _ = TABLE.get(kind, ([], ""))
    # TF region: of every resource, since version 6.
    return plain == "region" or any(plain == field or plain.startswith(f"{field}.") for field in fields)
