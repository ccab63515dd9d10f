"""Rank 0's part beside its own processes: the lease on the output, the plan, the books, the good end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from launcher.errors import EXIT_GANG, FINAL, LauncherError, StoppedError
from launcher.gang.books import Books
from launcher.gang.control import Hub
from launcher.gang.finding import credential
from launcher.gang.machine import Member, Plan, Restart, Rules, decide
from launcher.gang.messages import CHILDLESS, Failure, Order, State
from launcher.gang.network import Network
from launcher.layout import Output, Position
from launcher.reporting.log import log
from launcher.reporting.picture import Picture
from launcher.runtimes.base import Runtime
from launcher.settings import TrainSettings
from launcher.storage.exporting import Exporter
from launcher.storage.lock import Holder, RunLock
from launcher.storage.output import adopt, check_folders
from launcher.timings import Timings

if TYPE_CHECKING:
    from launcher.reporting.notify import Notifier

RUN_ENDS = (*FINAL, EXIT_GANG)
"""Exit codes with which rank 0 ends the whole run; with any other one it only leaves."""
Kind = Literal["started", "restarted", "completed", "failed", "stopped"]


class Leader:
    """`pause(seconds)` and `wake()` are the agent's: the former may raise, the latter is for other
    threads."""

    def __init__(
        self,
        settings: TrainSettings,
        runtime: Runtime,
        network: Network,
        timings: Timings,
        *,
        incarnation: str,
        address: str,
        pause: Callable[[float], None],
        wake: Callable[[], None],
    ) -> None:
        self._settings, self._runtime, self._network, self._timings = settings, runtime, network, timings
        self._pause, self._wake = pause, wake
        t = timings
        self._rules = Rules(
            silence=t.silence,
            life=t.life,
            rendezvous=settings.rendezvous_seconds,
            serve=t.ready + t.stop + t.stuck,
            finish=t.servers_end + 2 * t.stop + t.stuck,
            restarts=settings.restarts,
            why_absent=self._why_absent,
        )
        self.hub = Hub(settings.trainers, self._rules, wake, t.hold)
        self.output = Output(settings.layout.output)
        holder = Holder(
            settings.run_id,
            settings.namespace,
            settings.release,
            settings.job_name,
            settings.pod_name,
            incarnation,
            address,
        )
        self.lock = RunLock(self.output.lock, holder, timings, pause=pause)
        self.plan = Plan(-1)
        self.books: Books | None = None
        self.lost: LauncherError | None = None
        """Why the output is no more this run's."""
        self._notifier: Notifier | None = None
        if settings.webhook or settings.events:
            from launcher.reporting.notify import Notifier

            self._notifier = Notifier(settings)
        self._picture = Picture(self.output, settings)
        self._exporter: Exporter | None = None
        self._complete = False
        self._said = 0.0
        self.rendezvous_seconds: float | None = None

    def open(self, lost: Callable[[LauncherError], None]) -> None:
        """Takes the output, waiting for an earlier holder; other ranks are let in from then on.

        `lost` is called from a thread, should the lease end.
        """
        check_folders(self._settings.layout)
        self.lock.acquire()

        def end(error: LauncherError) -> None:
            self.lost = error
            if self.books is not None:
                self.books.abandon()
            lost(error)

        self.lock.keep(end)
        self.hub.open(credential(self._settings, self.lock.token))

    def begin(self, print_: dict[str, Any]) -> None:
        """Adopts the output that fits this fingerprint, and plans the first attempt."""
        s = self._settings
        adopted = adopt(s, print_, self.lock)
        earlier = adopted.earlier if adopted.earlier.get("runId") == s.run_id else {}
        self._complete = self._runtime.complete(self.output.root, s)
        self.books = Books(
            self.output,
            s,
            fingerprint=print_,
            earlier=adopted.earlier,
            lock=self.lock,
            look=lambda: (self.plan, self.hub.members),
            timings=self._timings,
        )
        now = time.monotonic()
        plan, members = again(earlier, adopted.attempt, s.trainers, now, time.time() - now)
        self.hub.remember(members)
        if self._complete:  # no attempt is made
            plan = replace(plan, attempt=max(0, plan.attempt - 1), crew=tuple(earlier.get("crew") or ()))
        self.books.open(plan, self._complete)
        self.plan = plan
        self.books.begin()
        self.hub.publish(plan.order())
        if s.export_to:
            self._exporter = Exporter(s, self._timings, self._wake, self._pause)
            if not self._complete:
                self._exporter.reserve(self.books.output_id)
        if self._complete:
            at = self._saved()
            passes = "the only pass is" if s.passes == 1 else f"all {s.passes} passes are"
            done = f"{passes} done already"
            if at is not None and at.passes < s.passes:
                done = f"training ended early after pass {at.passes} (training.patience is {s.patience})"
            log.info(
                "%s: nothing to start. A new runId resumes this output. To start from scratch, set `fresh` "
                "to any new text; this output is then moved to runs/",
                done,
            )
        else:
            self._tell("started", None)

    def step(self, own: State, now: float) -> Order:
        """Notes rank 0's own state, decides, and gives everybody the order that follows."""
        self.hub.take(own, now)
        if self.books is None or self.lost is not None:
            return self.hub.order
        before = self.plan
        if before.do in ("train", "finish") and own.progress.get("state") in ("writing", "done"):
            self._picture.begin()
        if self._complete:
            plan = replace(before, do="end", cause=None)
        else:
            plan = decide(before, self.hub.members, now, self._rules, self._saved)
        if plan == before:
            self._say_waiting(now)
            return self.hub.order
        self._note(before, plan, now)
        if plan.do == "end":
            plan = self._end(plan)
        elif (before.attempt, before.restarts, before.crew) != (plan.attempt, plan.restarts, plan.crew):
            self.books.planned(plan)
        self.plan = plan
        self.hub.publish(plan.order())
        return self.hub.order

    def _saved(self) -> Position | None:
        return self._runtime.newest_save(self.output.root)

    def _note(self, before: Plan, plan: Plan, now: float) -> None:
        """Tells people."""
        if plan.do == "serve":
            self._picture = Picture(self.output, self._settings)
            self.rendezvous_seconds = now - before.since
            where = f"goes on from {plan.resume}" if plan.resume is not None else "begins anew"
            log.info("attempt %d %s, %.1f s after its plan", plan.attempt, where, self.rendezvous_seconds)
        elif plan.do == "stop" and before.do != "stop" and plan.cause is not None:
            log.error("attempt %d failed: %s", plan.attempt, plan.cause.text)
        elif plan.do == "wait" and plan.cause is not None:
            log.info(
                "restarting as attempt %d (%d of %d restarts since the last new save)",
                plan.attempt,
                plan.fruitless,
                self._settings.restarts,
            )
            self._tell("restarted", plan.cause.text)

    def _end(self, plan: Plan) -> Plan:
        """The run is over: the books are closed before anybody is told. Gives the plan with how it really
        ended."""
        assert self.books is not None  # noqa: S101 - only begin() leads here
        score = None
        if plan.cause is None:
            try:
                self._finish_well()
                score = self.books.score()
            except StoppedError:
                raise
            except LauncherError as error:
                plan = replace(plan, cause=Failure.of(error, time.monotonic(), 0))
        cause = plan.cause
        self.plan = plan
        self.books.close("complete" if cause is None else "failed", cause)
        if cause is not None:
            self._tell("failed", cause.text)
        else:
            self._tell("completed", None, score)
        return plan

    def _finish_well(self) -> None:
        """All passes are whole and no child runs: run.json, then what is made of it, and the export."""
        assert self.books is not None  # noqa: S101 - only begin() leads here
        self.books.trained()
        # Also when all was done already: the page that is there may tell of a start that failed.
        self._picture.end(self._timings.curve, self._pause)
        if self._exporter is not None:
            self.books.state = "exporting"
            self.books.exported = self._exporter.copy(self.books.output_id)

    def _say_waiting(self, now: float) -> None:
        if self.plan.do == "wait" and now - max(self._said, self.plan.since) >= self._timings.say_again:
            self._said = now
            absent = [m.rank for m in self.hub.members if m.phase in ("absent", "leaving")]
            why = [self._why_absent(rank) for rank in absent]
            staging = [f"{m.label} to stage its shard" for m in self.hub.members if m.phase == "staging"]
            log.info("waiting for %s", "; ".join([*why, *staging]) or "all ranks to end their processes")

    def _why_absent(self, rank: int) -> str:
        """Why a rank has not come, as far as its name tells."""
        name = f"{self._settings.k8s_job}-{rank}.{self._settings.service}"
        found = self._network.resolve(name)
        if not found:
            return f"rank {rank}: {name} does not resolve (its pod is not scheduled, or has no address)"
        return (
            f"rank {rank}: {name} resolves to {', '.join(found)}, but no answer: its launcher has not called "
            f"rank 0 on peerPort {self._settings.peer_port} (its init container waits, it cannot start, "
            "or a network policy blocks that port)"
        )

    def leave(self, error: LauncherError) -> None:
        """Rank 0's launcher ends, and the run does not: its successor goes on."""
        plan = replace(
            self.plan, do="stop", cause=Failure.of(error, time.monotonic(), 0), since=time.monotonic()
        )
        self.plan = plan
        self.hub.publish(plan.order())

    def end(self, error: LauncherError) -> None:
        """The run ends by a fault of rank 0's own: tells it to everybody."""
        cause = Failure.of(error, time.monotonic(), 0)
        cause = replace(cause, text=f"rank 0 ({self._settings.pod_name}): {cause.text}")
        self.plan = replace(self.plan, do="end", cause=cause)
        self.hub.publish(self.plan.order())

    def settled(self, now: float) -> bool:
        """Whether no other rank runs a child, as far as they tell."""
        return all(
            (m.phase in (*CHILDLESS, "absent") or now - m.heard >= self._rules.life) and m.ghost <= now
            for m in self.hub.members[1:]
        )

    def announce(self, error: LauncherError) -> None:
        """Rank 0's own trouble, told before its children end: the run's end, or only this launcher's."""
        if error.exit_code in RUN_ENDS:
            self.end(error)
        else:
            self.leave(error)

    def farewell(self, error: LauncherError | None, now: Callable[[], float]) -> None:
        """Waits until all know how it ended, and closes the books. `now()` gives the time, each round."""
        # Who has not come yet may be on its way: it should hear the cause, not wait for a hub that is gone.
        begun = now()
        patience, deadline = begun + self._timings.tell, begun + self._timings.farewell
        while True:
            moment = now()
            settled = self.settled(moment)
            known = self.hub.everybody_knows(moment, absent=moment >= patience)
            if (known and (settled or self.lost is not None)) or moment >= deadline:
                break
            time.sleep(0.05)
        if error is None:
            self.close(None, None)
        elif error.exit_code in RUN_ENDS:
            self.close("failed", error)
        else:  # a successor takes every rank for childless in a run that was stopped
            self.close("stopped" if settled else None, error)

    def close(self, state: str | None, error: LauncherError | None) -> None:
        """The last writings, if the output is still this run's; then gives it up. `state` None: they are
        done."""
        if self.books is not None and self.lost is None and state is not None:
            try:
                cause = None if error is None else Failure.of(error, time.monotonic(), 0)
                self.books.close(state, cause)
            except (LauncherError, OSError) as failed:
                log.warning("cannot write how the run ended: %s", failed)
            self._tell("stopped" if state == "stopped" else "failed", str(error))
        if (
            self.books is not None
            and self.lost is None
            and self.plan.do == "end"
            and self.plan.cause is not None
        ):
            self._picture.failed(self._timings.report)
        if self.books is not None:
            self.books.abandon()
        self.lock.release()
        if self._notifier is not None:
            self._notifier.close(self._timings.copies)

    def _tell(self, kind: Kind, cause: str | None, score: dict[str, Any] | None = None) -> None:
        if self._notifier is not None:
            self._notifier.tell(kind, attempt=self.plan.attempt, cause=cause, score=score)


def again(
    earlier: Mapping[str, Any], attempt: int, trainers: int, now: float, offset: float
) -> tuple[Plan, tuple[Member, ...]]:
    """(the first plan, what is known of the ranks) from this run's own run.json, or {}.

    `offset`: time of day minus `now`'s clock. An earlier rank 0 that closed its books left no child behind.
    One that did not was lost while its attempt ran: that is a failure like any other, and its attempt's pods
    count as alive until they are heard, or have been silent for too long.
    """
    restarts = tuple(
        Restart(
            int(r["attempt"]),
            str(r["cause"]),
            float(r["at"]) - offset,
            tuple(r.get("signature") or ()) or None,
        )
        for r in earlier.get("restarts") or ()
    )
    at = earlier.get("resume")
    plan = Plan(
        attempt,
        since=now,
        resume=Position(*at) if at else None,
        restarts=restarts,
        fruitless=int(earlier.get("fruitless") or 0),
    )
    crew = tuple(earlier.get("crew") or ())
    if earlier.get("state") != "training" or len(crew) != trainers:
        return plan, ()
    cause = Failure("rank 0's launcher was lost", EXIT_GANG, now, 0)
    members = (
        Member(0),
        # Of no attempt: whatever that launcher itself tells is later.
        *(Member(rank, State(rank, crew[rank], "training"), now) for rank in range(1, trainers)),
    )
    return replace(plan, attempt=attempt - 1, do="stop", cause=cause), members
