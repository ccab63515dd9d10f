"""Install the Debian packages that the local cluster, the image builder and some tests need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from local import console
from local.external_commands import LocalError, run_command

# package → a program or file of it; if that exists, the package is not installed, wherever it came from
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "buildah": "buildah",
    "skopeo": "skopeo",
    "etcd-server": "etcd",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "catatonit": "/usr/bin/catatonit",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "procps": "sysctl",
}
TEST_PACKAGES = {
    "chromium": "chromium",  # opens the report of a run
    "docker-registry": "docker-registry",  # a local OCI registry, for the test of `make push`
}


def missing_packages(tests: bool = False) -> list[str]:
    """Return the packages whose program or file is missing on this machine.

    With `tests`, packages that only tests need are included.
    """
    return [
        package
        for package, sign in (PACKAGES | (TEST_PACKAGES if tests else {})).items()
        if not (Path(sign).exists() if sign.startswith("/") else shutil.which(sign))
    ]


def ensure_packages(tests: bool = False) -> None:
    """Install the missing packages without starting their services. With `tests`, also those that only tests need.

    Raises:
        LocalError: The user is not root, apt-get is missing, or apt-get failed.
    """
    wanted = missing_packages(tests)
    if not wanted:
        return
    command = f"apt-get install {' '.join(wanted)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LocalError(
            f"These Debian packages are missing: {', '.join(wanted)}. Fix: run `{command}` as root, or use your "
            "own cluster, which needs none of them: make demo CLUSTER_KUBECONFIG=FILE CONTEXT=NAME"
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    # The services of the packages (etcd, containerd) must not start: a temporary policy-rc.d forbids it,
    # unless the machine has its own policy.
    policy = Path("/usr/sbin/policy-rc.d")
    creates_policy = not policy.exists()
    with console.timed_step(f"Debian packages: {' '.join(wanted)}"):
        try:
            if creates_policy:
                policy.write_text("#!/bin/sh\nexit 101\n")
                policy.chmod(0o755)
            run_command(["apt-get", "update", "-qq"], why="updating the Debian package lists", env=quiet)
            run_command(
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted],
                why="installing Debian packages",
                env=quiet,
                seconds=1200,
            )
        finally:
            if creates_policy:
                policy.unlink(missing_ok=True)
