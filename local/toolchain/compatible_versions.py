"""Decide from its version whether an installed tool can replace a built one."""

from __future__ import annotations

import re

from local.toolchain.pinned_tools import KUBERNETES, PULUMI

Version = tuple[int, int, int]
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
OLDEST_HELM: Version = (3, 14, 0)  # the first with `upgrade --reset-then-reuse-values`


def parse_version(text: str) -> Version | None:
    """Return the first version number in the output of a tool, or None."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def is_compatible_pulumi(version: Version) -> bool:
    """Return whether the major version equals that of the locked SDK and the version is not older."""
    wanted = parse_version(PULUMI)
    return wanted is not None and version[0] == wanted[0] and version >= wanted


def is_compatible_helm(version: Version) -> bool:
    """Return whether the version is of Helm 3 and not older than `OLDEST_HELM`."""
    return version[0] == OLDEST_HELM[0] and version >= OLDEST_HELM


def is_compatible_kubectl(version: Version) -> bool:
    """Return whether the version is within one minor version of the cluster (Kubernetes' skew policy)."""
    wanted = parse_version(KUBERNETES)
    return wanted is not None and version[0] == wanted[0] and abs(version[1] - wanted[1]) <= 1
