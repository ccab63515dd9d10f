"""Checks of `helm test`: storage is writable, DNS answers, rank 0 of a running training is reachable.

The last check is whether the cluster enforces the NetworkPolicy that protects the parameter servers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request
from pathlib import Path

RENEWED_SECONDS = 10.0  # rank 0 renews run.lock every 2 s
ANSWER_SECONDS = 60.0
LISTEN_SECONDS = 30.0  # the servers of an attempt start a while after their launcher
CONNECT_SECONDS = 5.0


def check_storage(root: Path) -> str:
    """Write a file to the shared storage, read it, remove it; return what was checked.

    Raises:
        OSError: the storage cannot be written or read.
    """
    file = root / f".helm-test-{socket.gethostname()}"
    try:
        with file.open("w", encoding="utf-8") as opened:
            opened.write(file.name)
            opened.flush()
            os.fsync(opened.fileno())
        if file.read_text(encoding="utf-8") != file.name:
            raise OSError(f"{file} was read with other content than was written")
    finally:
        file.unlink(missing_ok=True)
    return f"storage: {root} can be written and read by user {os.getuid()}:{os.getgid()}"


def check_dns(name: str) -> str:
    """Look up a name that every cluster has; return what was checked. Raises OSError if DNS does not answer."""
    address = socket.getaddrinfo(name, None)[0][4][0]
    return f"DNS: {name} is {address}"


def check_rank_0(lock: Path, job: str, url: str, renewed: float, answer: float) -> str:
    """Request rank 0's `/healthz` if the training runs; return what was checked.

    Args:
        lock: run.lock, whose content changes while rank 0 runs.
        job: name of this release's training Job, which is the run's id; empty: any run (training.schedule).
        url: rank 0's `/healthz`, with `{run}` in the place of the run's id.
        renewed: seconds in which a running rank 0 changes run.lock.
        answer: seconds until rank 0 must have answered.

    Raises:
        OSError: rank 0 runs and does not answer.
    """
    if not lock.exists():
        return "rank 0: no training runs"
    before = lock.read_bytes()
    run = json.loads(before).get("runId")
    url = url.replace("{run}", str(run))
    if job not in ("", run):
        return f"rank 0: another run than {job} writes to the output"
    deadline = time.monotonic() + renewed
    while lock.exists() and lock.read_bytes() == before:
        if time.monotonic() > deadline:
            return f"rank 0: no training runs ({lock} has not changed for {renewed:.0f} s)"
        time.sleep(0.2)
    if not lock.exists():
        return "rank 0: the training has just ended"
    deadline = time.monotonic() + answer
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - the chart's own http URL
                return f"rank 0: {url} answered {reply.status}"
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"{url} did not answer for {answer:.0f} s: {error}") from error
        time.sleep(1)


def check_policy(lock: Path, reached: str, server: str, required: str, listen: float, connect: float) -> str:
    """Try to connect to rank 0's first server, which only the training pods may reach; return what was checked.

    The servers have no authentication, so a connection means that every pod of the cluster can read and change the
    model. This pod's own policy admits the connection: only that of the training pods can stop it.

    Args:
        lock: run.lock with the run's id.
        reached: what `check_rank_0` returned.
        server: `host:port`, with `{run}` in the place of the run's id; empty: there are no NetworkPolicies.
        required: `true` if the cluster must enforce NetworkPolicies (networkPolicy.requireEnforced).
        listen: seconds in which the server may start.
        connect: seconds after which an attempt to connect counts as stopped.

    Raises:
        OSError: the connection was accepted, and `required` is `true`.
    """
    if not server:
        return "policies: WARNING: networkPolicy.enabled is false, so every pod can read and change the model"
    if " answered " not in reached or not lock.exists():
        return "policies: not checked, because no running training answered. Run helm test again during a training"
    host, _, port = server.replace("{run}", str(json.loads(lock.read_bytes()).get("runId"))).rpartition(":")
    deadline = time.monotonic() + listen
    while True:
        try:
            socket.create_connection((host, int(port)), connect).close()
            break
        except TimeoutError:
            return f"policies: {host}:{port} is closed to this pod"
        except OSError as error:
            if time.monotonic() > deadline:
                # No server has started, or the network plugin rejects connections instead of dropping their packets.
                return f"policies: not checked, because {host}:{port} refused for {listen:.0f} s ({error})"
        time.sleep(1)
    problem = f"this pod could connect to {host}:{port}, so the cluster does not enforce NetworkPolicies"
    if required == "true":
        raise OSError(problem)
    return f"policies: WARNING: {problem} (networkPolicy.requireEnforced is false)"


def main(environ: dict[str, str]) -> int:
    """Run all checks; return 0 if all passed, else 1."""
    said = {"rank 0": ""}
    root = Path(environ["JOB_PATH"])
    lock = root / environ["JOB_NAME"] / "output" / "run.lock"
    checks = {
        "storage": (
            lambda: check_storage(root),
            "let the user of podSecurityContext write to the storage, and check storage.*",
        ),
        "DNS": (
            lambda: check_dns("kubernetes.default.svc"),
            "check the cluster's DNS, and that NetworkPolicies admit port 53",
        ),
        "rank 0": (
            lambda: check_rank_0(
                lock, environ["K8S_JOB"], environ["RANK_0"], RENEWED_SECONDS, ANSWER_SECONDS
            ),
            "check that NetworkPolicies admit peerPort between pods of this release, and the log of rank 0",
        ),
        "policies": (
            lambda: check_policy(
                lock, said["rank 0"], environ["SERVER"], environ["REQUIRED"], LISTEN_SECONDS, CONNECT_SECONDS
            ),
            "install a network plugin that enforces NetworkPolicies; or, where everybody who can start a pod may read "
            "and change the models, set networkPolicy.requireEnforced to false",
        ),
    }
    failed = 0
    for name, (check, fix) in checks.items():
        try:
            said[name] = check()
            print(said[name], flush=True)  # noqa: T201 - this is the pod's log
        except (OSError, ValueError) as error:
            print(f"{name} failed: {error}. Fix: {fix}.", flush=True)  # noqa: T201
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
