"""Build plans and members of a gang for tests of the coordinator."""

from __future__ import annotations

from typing import Any

from launcher.supervisor.coordinator.members import GangLimits, Member
from launcher.supervisor.peers.messages import Action, Failure, MemberState, Phase, Plan

LIMITS = GangLimits(
    silence=10,
    life=25,
    rendezvous=300,
    join=3900,
    serve=150,
    finish=60,
    restarts=2,
    describe_absence=lambda rank: f"why {rank}",
)
NOW = 1000.0


def make_plan(attempt: int, do: str, addresses: tuple[str, ...] = (), **more: Any) -> Plan:
    """Return a plan of this attempt and action; `more` are further fields."""
    return Plan(attempt=attempt, do=Action(do), addresses=addresses, **more)


def make_state(
    rank: int, incarnation: str, phase: str = "idle", attempt: int = -1, **more: Any
) -> MemberState:
    """Return the state that a pod of this rank reports; `more` are further fields."""
    return MemberState(rank, incarnation, Phase(phase), attempt, **more)


def absent(rank: int) -> Member:
    """Return a member that has not reported yet."""
    return Member(MemberState(rank))


def member(
    rank: int, phase: str = "idle", attempt: int = -1, failure: Failure | None = None, **more: Any
) -> Member:
    """Return a member whose state was received just now; `more` are fields of the member or of its state."""
    own = {name: more.pop(name) for name in ("heard", "progressed", "saved", "ghost_until") if name in more}
    state = {
        "failure": failure,
        "address": f"10.0.0.{rank}",
        "pod": f"pod-{rank}",
        "node": "node-a",
        "incarnation": f"i{rank}",
    }
    return Member(make_state(rank, phase=phase, attempt=attempt, **state | more), **{"heard": NOW} | own)
