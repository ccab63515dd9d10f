"""The newest state of every rank, received over HTTP, and the order that the coordinator answers."""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.log import log
from launcher.supervisor.coordinator.member_states import GangLimits, Member, StateRejectedError, admit_state
from launcher.supervisor.peers.messages import MemberState, Order


class Membership:
    """Holds the newest state of every rank and the newest `Order`. Server threads and the agent share it."""

    def __init__(self, trainers: int, limits: GangLimits, wake: Callable[[], None], hold: float) -> None:
        """Create the record of `trainers` ranks, none of which has reported yet.

        `wake` is called when a member's phase or failure changes. The answer to a state is held back for `hold`
        seconds while there is no newer order.
        """
        self.limits, self._wake, self.hold = limits, wake, hold
        self.members = tuple(Member(rank) for rank in range(trainers))
        """In rank order."""
        self._credential: str | None = None
        self.order = Order(-1, "wait")
        self._version, self._body = 0, b""
        self._sent_versions: dict[int, int] = {}
        self._changed = threading.Condition()
        self.publish(self.order)

    def restore(self, members: Sequence[Member]) -> None:
        """Add the members that an earlier rank 0 recorded in run.json."""
        with self._changed:
            recorded = {member.rank: member for member in members}
            self.members = tuple(
                self._merge(member, recorded.get(member.rank, member)) for member in self.members
            )

    def _merge(self, known: Member, recorded: Member) -> Member:
        if known.state is None or recorded.state is None:
            return recorded if known.state is None else known
        earlier = recorded.state.incarnation  # `known` has already reported to this rank 0
        if known.state.incarnation == earlier:
            return known
        return replace(
            known, replaced=known.replaced | {earlier}, ghost_until=recorded.heard + self.limits.life
        )

    def open(self, credential: str) -> None:
        """From now on accept the states of ranks that send this credential."""
        self._credential = credential

    def close(self) -> None:
        """Reject all states until `open`: this rank 0 lost its lease or is stuck, and members look for another."""
        self._credential = None

    def record_state(self, state: MemberState, now: float) -> None:
        """Record the state that a rank reports at monotonic time `now`.

        Raises:
            StateRejectedError: another pod with the same rank is the valid one.
            ValueError: there is no such rank.
        """
        with self._changed:
            if not 0 <= state.rank < len(self.members):
                raise ValueError(f"there is no rank {state.rank}: ranks are 0 to {len(self.members) - 1}")
            before = self.members[state.rank]
            after = admit_state(before, state, now, self.limits)
            self.members = (*self.members[: state.rank], after, *self.members[state.rank + 1 :])
        if before.state is None or before.state.incarnation != state.incarnation:
            log.info("%s has joined", after.label)
        if (before.phase, before.state and before.state.failure) != (after.phase, state.failure):
            self._wake()

    def publish(self, order: Order) -> None:
        """Make `order` the newest order, with which the states of all ranks are answered from now on."""
        with self._changed:
            if self._body and order == self.order:
                return
            self._version, self.order = self._version + 1, order
            self._body = json.dumps({"version": self._version, "order": order.to_json()}).encode()
            self._changed.notify_all()

    def reject(self, credential: str) -> tuple[int, bytes] | None:
        """Return the answer (HTTP status, JSON body) to a sender of POST /state that is no rank of this run, or None.

        401: the credential is not that of this run. 503: rank 0 does not hold the output lease.
        """
        expected = self._credential
        if expected is None:
            return 503, _error("rank 0 does not hold the lease on the output")
        if not hmac.compare_digest(expected.encode(), credential.encode()):
            return 401, _error("this credential is not that of the run that holds run.lock")
        return None

    def handle_state(self, body: bytes) -> tuple[int, bytes]:
        """Handle POST /state of a rank that `reject` has admitted: record its state, and answer with the newest order.

        This returns at once if the rank has not seen the newest order yet, else after at most `hold` seconds.

        Args:
            body: JSON object with `state` and `seen`, the version of the newest order that the rank has.

        Returns:
            (HTTP status, JSON body). 200: the order. 400: the body is invalid. 409: another pod with the same rank is
            the valid one.
        """
        try:
            message = json.loads(body)
            state = MemberState.from_json(message["state"], time.monotonic())
            seen = -1 if state.phase == "leaving" else int(message.get("seen") or 0)
            self.record_state(state, time.monotonic())
        except StateRejectedError as rejected:
            return 409, _error(str(rejected), replaced=rejected.replaced)
        except (ValueError, KeyError, TypeError) as error:
            return 400, _error(
                f"invalid state: {type(error).__name__}: {error}. Fix: use one image for all pods of the run"
            )
        return 200, self._await_order(state.rank, seen)

    def _await_order(self, rank: int, seen: int) -> bytes:
        """Wait for an order newer than version `seen`, at most `hold` seconds; return the newest as JSON."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, self.hold)
            self._sent_versions[rank] = self._version
            return self._body

    def all_have_newest_order(self, now: float, *, skip_absent: bool) -> bool:
        """Return whether every other rank has received the newest order at monotonic time `now`.

        Lost and leaving ranks are not counted, nor with `skip_absent` those that have never reported.
        """
        return all(
            member.rank == 0
            or member.phase == "leaving"
            or (member.phase == "absent" and skip_absent)
            or (member.phase != "absent" and now - member.heard >= self.limits.silence)
            or self._sent_versions.get(member.rank) == self._version
            for member in self.members
        )


def _error(text: str, **more: object) -> bytes:
    body: Mapping[str, Any] = {"error": text, **more}
    return json.dumps(body).encode()
