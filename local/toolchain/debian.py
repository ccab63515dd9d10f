"""Debian packages that the local cluster and the image builder need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from local import say
from local.errors import LocalError
from local.run import run

# package → a file or program that shows that it is there (a person may have it from elsewhere)
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "buildah": "buildah",
    "etcd-server": "etcd",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "catatonit": "/usr/bin/catatonit",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "procps": "sysctl",
}
TESTS = {
    "chromium": "chromium",  # opens the report of a run
    "docker-registry": "docker-registry",  # a local OCI registry, for the test of `make push`
}
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def missing(tests: bool = False) -> list[str]:
    """Packages of which nothing is installed; with those of the tests, if asked."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    return [
        package
        for package, sign in (PACKAGES | (TESTS if tests else {})).items()
        if not (Path(sign).exists() if sign.startswith("/") else shutil.which(sign, path=path))
    ]


def ensure(tests: bool = False) -> None:
    """Install what is missing, without starting any service of it; with what the tests need, if asked.

    Raises:
        LocalError: not root, no apt-get, or apt-get failed.
    """
    wanted = missing(tests)
    if not wanted:
        return
    command = f"apt-get install {' '.join(wanted)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LocalError(
            f"These Debian packages are missing: {', '.join(wanted)}. Install them as root ({command}), or "
            "use a "
            "cluster of your own, which needs none of them: make demo CLUSTER_KUBECONFIG=FILE CONTEXT=NAME."
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    # The packages' own services (etcd, containerd) are not ours to run: a policy that forbids starts, only
    # if the machine has none, and only meanwhile.
    policy = Path("/usr/sbin/policy-rc.d")
    own_policy = not policy.exists()
    with say.step(f"Debian packages: {' '.join(wanted)}"):
        try:
            if own_policy:
                policy.write_text("#!/bin/sh\nexit 101\n")
                policy.chmod(0o755)
            run(["apt-get", "update", "-qq"], why="asking for Debian packages", env=quiet)
            run(
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted],
                why="installing Debian packages",
                env=quiet,
                seconds=1200,
            )
        finally:
            if own_policy:
                policy.unlink(missing_ok=True)
