"""Paths of the clone, the cache and the local cluster's state.

The commands of `local` write files in the clone only if git ignores these files.
"""

from __future__ import annotations

from pathlib import Path

from local import bootstrap

CLONE, cache = bootstrap.CLONE, bootstrap.cache
STATE = Path("/var/lib/paddle-training")
KUBECONFIG = STATE / "kubeconfig"
CONTEXT = "local"
SHARED = STATE / "shared"
SOURCES = SHARED / "sources"
PULUMI = STATE / "pulumi"
PASSPHRASE = STATE / "pulumi-passphrase"
EKS_TOKEN = STATE / "eks-token"
POD_UID = 10001  # the user of every pod; the folder of the stack `local` belongs to it
