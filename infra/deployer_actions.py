"""IAM actions by resource type: what the AWS provider calls to make, read, change and remove each. Pure.

Source: the service authorization reference of each service and the calls of the provider's resources. Only
types that the program registers have a row; a test compares the two in both directions.
"""

from __future__ import annotations

# The account's number, the region's zones, and existing networks: asked in every preview.
ALWAYS = (
    "sts:GetCallerIdentity",
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeAccountAttributes",
    "ec2:DescribeNetworkInterfaces",
    "ec2:CreateTags",
    "ec2:DeleteTags",
    "ssm:GetParameter",
)

# Services that a role of ours is handed to.
PASSED_TO = ("ec2.amazonaws.com", "eks.amazonaws.com", "pods.eks.amazonaws.com")


def _of(service: str, names: str) -> tuple[str, ...]:
    return tuple(f"{service}:{name}" for name in names.split())


ACTIONS: dict[str, tuple[str, ...]] = {
    "aws:cloudwatch/logGroup:LogGroup": (
        *_of(
            "logs",
            "CreateLogGroup DeleteLogGroup DescribeLogGroups ListTagsForResource "
            "PutRetentionPolicy DeleteRetentionPolicy TagResource UntagResource",
        ),
    ),
    "aws:ec2/eip:Eip": (
        *_of(
            "ec2",
            "AllocateAddress DescribeAddresses DescribeAddressesAttribute DisassociateAddress ReleaseAddress",
        ),
    ),
    "aws:ec2/instance:Instance": (
        *_of(
            "ec2",
            "RunInstances TerminateInstances StartInstances StopInstances DescribeInstances "
            "DescribeInstanceAttribute DescribeInstanceCreditSpecifications DescribeInstanceTypes "
            "DescribeImages DescribeTags DescribeVolumes ModifyInstanceAttribute "
            "ModifyInstanceMetadataOptions",
        ),
    ),
    "aws:ec2/internetGateway:InternetGateway": (
        *_of(
            "ec2",
            "AttachInternetGateway CreateInternetGateway DeleteInternetGateway "
            "DescribeInternetGateways DetachInternetGateway",
        ),
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": (
        *_of(
            "ec2",
            "CreateLaunchTemplate CreateLaunchTemplateVersion DeleteLaunchTemplate "
            "DescribeLaunchTemplateVersions DescribeLaunchTemplates ModifyLaunchTemplate "
            "RunInstances",
        ),
    ),
    "aws:ec2/natGateway:NatGateway": (*_of("ec2", "CreateNatGateway DeleteNatGateway DescribeNatGateways"),),
    "aws:ec2/placementGroup:PlacementGroup": (
        *_of("ec2", "CreatePlacementGroup DeletePlacementGroup DescribePlacementGroups"),
    ),
    "aws:ec2/route:Route": (*_of("ec2", "CreateRoute DeleteRoute DescribeRouteTables ReplaceRoute"),),
    "aws:ec2/routeTable:RouteTable": (*_of("ec2", "CreateRouteTable DeleteRouteTable DescribeRouteTables"),),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": (
        *_of(
            "ec2",
            "AssociateRouteTable DescribeRouteTables DisassociateRouteTable ReplaceRouteTableAssociation",
        ),
    ),
    "aws:ec2/securityGroup:SecurityGroup": (
        *_of(
            "ec2", "CreateSecurityGroup DeleteSecurityGroup DescribeSecurityGroups RevokeSecurityGroupEgress"
        ),
    ),
    "aws:ec2/subnet:Subnet": (
        *_of("ec2", "CreateSubnet DeleteSubnet DescribeSubnets ModifySubnetAttribute"),
    ),
    "aws:ec2/vpc:Vpc": (
        *_of(
            "ec2",
            "CreateVpc DeleteVpc DescribeNetworkAcls DescribeRouteTables DescribeSecurityGroups "
            "DescribeVpcAttribute DescribeVpcs ModifyVpcAttribute",
        ),
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": (
        *_of(
            "ec2",
            "CreateVpcEndpoint DeleteVpcEndpoints DescribePrefixLists DescribeVpcEndpoints ModifyVpcEndpoint",
        ),
    ),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": (
        *_of("ecr", "DeleteLifecyclePolicy GetLifecyclePolicy PutLifecyclePolicy"),
    ),
    "aws:ecr/repository:Repository": (
        *_of(
            "ecr",
            "BatchDeleteImage BatchCheckLayerAvailability CompleteLayerUpload CreateRepository "
            "DeleteRepository DescribeImages DescribeRepositories GetAuthorizationToken "
            "InitiateLayerUpload ListTagsForResource PutImage PutImageScanningConfiguration "
            "PutImageTagMutability TagResource UntagResource UploadLayerPart",
        ),
    ),
    "aws:efs/accessPoint:AccessPoint": (
        *_of(
            "elasticfilesystem",
            "CreateAccessPoint DeleteAccessPoint DescribeAccessPoints TagResource UntagResource",
        ),
    ),
    "aws:efs/backupPolicy:BackupPolicy": (
        *_of("elasticfilesystem", "DescribeBackupPolicy PutBackupPolicy"),
        *_of("iam", "CreateServiceLinkedRole"),
    ),
    "aws:efs/fileSystem:FileSystem": (
        *_of(
            "elasticfilesystem",
            "CreateFileSystem DeleteFileSystem DescribeFileSystems DescribeLifecycleConfiguration "
            "ListTagsForResource PutLifecycleConfiguration TagResource UntagResource "
            "UpdateFileSystem",
        ),
        *_of("kms", "CreateGrant Decrypt DescribeKey Encrypt GenerateDataKey"),
    ),
    "aws:efs/mountTarget:MountTarget": (
        *_of("ec2", "CreateNetworkInterface DescribeSubnets"),
        *_of(
            "elasticfilesystem",
            "CreateMountTarget DeleteMountTarget DescribeMountTargetSecurityGroups "
            "DescribeMountTargets ModifyMountTargetSecurityGroups",
        ),
    ),
    "aws:eks/accessEntry:AccessEntry": (
        *_of(
            "eks",
            "CreateAccessEntry DeleteAccessEntry DescribeAccessEntry TagResource UntagResource "
            "UpdateAccessEntry",
        ),
    ),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": (
        *_of("eks", "AssociateAccessPolicy DisassociateAccessPolicy ListAssociatedAccessPolicies"),
    ),
    "aws:eks/addon:Addon": (
        *_of(
            "eks",
            "CreateAddon DeleteAddon DescribeAddon DescribeAddonVersions DescribeUpdate "
            "TagResource UntagResource UpdateAddon",
        ),
    ),
    "aws:eks/cluster:Cluster": (
        *_of(
            "eks",
            "AssociateEncryptionConfig CreateCluster DeleteCluster DescribeCluster DescribeUpdate "
            "TagResource UntagResource UpdateClusterConfig UpdateClusterVersion",
        ),
        *_of("iam", "CreateServiceLinkedRole PassRole"),
        *_of("kms", "CreateGrant Decrypt DescribeKey Encrypt GenerateDataKey"),
    ),
    "aws:eks/nodeGroup:NodeGroup": (
        *_of(
            "eks",
            "CreateNodegroup DeleteNodegroup DescribeNodegroup DescribeUpdate TagResource "
            "UntagResource UpdateNodegroupConfig UpdateNodegroupVersion",
        ),
        *_of("iam", "CreateServiceLinkedRole PassRole"),
    ),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": (
        *_of(
            "eks",
            "CreatePodIdentityAssociation DeletePodIdentityAssociation "
            "DescribePodIdentityAssociation TagResource UntagResource "
            "UpdatePodIdentityAssociation",
        ),
        *_of("iam", "GetRole PassRole"),
    ),
    "aws:iam/instanceProfile:InstanceProfile": (
        *_of(
            "iam",
            "AddRoleToInstanceProfile CreateInstanceProfile DeleteInstanceProfile "
            "GetInstanceProfile PassRole RemoveRoleFromInstanceProfile TagInstanceProfile "
            "UntagInstanceProfile",
        ),
    ),
    "aws:iam/role:Role": (
        *_of(
            "iam",
            "CreateRole DeleteRole DeleteRolePermissionsBoundary GetRole ListAttachedRolePolicies "
            "ListInstanceProfilesForRole ListRolePolicies PutRolePermissionsBoundary TagRole "
            "UntagRole UpdateAssumeRolePolicy UpdateRole UpdateRoleDescription",
        ),
    ),
    "aws:iam/rolePolicy:RolePolicy": (*_of("iam", "DeleteRolePolicy GetRolePolicy PutRolePolicy"),),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": (
        *_of("iam", "AttachRolePolicy DetachRolePolicy ListAttachedRolePolicies"),
    ),
    "aws:kms/alias:Alias": (*_of("kms", "CreateAlias DeleteAlias ListAliases UpdateAlias"),),
    "aws:kms/key:Key": (
        *_of(
            "kms",
            "CreateKey DescribeKey DisableKeyRotation EnableKeyRotation GetKeyPolicy "
            "GetKeyRotationStatus ListResourceTags PutKeyPolicy ScheduleKeyDeletion TagResource "
            "UntagResource UpdateKeyDescription",
        ),
    ),
    "aws:route53/record:Record": (
        *_of("route53", "ChangeResourceRecordSets GetChange GetHostedZone ListResourceRecordSets"),
    ),
    "aws:route53/zone:Zone": (
        *_of("ec2", "DescribeVpcs"),
        *_of(
            "route53",
            "AssociateVPCWithHostedZone ChangeTagsForResource CreateHostedZone DeleteHostedZone "
            "DisassociateVPCFromHostedZone GetChange GetHostedZone ListResourceRecordSets "
            "ListTagsForResource UpdateHostedZoneComment",
        ),
    ),
    "aws:s3/bucket:Bucket": (
        *_of(
            "s3",
            "CreateBucket DeleteBucket DeleteObject DeleteObjectVersion "
            "GetAccelerateConfiguration GetBucketAcl GetBucketCORS GetBucketLogging "
            "GetBucketObjectLockConfiguration GetBucketRequestPayment GetBucketTagging "
            "GetBucketWebsite GetReplicationConfiguration ListBucketVersions PutBucketTagging "
            "GetBucketLocation ListBucket",
        ),
    ),
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": (
        *_of("s3", "GetLifecycleConfiguration PutLifecycleConfiguration"),
    ),
    "aws:s3/bucketObjectv2:BucketObjectv2": (
        *_of(
            "s3",
            "DeleteObject DeleteObjectVersion GetObject GetObjectTagging PutObject "
            "PutObjectTagging GetBucketLocation ListBucket",
        ),
        *_of("kms", "CreateGrant Decrypt DescribeKey Encrypt GenerateDataKey"),
    ),
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": (
        *_of("s3", "GetBucketOwnershipControls PutBucketOwnershipControls"),
    ),
    "aws:s3/bucketPolicy:BucketPolicy": (*_of("s3", "DeleteBucketPolicy GetBucketPolicy PutBucketPolicy"),),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": (
        *_of("s3", "GetBucketPublicAccessBlock PutBucketPublicAccessBlock"),
    ),
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        *_of("s3", "GetEncryptionConfiguration PutEncryptionConfiguration"),
    ),
    "aws:s3/bucketVersioning:BucketVersioning": (*_of("s3", "GetBucketVersioning PutBucketVersioning"),),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": (
        *_of(
            "ec2",
            "AuthorizeSecurityGroupEgress DescribeSecurityGroupRules ModifySecurityGroupRules "
            "RevokeSecurityGroupEgress",
        ),
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": (
        *_of(
            "ec2",
            "AuthorizeSecurityGroupIngress DescribeSecurityGroupRules ModifySecurityGroupRules "
            "RevokeSecurityGroupIngress",
        ),
    ),
}
