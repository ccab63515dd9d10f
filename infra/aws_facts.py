"""Facts about AWS: instance types, zones, EKS add-ons, services and versions, each with its source or reason.

Imports no pulumi.
"""

from __future__ import annotations

import itertools
import re

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

# AWS services that nodes and pods call; with network.nat none, each gets an interface endpoint.
PRIVATE_SERVICES = (
    *("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "elasticfilesystem", "logs", "sts"),
    *("ssm", "ssmmessages", "ec2messages"),
)

# With nodes.auto or GPU nodes, one small node always runs, for DNS, the storage driver's controller and the autoscaler.
# They request half a core in total, so without both they share the other nodes. Key: is it Graviton?
SYSTEM_TYPES = {False: ("t3.medium", "t3a.medium"), True: ("t4g.medium",)}

# The NFS mount options of the tutorial, and noresvport: without it, a client that loses its mount target
# hangs.
NFS_MOUNT_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"

GPU_RESOURCE = "nvidia.com/gpu"
# Label of GPU nodes. By this key the cluster autoscaler recognizes a GPU node whose device plugin does not run yet, and
# adds no second node in the meantime (GPULabel in its cloudprovider/aws); it accepts any value.
GPU_LABELS = {"k8s.amazonaws.com/accelerator": "nvidia"}
# Key of the taint that keeps pods without GPUs off GPU nodes; the name that NVIDIA's manifests and EKS use.
GPU_TAINT = "nvidia.com/gpu"
# Families with whole NVIDIA GPUs that the machine image AL2023_x86_64_NVIDIA supports; source: the table of "Use
# EKS-optimized accelerated AMIs for GPU instances" in the EKS user guide (2026-08). Arm types (g5g), AMD GPUs (g4ad)
# and fractions of a GPU (g6f) are not among them.
GPU_FAMILIES = ("g4dn", "g5", "g6", "g6e", "gr6", "p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en")


def is_arm(instance_type: str) -> bool:
    """Return whether an instance type has Graviton processors: a `g` follows the generation (m7g, t4g)."""
    family = instance_type.partition(".")[0]
    return any(char.isdigit() and after == "g" for char, after in itertools.pairwise(family))


def has_gpus(instance_type: str) -> bool:
    """Return whether an instance type has GPUs. Types of families outside GPU_FAMILIES, such as g5g, count too."""
    return re.match(r"[gp]r?\d", instance_type) is not None


def pod_disk_gib(disk_gib: int) -> int:
    """Return how much of a node's disk its pods can request as `ephemeral-storage`, in GiB, rounded down.

    The kubelet keeps 10% free (its eviction threshold), EKS reserves 1 GiB (ephemeral-storage of kube-reserved), and
    boot partitions and the file system itself take less than 1 GiB.
    """
    return int(disk_gib * 0.9) - 2
