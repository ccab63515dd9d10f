"""Where things live: the clone (only what git ignores is written), the cache, and the cluster's state."""

from __future__ import annotations

import os
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
STATE = Path("/var/lib/paddle-training")
KUBECONFIG = STATE / "kubeconfig"
CONTEXT = "local"
SHARED = STATE / "shared"
SOURCES = SHARED / "sources"
PULUMI = STATE / "pulumi"
PASSPHRASE = STATE / "pulumi-passphrase"
EKS_TOKEN = STATE / "eks-token"
POD_UID = 10001  # the user of every pod; the folder of the stack `local` belongs to it


def cache() -> Path:
    """The folder of tools, virtual environments and image archives: `$PADDLE_TRAINING_CACHE` or below
    ~/.cache."""
    chosen = os.environ.get("PADDLE_TRAINING_CACHE", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paddle-training"
