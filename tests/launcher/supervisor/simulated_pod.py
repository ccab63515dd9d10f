"""One pod's launcher on the simulation's clock.

Models the main thread (launcher/supervisor/agent.py) and the connection between ranks
(launcher/supervisor/peers/).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from launcher.errors import (
    DeadlineError,
    LauncherError,
    TwinError,
    UnfitError,
)
from launcher.supervisor.agent import RunEndedError
from launcher.supervisor.coordinator.coordinator import RUN_ENDS
from launcher.supervisor.coordinator.decisions import StateRejectedError
from launcher.supervisor.coordinator.membership import Membership
from launcher.supervisor.peers.coordinator_link import ANSWER_SECONDS
from launcher.supervisor.peers.messages import Failure, MemberState, Order
from tests.launcher.supervisor.simulated_coordinator import SimulatedCoordinator
from tests.launcher.supervisor.simulated_launcher import Waits
from tests.launcher.supervisor.simulated_processes import SimulatedProcesses, T


class SimulatedPod(SimulatedCoordinator):
    """Model one pod of one rank."""

    def _run(self) -> Iterator[Any]:
        """Run the main thread as `Agent.run` does, and return (exit code, cause)."""
        error: LauncherError | None = None
        try:
            yield from self._script()
        except LauncherError as caught:
            error = caught
        yield from self._leave(error)
        return (error.exit_code, str(error)) if error is not None else (0, "")

    def _script(self) -> Waits:
        """Run the launcher from its start until it receives the order `end`."""
        if self.rank == 0:
            self.membership = Membership(self.world.ranks, self.world.rules, self.wake, 0.0)
            yield from self._acquire_lease()
            self._renew_lease()
            self._watch_lease()
            self.membership.open(self.incarnation)
        else:
            yield from self._raise_if_run_ended("complete")
            self.schedule(0, self._send_report)
        yield from self._use_storage()
        for _ in range(self.world.rng.randint(1, 3)):  # the shard
            yield from self._pause(self.world.rng.uniform(0.1, 1))
        self.executor.staged = True
        if self.rank == 0:
            yield from self._start_run()
        while True:
            order = yield from self._step()
            if order is not None and order.do == "end" and not self.executor.running:
                if order.cause is not None:
                    raise RunEndedError(order.cause, order.code)
                return
            yield from self._pause(T.poll)

    def _step(self) -> Iterator[Any]:
        """Run one round of the main loop, and return the newest order."""
        order, heard = self.order, self.heard
        if self.membership is not None:
            yield from self._step_coordinator()
            order, heard = self.membership.order, self.world.now
            self.world.check_received_order(self, order)
        else:
            yield from self._check_link()
        self.executor.step(order, heard, self.world.now)
        if self.report_during_start is not None:  # its processes start once the storage has answered
            yield from self._start_when_storage_answers()
        if self.membership is not None:
            yield from self._step_coordinator()
            order = self.membership.order
        return order

    def _build_processes(self, order: Order) -> SimulatedProcesses:
        self.report_during_start = self.executor.report
        return SimulatedProcesses(self, order)

    def _start_when_storage_answers(self) -> Waits:
        """Start the processes after a write to the storage, or report the failure."""
        processes = self.executor.processes
        assert isinstance(processes, SimulatedProcesses)
        try:
            yield from self._use_storage(write=True)
            self.check_before_start()
        except LauncherError as error:
            processes.starting = False
            self.executor.processes, self.executor.failure = (
                None,
                Failure.from_error(error, self.world.now, self.rank),
            )
        else:
            processes.start()
        self.report_during_start = None
        self.executor.report = self.executor.phase, self.executor.attempt, self.executor.failure

    def check_before_start(self) -> None:
        """Raise an error if the lease or the contact to rank 0 was lost during the write before."""
        if self.lost is not None:
            raise self.lost
        if self.membership is None and self.world.now - self.heard >= T.orphan:
            raise UnfitError("the storage answered too late")

    def _check_link(self) -> Waits:
        """Raise an error if rank 0 rejects this pod for too long or cannot be reached."""
        now = self.world.now
        if self.rejection is not None:
            twin, since = self.rejection
            if twin or now - since >= T.second_pod_wait:
                raise TwinError("rank 0 has accepted another pod of this rank")
        silent = now - self.heard
        if silent < T.silence or now - self.last_silence_check < T.silence:
            return
        self.last_silence_check = now
        yield from self._raise_if_run_ended("complete", "failed")
        if silent >= self.world.rules.rendezvous:
            raise DeadlineError(f"rank 0 did not answer for {silent:.0f} s")

    def _raise_if_run_ended(self, *states: str) -> Waits:
        """Raise `RunEndedError` if run.json has one of these final states."""
        yield from self._use_storage()
        record = self.world.run_json
        if record.get("state") not in states:
            return
        if record["state"] == "complete":
            raise RunEndedError("the run is complete", 0)
        if self.token == record["holder"]:
            raise RunEndedError(str(record["cause"]), int(record["exitCode"]))

    def _leave(self, error: LauncherError | None) -> Waits:
        """Stop the processes and report the error; rank 0 then waits for the others and writes run.json."""
        own_error = error if not isinstance(error, RunEndedError) else None
        if own_error is not None:
            self.leaving = Failure.from_error(own_error, self.world.now, self.rank)
            if self.membership is not None:
                self._publish_last_plan(own_error)
        deadline = self.world.now + T.stop + 5
        while self.executor.running and self.world.now < deadline:
            self.last_step = self.world.now
            self.executor.step(None, self.world.now, self.world.now)
            yield T.poll
        self.kill_processes()
        self.has_left = True
        if self.membership is None:
            if self.order is not None and self.target is not None:
                self._send(self.target, self.state(), 0)
                yield self.world.rng.uniform(0, T.copies)
            return
        patience, deadline = self.world.now + T.late_rank_wait, self.world.now + T.farewell
        while self.world.now < deadline:
            self.last_step = now = self.world.now
            knows = self.membership.all_have_newest_order(now, skip_absent=now >= patience)
            if knows and (self._other_ranks_stopped(now) or self.lost is not None):
                break
            yield 0.5
        if own_error is not None and self.began and self.lost is None:
            # "training": processes may still run, so the next rank 0 has to wait for them as after a loss.
            stopped = "stopped" if self._other_ranks_stopped(self.world.now) else "training"
            how = "failed" if own_error.exit_code in RUN_ENDS else stopped
            with contextlib.suppress(LauncherError):
                yield from self._persist(self.plan, how, Failure.from_error(own_error, self.world.now, 0))
        if self.lost is None and self.world.lock is not None and self.world.lock[0] == self.incarnation:
            self.world.lock = None

    # The link's thread.

    def _send_report(self) -> None:
        """Send this rank's state to rank 0, which answers with the newest order."""
        if self.has_left or self.pending:
            return
        if self.world.now - self.last_step >= T.stuck:
            self.schedule(T.poll, self._send_report)
            return
        if self.target is None or self.target.dead:
            self.target, self.seen_version = self.world.resolve(), 0
            if self.target is None or self.target.dead:
                self.target = None
                self.schedule(self.world.rng.choice((0.5, 5)), self._send_report)
                return
        if not self.token:
            self._read_token()
        self.requests += 1
        self.pending = number = self.requests
        self._send(self.target, self.state(), number)

        def give_up() -> None:
            if self.pending == number:
                self.pending, self.target = 0, None
                self._send_report()

        self.schedule(ANSWER_SECONDS, give_up)

    def _read_token(self) -> None:
        """Read the lease's token as this node sees it, which may be an old one."""
        storage_fault, _ = self.world.find_storage_fault(self)
        if storage_fault is None:
            self.token = self.world.visible_token()

    def _send(self, target: SimulatedPod, state: MemberState, number: int) -> None:
        """Send a state to rank 0; it may arrive late, twice or never."""
        report = replace(state, failure=state.failure)
        token, seen, sent = self.token, self.seen_version, self.world.now

        def arrives() -> None:
            target.receive_state(
                report, token, seen, lambda answer: self._send_answer(target, number, sent, answer)
            )

        for delay in self.world.message_delays(self, target):
            self.world.schedule(delay, lambda: target.schedule(0, arrives))

    def receive_state(self, state: MemberState, token: str, seen: int, reply: Callable[[Any], None]) -> None:
        """Record a rank's state as rank 0's server does; answer when there is a new order or after 1 s."""
        membership = self.membership
        if membership is None or membership._credential != token:
            reply(503 if membership is None or membership._credential is None else 401)
            return
        try:
            membership.record_state(state, self.world.now)
        except StateRejectedError as refused:
            reply(refused)
            return

        once: list[bool] = []

        def answer() -> None:
            if not once:
                once.append(True)
                membership._await_order(state.rank, -1)
                reply((membership._version, membership.order))

        if seen != membership._version:
            answer()
        else:
            self.waiting.append(answer)
            self.schedule(1.0, answer)

    def _send_answer(self, target: SimulatedPod, number: int, sent: float, answer: Any) -> None:
        """Send rank 0's answer back to this rank; it may arrive late, twice or never."""

        def arrives() -> None:
            if self.pending != number:
                return  # the request has timed out
            self.pending = 0
            if isinstance(answer, tuple):
                version, order = answer
                changed, self.seen_version, self.order = version != self.seen_version, version, order
                self.heard, self.rejection = self.contact_time(sent), None
                self.world.check_received_order(self, order)
                if changed:
                    self.wake()
                self._send_report()
                return
            if isinstance(answer, StateRejectedError):
                self.rejection = answer.replaced, self.rejection[1] if self.rejection else sent
                self.wake()
            elif answer == 401:
                self._read_token()
            self.target = self.target if self.world.rng.random() < 0.8 else None
            self.schedule(T.poll, self._send_report)

        for delay in self.world.message_delays(target, self):
            self.world.schedule(delay, lambda: self.schedule(0, arrives))

    def contact_time(self, sent: float) -> float:
        """Return the latest time at which rank 0 certainly counted on this rank: an answer may be delayed."""
        return sent
