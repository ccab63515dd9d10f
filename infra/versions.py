"""Versions and fixed numbers that more than one component needs, each with its reason."""

from __future__ import annotations

# Newest EKS version in standard support when this was written (until 2027-03-27; 1.34 left it on 2026-12-02).
# Only a default: an unknown newer minor is passed on, since AWS knows its versions better than this file.
KUBERNETES = "1.35"

# Zones in which EKS puts no control plane, by id (names differ between accounts); from EKS' guide on subnets.
ZONES_WITHOUT_CONTROL_PLANE = ("use1-az3", "usw1-az2", "cac1-az3")

# EKS add-ons. None pinned by build: each has AWS' default one for the cluster's Kubernetes version.
ADDON_VPC_CNI = "vpc-cni"
ADDON_KUBE_PROXY = "kube-proxy"
ADDON_POD_IDENTITY = "eks-pod-identity-agent"
ADDON_COREDNS = "coredns"
ADDON_EFS_CSI = "aws-efs-csi-driver"
ADDON_LOGS = "amazon-cloudwatch-observability"

# Taint that keeps pods away from a new node until the EFS driver runs there; the driver removes it itself.
EFS_STARTUP_TAINT = "efs.csi.aws.com/agent-not-ready"

# With network.nat none, nodes and pods call images, tokens, logs, EKS, pod identity, EFS, Session Manager.
PRIVATE_SERVICES = (
    *("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "elasticfilesystem", "logs", "sts"),
    *("ssm", "ssmmessages", "ec2messages"),
)

# With nodes.auto one small node stays, for DNS, the storage driver's controller and the autoscaler. They ask
# for half a core in all: without auto a node of their own is not worth its price. By whether it is Graviton.
SYSTEM_TYPES = {False: ("t3.medium", "t3a.medium"), True: ("t4g.medium",)}

NFS_PORT = 2049
HTTPS_PORT = 443

# uid and gid of every pod of the chart; the EFS access point enforces the same.
POD_UID = 10001
POD_GID = 10001

# The NFS mount options of the tutorial, with noresvport, without which a client that lost its mount target
# hangs.
NFS_MOUNT_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
