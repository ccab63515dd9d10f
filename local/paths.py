"""Paths of the clone, the cache and the local cluster's state.

In the clone only files that git ignores are written.
"""

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
    """Return the folder for tools, Python environments and image archives.

    `$PADDLE_TRAINING_CACHE` overrides the default `~/.cache/paddle-training`.
    """
    chosen = os.environ.get("PADDLE_TRAINING_CACHE", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paddle-training"
