"""IAM actions of the user who deploys, by service: for the program, `make push` and `make doctor`.

Sources: the service authorization reference, the permissions in CloudFormation's resource schemas, and the
calls of the provider's resources. `testkit/aws_emulator/permissions.yaml` has the actions of each type:
the emulator denies a call whose action is missing here, and a test fails if an action here is never needed.
"""

from __future__ import annotations

# Services to which the program passes a role.
PASSED_TO = ("ec2.amazonaws.com", "eks.amazonaws.com", "pods.eks.amazonaws.com")
# Policies of AWS that the program attaches to its roles.
ATTACHED = (
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSClusterPolicy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
)
# Actions that are allowed only on the stack's own roles or instance profiles; the reads are not among them.
# With a permissions boundary, IAM compares the boundary of the role for the actions of BOUNDED and ATTACH.
ROLES = "iam:DeleteRole iam:TagRole iam:UntagRole iam:UpdateAssumeRolePolicy iam:UpdateRole iam:UpdateRoleDescription"
BOUNDED = "iam:CreateRole iam:DeleteRolePolicy iam:PutRolePermissionsBoundary iam:PutRolePolicy"
ATTACH = "iam:AttachRolePolicy iam:DetachRolePolicy"
# Not allowed with a permissions boundary.
UNBOUND = "iam:DeleteRolePermissionsBoundary"
PROFILES = (
    "iam:AddRoleToInstanceProfile iam:CreateInstanceProfile iam:DeleteInstanceProfile "
    "iam:RemoveRoleFromInstanceProfile iam:TagInstanceProfile iam:UntagInstanceProfile"
)
SERVICE_LINKED = "iam:CreateServiceLinkedRole"

SERVICES: dict[str, str] = {
    "budgets": "ListTagsForResource ModifyBudget TagResource UntagResource ViewBudget",
    "ec2": """
        AllocateAddress AssociateRouteTable AttachInternetGateway AuthorizeSecurityGroupEgress
        AuthorizeSecurityGroupIngress CreateInternetGateway CreateLaunchTemplate CreateLaunchTemplateVersion
        CreateNatGateway CreateNetworkInterface CreatePlacementGroup CreateRoute CreateRouteTable
        CreateSecurityGroup CreateSubnet CreateTags CreateVpc CreateVpcEndpoint DeleteInternetGateway
        DeleteLaunchTemplate DeleteNatGateway DeleteNetworkInterface DeletePlacementGroup DeleteRoute
        DeleteRouteTable DeleteSecurityGroup DeleteSubnet DeleteTags DeleteVpc DeleteVpcEndpoints
        DescribeAccountAttributes DescribeAddresses DescribeAddressesAttribute DescribeAvailabilityZones
        DescribeImages DescribeInstanceAttribute DescribeInstanceCreditSpecifications
        DescribeInstanceTypeOfferings DescribeInstanceTypes DescribeInstances DescribeInternetGateways
        DescribeKeyPairs DescribeLaunchTemplateVersions DescribeLaunchTemplates DescribeNatGateways
        DescribeNetworkAcls DescribeNetworkInterfaces DescribePlacementGroups DescribePrefixLists
        DescribeRegions DescribeRouteTables DescribeSecurityGroupRules DescribeSecurityGroups
        DescribeSubnets DescribeTags DescribeVolumes DescribeVpcAttribute DescribeVpcEndpoints DescribeVpcs
        DetachInternetGateway DisassociateAddress DisassociateRouteTable ModifyInstanceAttribute
        ModifyInstanceMetadataOptions ModifyLaunchTemplate ModifyNetworkInterfaceAttribute
        ModifySecurityGroupRules ModifySubnetAttribute ModifyVpcAttribute ModifyVpcEndpoint ReleaseAddress
        ReplaceRoute ReplaceRouteTableAssociation RevokeSecurityGroupEgress RevokeSecurityGroupIngress
        RunInstances StartInstances StopInstances TerminateInstances
    """,
    "ecr": """
        BatchCheckLayerAvailability BatchDeleteImage BatchGetImage CompleteLayerUpload CreateRepository
        DeleteLifecyclePolicy DeleteRepository DescribeImages DescribeRepositories GetAuthorizationToken
        GetLifecyclePolicy InitiateLayerUpload ListTagsForResource PutImage PutImageScanningConfiguration
        PutImageTagMutability PutLifecyclePolicy TagResource UntagResource UploadLayerPart
    """,
    "eks": """
        AssociateAccessPolicy AssociateEncryptionConfig CreateAccessEntry CreateAddon CreateCluster
        CreateNodegroup CreatePodIdentityAssociation DeleteAccessEntry DeleteAddon DeleteCluster
        DeleteNodegroup DeletePodIdentityAssociation DescribeAccessEntry DescribeAddon DescribeAddonVersions
        DescribeCluster DescribeClusterVersions DescribeNodegroup DescribePodIdentityAssociation
        DescribeUpdate DisassociateAccessPolicy ListAssociatedAccessPolicies ListNodegroups TagResource
        UntagResource UpdateAccessEntry UpdateAddon UpdateClusterConfig UpdateClusterVersion
        UpdateNodegroupConfig UpdateNodegroupVersion UpdatePodIdentityAssociation
    """,
    "elasticfilesystem": """
        CreateAccessPoint CreateFileSystem CreateMountTarget DeleteAccessPoint DeleteFileSystem
        DeleteFileSystemPolicy DeleteMountTarget DescribeAccessPoints DescribeBackupPolicy
        DescribeFileSystemPolicy DescribeFileSystems DescribeLifecycleConfiguration
        DescribeMountTargetSecurityGroups DescribeMountTargets ListTagsForResource
        ModifyMountTargetSecurityGroups PutBackupPolicy PutFileSystemPolicy PutLifecycleConfiguration
        TagResource UntagResource UpdateFileSystem
    """,
    "iam": """
        AddRoleToInstanceProfile AttachRolePolicy CreateInstanceProfile CreateRole CreateServiceLinkedRole
        DeleteInstanceProfile DeleteRole DeleteRolePermissionsBoundary DeleteRolePolicy DetachRolePolicy
        GetInstanceProfile GetRole GetRolePolicy GetUser ListAttachedRolePolicies ListInstanceProfiles
        ListInstanceProfilesForRole ListRolePolicies ListRoles PassRole PutRolePermissionsBoundary
        PutRolePolicy RemoveRoleFromInstanceProfile SimulatePrincipalPolicy TagInstanceProfile TagRole
        UntagInstanceProfile UntagRole UpdateAssumeRolePolicy UpdateRole UpdateRoleDescription
    """,
    "kms": """
        CreateAlias CreateGrant CreateKey Decrypt DeleteAlias DescribeKey DisableKeyRotation
        EnableKeyRotation Encrypt GenerateDataKey GenerateDataKeyWithoutPlaintext GetKeyPolicy
        GetKeyRotationStatus ListAliases ListResourceTags PutKeyPolicy RetireGrant ScheduleKeyDeletion
        TagResource UntagResource UpdateAlias UpdateKeyDescription
    """,
    "logs": """
        CreateLogGroup DeleteLogGroup DeleteRetentionPolicy DescribeLogGroups ListTagsForResource
        PutRetentionPolicy TagResource UntagResource
    """,
    "route53": """
        AssociateVPCWithHostedZone ChangeResourceRecordSets ChangeTagsForResource CreateHostedZone
        DeleteHostedZone DisassociateVPCFromHostedZone GetChange GetHostedZone ListHostedZones ListResourceRecordSets
        ListTagsForResource UpdateHostedZoneComment
    """,
    "s3": """
        CreateBucket DeleteBucket DeleteBucketPolicy DeleteObject DeleteObjectVersion
        GetAccelerateConfiguration GetBucketAcl GetBucketCORS GetBucketLocation GetBucketLogging
        GetBucketObjectLockConfiguration GetBucketOwnershipControls GetBucketPolicy
        GetBucketPublicAccessBlock GetBucketRequestPayment GetBucketTagging GetBucketVersioning
        GetBucketWebsite GetEncryptionConfiguration GetLifecycleConfiguration GetObject GetObjectTagging
        GetReplicationConfiguration ListBucket ListBucketVersions PutBucketOwnershipControls PutBucketPolicy
        PutBucketPublicAccessBlock PutBucketTagging PutBucketVersioning PutEncryptionConfiguration
        PutLifecycleConfiguration PutObject PutObjectTagging
    """,
    "servicequotas": "GetAWSDefaultServiceQuota GetServiceQuota",
    "ssm": "GetParameter",
    "sts": "GetCallerIdentity",
    "tag": "GetResources",
}


def actions() -> list[str]:
    """Return all actions as `service:Name`, sorted."""
    return sorted(f"{service}:{name}" for service, names in SERVICES.items() for name in names.split())
