"""How the ranks agree: rank 0 is the hub, and every rank follows the same steps through this interface.

    report("staged")  ─→ plan  (attempt, hosts, resume pass, or that nothing is left to do)
    report("ready")   ─→ go      once all pservers accept connections
    report("done")    ─→ finish  once all trainers have ended with 0
    report("ended")   ─→ end     once no child runs anywhere: the cause of the end, or none

A failure anywhere: the rank tells rank 0, rank 0 tells all to halt, each stops its children and reports
`ended` with its own failure, if it had one; the first by time is the cause, and goes to all with `end`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.errors import LauncherError, PeerError, PeerLostError
from launcher.gang.events import Event
from launcher.gang.log import log
from launcher.gang.members import PHASES, Failure, Member, first_failure
from launcher.gang.timings import Timings
from launcher.gang.wire import HubWire, Message, SpokeWire

CAUSE_BYTES = 3000  # of a cause on the wire: the termination message has room for 4096 in all


@dataclass(frozen=True)
class Ending:
    """What all ranks agreed on."""

    cause: str | None
    exit_code: int


class Peers(Protocol):
    """What the agent needs of the others, the same on rank 0 and elsewhere."""

    signals: dict[str, Message]

    def handle(self, event: Event) -> None:
        """Takes one event of the wire; raises `PeerError` or `PeerLostError` when the gang is over."""

    def report(self, phase: str, **fields: Any) -> None:
        """Tells that this rank has come to `phase`."""

    def halt(self, error: LauncherError, at: float) -> None:
        """This rank gives up: tells it to the others at once."""

    def agree(self, error: LauncherError, take: Callable[[float], None]) -> Ending:
        """With the own children ended: the cause that all agree on. `take(seconds)` handles one event."""

    def close(self) -> None: ...


class Hub:
    """Rank 0."""

    def __init__(self, wire: HubWire, members: list[Member], timings: Timings) -> None:
        self._wire, self.members, self._timings = wire, members, timings
        self.signals: dict[str, Message] = {}
        self.planned = False
        self._halting = False

    def handle(self, event: Event) -> None:
        member = self.members[event.rank]
        if event.kind == "joined":
            member.phase, member.lost = "staging", False
            for key in ("host", "address", "pod", "node"):
                setattr(member, key, str(event.body.get(key, "")))
            log.info("%s is here", member.label)
            if self._halting:
                self._wire.send(event.rank, {"t": "halt"})
        elif event.kind == "lost":
            if member.phase == "ended":
                return
            member.lost = True
            text = f"{member.label} was lost: {event.body['why']}"
            self._fail(Failure(event.rank, event.at, text, PeerLostError.exit_code))
        else:
            self._message(member, event)

    def _message(self, member: Member, event: Event) -> None:
        body = event.body
        if body.get("t") == "beat":
            progress = body.get("progress")
            if isinstance(progress, dict):
                member.progress = progress
        elif body.get("t") == "state" and body.get("phase") in PHASES:
            if isinstance(body.get("fingerprint"), dict):
                member.fingerprint = body["fingerprint"]
            if isinstance(body.get("failure"), dict):
                self._note(self._failure_of(member, body["failure"], event.at))
            member.phase = body["phase"]
            self._step()
        elif body.get("t") == "failed":
            self._fail(self._failure_of(member, body, event.at))

    def _failure_of(self, member: Member, body: Message, at: float) -> Failure:
        text = f"{member.label}: {body.get('cause')}"
        return Failure(member.rank, at - float(body.get("ago") or 0), text, int(body.get("code") or 70))

    def _note(self, failure: Failure) -> None:
        member = self.members[failure.rank]
        if member.failure is None or failure.at < member.failure.at:
            member.failure = failure

    def _fail(self, failure: Failure) -> None:
        self._note(failure)
        self._tell_halt()
        raise PeerError(failure.text, failure.exit_code)

    def _tell_halt(self) -> None:
        if not self._halting:
            self._halting = True
            self._wire.broadcast({"t": "halt"})

    def _step(self) -> None:
        for phase, signal in (("ready", "go"), ("done", "finish")):
            if signal not in self.signals and all(member.reached(phase) for member in self.members):
                self._signal(signal, {"t": signal})

    def _signal(self, name: str, message: Message) -> None:
        self.signals[name] = message
        self._wire.broadcast(message)

    def report(self, phase: str, **fields: Any) -> None:
        own = self.members[0]
        own.phase = phase
        if "fingerprint" in fields:
            own.fingerprint = fields["fingerprint"]
        self._step()

    def absent(self) -> list[Member]:
        """Who has not staged yet."""
        return [member for member in self.members if not member.reached("staged")]

    def plan(self, message: Message) -> None:
        """Tells all how this attempt goes."""
        self._signal("plan", {"t": "plan", **message})

    def everybody_ended(self) -> bool:
        return all(member.reached("ended") for member in self.members)

    def halt(self, error: LauncherError, at: float) -> None:
        if not isinstance(error, PeerError):
            own = self.members[0]
            self._note(Failure(0, at, f"{own.label}: {error}", error.exit_code))
        self._tell_halt()

    def agree(self, error: LauncherError, take: Callable[[float], None]) -> Ending:
        self.members[0].phase = "ended"
        now = time.monotonic()
        # Who has not come yet may be on its way: it should hear the cause, not wait for a hub that is gone.
        patience, deadline = now + self._timings.tell, now + self._timings.stop + self._timings.farewell
        while True:
            waiting = [m for m in self.members if not m.lost and not m.reached("ended")]
            present = [m for m in waiting if m.phase != "absent"]
            now = time.monotonic()
            if not waiting or now >= deadline or (not present and now >= patience):
                break
            take(0.1)
        cause = first_failure(self.members)
        ending = Ending(cause.text, cause.exit_code) if cause else Ending(str(error), error.exit_code)
        self._wire.broadcast({"t": "end", "cause": _clip(ending.cause or ""), "code": ending.exit_code})
        return ending

    def bid_farewell(self) -> None:
        """All went well: lets the others go."""
        self._signal("end", {"t": "end", "cause": None, "code": 0})

    def close(self) -> None:
        self._wire.close()


class Spoke:
    """Any other rank."""

    def __init__(self, wire: SpokeWire, rank: int, timings: Timings) -> None:
        self._wire, self._rank, self._timings = wire, rank, timings
        self.signals: dict[str, Message] = {}
        self._failure: tuple[LauncherError, float] | None = None
        self._phase = "staging"
        self._told: dict[str, Any] = {}
        self.hub_lost: LauncherError | None = None

    def handle(self, event: Event) -> None:
        if event.kind == "joined":
            # What was reported before there was a connection.
            self._send_state()
        elif event.kind == "lost":
            if "end" in self.signals:
                return
            self.hub_lost = event.body["error"]
            raise event.body["error"]
        elif event.kind == "message":
            name = str(event.body.get("t"))
            self.signals[name] = event.body
            if name == "halt":
                raise PeerError("another rank gave up", PeerError.exit_code)
            if name == "end" and event.body.get("cause") is not None:
                raise PeerError(str(event.body["cause"]), int(event.body.get("code") or 70))

    def report(self, phase: str, **fields: Any) -> None:
        self._phase = phase
        self._told.update(fields)
        self._send_state()

    def _send_state(self) -> None:
        message: Message = {"t": "state", "phase": self._phase, **self._told}
        if self._failure is not None:
            message["failure"] = self._failure_body()
        self._wire.send(message)

    def _failure_body(self) -> Message:
        assert self._failure is not None  # noqa: S101 - the callers looked
        error, at = self._failure
        return {"cause": _clip(str(error)), "code": error.exit_code, "ago": time.monotonic() - at}

    def halt(self, error: LauncherError, at: float) -> None:
        if isinstance(error, (PeerError, PeerLostError)):
            return
        if self._failure is None or at < self._failure[1]:
            self._failure = (error, at)
        self._wire.send({"t": "failed", **self._failure_body()})

    def agree(self, error: LauncherError, take: Callable[[float], None]) -> Ending:
        own = Ending(str(error), error.exit_code)
        now = time.monotonic()
        until = now + self._timings.tell
        while not self._wire.connected and self.hub_lost is None and time.monotonic() < until:
            take(0.1)
        met = self._wire.connected
        if self._failure is not None:
            self._wire.send({"t": "failed", **self._failure_body()})
        self.report("ended")
        deadline = time.monotonic() + self._timings.stop + self._timings.farewell
        # Not until the connection closes: `end` may have come just before, and be in the queue.
        while met and "end" not in self.signals and self.hub_lost is None and time.monotonic() < deadline:
            take(0.1)
        end = self.signals.get("end")
        if end is None or end.get("cause") is None:
            if self.hub_lost is not None and isinstance(error, (PeerError, PeerLostError)):
                return Ending(str(self.hub_lost), self.hub_lost.exit_code)
            return own
        return Ending(str(end["cause"]), int(end.get("code") or 70))

    def close(self) -> None:
        self._wire.close()


def _clip(text: str) -> str:
    from launcher.gang.ending import clip

    return clip(text, CAUSE_BYTES)
