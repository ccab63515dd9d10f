"""Versions, add-on names, ports and ids that several components use, each with its reason."""

from __future__ import annotations

# The newest EKS version in standard support at the time of writing (until 2027-03-27; 1.34: 2026-12-02).
# Only a default: newer versions are passed to AWS unchecked.
KUBERNETES = "1.35"

# Zones without EKS control planes, by id (names differ between accounts); from the EKS guide on subnets.
ZONES_WITHOUT_CONTROL_PLANE = ("use1-az3", "usw1-az2", "cac1-az3")

# EKS add-ons. Their versions are not pinned: a new one has the default of AWS for the cluster's version,
# and keeps it (EksCluster.add_addon).
ADDON_VPC_CNI = "vpc-cni"
ADDON_KUBE_PROXY = "kube-proxy"
ADDON_POD_IDENTITY = "eks-pod-identity-agent"
ADDON_COREDNS = "coredns"
ADDON_EFS_CSI = "aws-efs-csi-driver"
ADDON_LOGS = "amazon-cloudwatch-observability"
ADDONS = (ADDON_VPC_CNI, ADDON_KUBE_PROXY, ADDON_POD_IDENTITY, ADDON_COREDNS, ADDON_EFS_CSI, ADDON_LOGS)
# Newest patch release of the cluster autoscaler for each minor version of Kubernetes; others get patch 0.
AUTOSCALER_PATCHES = {"1.34": 5, "1.35": 2, "1.36": 1}

# NVIDIA's device plugin, which the NVIDIA machine image of EKS does not contain ("Install Kubernetes device plugin for
# GPUs" in the EKS user guide). The version is the newest in deployments/static of NVIDIA/k8s-device-plugin (2026-08).
DEVICE_PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
# Label of GPU nodes. By this key the cluster autoscaler recognizes a GPU node whose device plugin does not run yet, and
# adds no second node in the meantime (GPULabel in its cloudprovider/aws); it accepts any value.
GPU_LABELS = {"k8s.amazonaws.com/accelerator": "nvidia"}
# Key of the taint that keeps pods without GPUs off GPU nodes; the name that NVIDIA's manifests and EKS use.
GPU_TAINT = "nvidia.com/gpu"

# AWS services that nodes and pods call; with network.nat none, each gets an interface endpoint.
PRIVATE_SERVICES = (
    *("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "elasticfilesystem", "logs", "sts"),
    *("ssm", "ssmmessages", "ec2messages"),
)

# With nodes.auto or GPU nodes, one small node always runs, for DNS, the storage driver's controller and the autoscaler.
# They request half a core in total, so without both they share the other nodes. Key: is it Graviton?
SYSTEM_TYPES = {False: ("t3.medium", "t3a.medium"), True: ("t4g.medium",)}

NFS_PORT = 2049
HTTPS_PORT = 443

# uid and gid of every pod of the chart; the EFS access point enforces the same.
POD_UID = 10001
POD_GID = 10001

# The NFS mount options of the tutorial, and noresvport: without it, a client that loses its mount target
# hangs.
NFS_MOUNT_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
