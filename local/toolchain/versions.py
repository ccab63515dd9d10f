"""Whether a person's own tool may stand in for a built one: pure comparison of versions."""

from __future__ import annotations

import re

from local.toolchain.tools import KUBERNETES, PULUMI

Version = tuple[int, int, int]
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
OLDEST_HELM: Version = (3, 14, 0)  # the first with `upgrade --reset-then-reuse-values`


def parse(text: str) -> Version | None:
    """The first version number in what a tool printed."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def fits_pulumi(version: Version) -> bool:
    """Same major version and not older than the SDK that the program is locked to."""
    wanted = parse(PULUMI)
    return wanted is not None and version[0] == wanted[0] and version >= wanted


def fits_helm(version: Version) -> bool:
    """Helm 3 from `OLDEST_HELM` on."""
    return version[0] == OLDEST_HELM[0] and version >= OLDEST_HELM


def fits_kubectl(version: Version) -> bool:
    """Within one minor version of the cluster, as Kubernetes' skew policy has it."""
    wanted = parse(KUBERNETES)
    return wanted is not None and version[0] == wanted[0] and abs(version[1] - wanted[1]) <= 1
