"""Who the peers are, and why one of them is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from launcher.errors import DeadlineError, GangError
from launcher.gang.log import log
from launcher.gang.members import Member
from launcher.gang.network import Network
from launcher.gang.output import difference
from launcher.gang.peers import Hub
from launcher.gang.timings import Timings
from launcher.settings import TrainSettings


def peer_names(settings: TrainSettings, pause: Callable[[float], None]) -> tuple[list[str], int]:
    """(the peers' names in rank order, the own rank).

    dns: the names that the Indexed Job and the headless Service give; the rank is the completion index.
    api: the pods' addresses in numeric order; the rank is the own address's place.
    """
    s = settings
    if s.rendezvous == "dns":
        return [f"{s.k8s_job}-{rank}.{s.service}" for rank in range(s.trainers)], s.completion_index
    from launcher.gang.kubernetes import PodApi, wait_for_pods

    addresses = wait_for_pods(s, PodApi(s.environ, s.namespace), pause)
    if s.pod_ip not in addresses:
        raise GangError(
            f"this pod's address {s.pod_ip!r} (PADDLE_LAUNCHER_POD_IP) is not among those of Job "
            f"{s.k8s_job}: "
            f"{', '.join(addresses)}"
        )
    return addresses, addresses.index(s.pod_ip)


def gather(
    hub: Hub,
    names: Sequence[str],
    settings: TrainSettings,
    network: Network,
    *,
    timings: Timings,
    pause: Callable[[float], None],
) -> None:
    """Rank 0: returns once all ranks have staged. Raises `DeadlineError` with who did not come, and why.

    The deadline is for coming: a rank that copies a large shard is waited for as long as it lives.
    """
    deadline = time.monotonic() + settings.rendezvous_seconds
    say_at = time.monotonic() + timings.say_again
    while absent := hub.absent():
        pause(timings.poll)
        now = time.monotonic()
        if now < min(deadline, say_at):
            continue
        gone = [member.rank for member in absent if member.phase == "absent"]
        why = [why_absent(network, names[rank], rank, settings.peer_port) for rank in gone]
        if gone and now >= deadline:
            raise DeadlineError(
                f"{len(gone)} of {settings.trainers} ranks did not come within "
                f"{settings.rendezvous_seconds} s (rendezvousSeconds): {'; '.join(why)}. "
                "See why those pods do not run: `python -m launcher status`, or kubectl describe pod."
            )
        if now >= say_at:
            say_at = now + timings.say_again
            staging = [f"{m.label} to stage its shard" for m in absent if m.phase != "absent"]
            log.info("waiting for %s", "; ".join([*why, *staging]))


def check_fingerprints(members: Sequence[Member], expected: dict[str, Any]) -> None:
    """Raises `GangError` when a rank staged another program, or was told other settings, than rank 0."""
    for member in members:
        if member.fingerprint != expected:
            raise GangError(
                f"{member.label} has another fingerprint than rank 0: "
                f"{difference(expected, member.fingerprint)}. The program on the shared storage changed "
                "while the pods started, or they run other images; start the run again."
            )


def why_absent(network: Network, name: str, rank: int, peer_port: int) -> str:
    """Why a rank has not come, as far as its name tells."""
    found = network.resolve(name)
    if not found:
        return f"rank {rank}: {name} does not resolve (its pod is not scheduled, or has no address)"
    return (
        f"rank {rank}: {name} resolves to {', '.join(found)}, but no answer: its launcher has not called "
        f"rank 0 on peerPort {peer_port} (its init container still waits, it cannot start, or "
        "a network policy blocks that port)"
    )


def await_names(
    network: Network,
    hosts: Sequence[str],
    addresses: Sequence[str],
    timings: Timings,
    pause: Callable[[float], None],
) -> None:
    """Returns once every name resolves here to the address that its rank announced.

    DNS may still know an earlier pod's address, or that there was none. Raises `DeadlineError`.
    """
    deadline = time.monotonic() + timings.names
    for host, address in zip(hosts, addresses, strict=True):
        while host != address and address not in (found := network.resolve(host)):
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"{host} resolves to {', '.join(found) or 'nothing'} after {timings.names:.0f} s, "
                    "but that "
                    f"rank has {address}: DNS is behind, or does not answer in this pod"
                )
            pause(timings.poll)
