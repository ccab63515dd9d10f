"""One pod's launcher on the simulation's clock: agent.py's main thread, and control.py's link and server."""

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
from launcher.gang.agent import EndedError
from launcher.gang.control import SOCKET_SECONDS, Hub
from launcher.gang.lead import RUN_ENDS
from launcher.gang.machine import Refused
from launcher.gang.messages import Failure, Order, State
from tests.launcher.core.simulated_children import Children, T
from tests.launcher.core.simulated_launcher import Wait
from tests.launcher.core.simulated_lead import Leader


class Pod(Leader):
    """One pod of one rank."""

    def _run(self) -> Iterator[Any]:
        """As Agent.run: gives (exit code, cause)."""
        error: LauncherError | None = None
        try:
            yield from self._script()
        except LauncherError as caught:
            error = caught
        yield from self._leave(error)
        return (error.exit_code, str(error)) if error is not None else (0, "")

    def _script(self) -> Wait:
        if self.rank == 0:
            self.hub = Hub(self.world.ranks, self.world.rules, self.wake, 0.0)
            yield from self._acquire()
            self._renew()
            self._watch()
            self.hub.open(self.incarnation)
        else:
            yield from self._look_whether_over("complete")
            self.at(0, self._ask)
        yield from self._io()
        for _ in range(self.world.rng.randint(1, 3)):  # the shard
            yield from self._pause(self.world.rng.uniform(0.1, 1))
        self.follower.staged = True
        if self.rank == 0:
            yield from self._begin()
        while True:
            order = yield from self._step()
            if order is not None and order.do == "end" and not self.follower.running:
                if order.cause is not None:
                    raise EndedError(order.cause, order.code)
                return
            yield from self._pause(T.poll)

    def _step(self) -> Iterator[Any]:
        order, heard = self.order, self.heard
        if self.hub is not None:
            yield from self._lead()
            order, heard = self.hub.order, self.world.now
            self.world.receives(self, order)
        else:
            yield from self._check_link()
        self.follower.step(order, heard, self.world.now)
        if self.meanwhile is not None:  # its children start once the storage has answered
            yield from self._starts()
        if self.hub is not None:
            yield from self._lead()
            order = self.hub.order
        return order

    def _start(self, order: Order) -> Children:
        self.meanwhile = self.follower.told
        return Children(self, order)

    def _starts(self) -> Wait:
        crew = self.follower.crew
        assert isinstance(crew, Children)
        try:
            yield from self._io(write=True)
            self.look_again()
        except LauncherError as error:
            crew.starting = False
            self.follower.crew, self.follower.failure = None, Failure.of(error, self.world.now, self.rank)
        else:
            crew.begin()
        self.meanwhile = None
        self.follower.told = self.follower.phase, self.follower.attempt, self.follower.failure

    def look_again(self) -> None:
        """Before the first child: the storage may have taken its time."""
        if self.lost is not None:
            raise self.lost
        if self.hub is None and self.world.now - self.heard >= T.orphan:
            raise UnfitError("the storage answered too late")

    def _check_link(self) -> Wait:
        now = self.world.now
        if self.refused is not None:
            twin, since = self.refused
            if twin or now - since >= T.twin:
                raise TwinError("another pod of this rank counts")
        silent = now - self.heard
        if silent < T.silence or now - self.said < T.silence:
            return
        self.said = now
        yield from self._look_whether_over("complete", "failed")
        if silent >= self.world.rules.rendezvous:
            raise DeadlineError(f"rank 0 was not there for {silent:.0f} s")

    def _look_whether_over(self, *states: str) -> Wait:
        yield from self._io()
        told = self.world.run_json
        if told.get("state") not in states:
            return
        if told["state"] == "complete":
            raise EndedError("the run is complete", 0)
        if self.token == told["holder"]:
            raise EndedError(str(told["cause"]), int(told["exitCode"]))

    def _leave(self, error: LauncherError | None) -> Wait:
        told = error if not isinstance(error, EndedError) else None
        if told is not None:
            self.leaving = Failure.of(told, self.world.now, self.rank)
            if self.hub is not None:
                self._leave_plan(told)
        deadline = self.world.now + T.stop + 5
        while self.follower.running and self.world.now < deadline:
            self.round = self.world.now
            self.follower.step(None, self.world.now, self.world.now)
            yield T.poll
        self.kill_children()
        self.gone = True
        if self.hub is None:
            if self.order is not None and self.target is not None:
                self._send(self.target, self.state(), 0)
                yield self.world.rng.uniform(0, T.copies)
            return
        patience, deadline = self.world.now + T.tell, self.world.now + T.farewell
        while self.world.now < deadline:
            self.round = now = self.world.now
            knows = self.hub.everybody_knows(now, absent=now >= patience)
            if knows and (self._settled(now) or self.lost is not None):
                break
            yield 0.5
        if told is not None and self.began and self.lost is None:
            # "training": children may live on, so the successor has to wait for them as after a loss.
            stopped = "stopped" if self._settled(self.world.now) else "training"
            how = "failed" if told.exit_code in RUN_ENDS else stopped
            with contextlib.suppress(LauncherError):
                yield from self._persist(self.plan, how, Failure.of(told, self.world.now, 0))
        if self.lost is None and self.world.lock is not None and self.world.lock[0] == self.incarnation:
            self.world.lock = None

    # The link's thread.

    def _ask(self) -> None:
        if self.gone or self.pending:
            return
        if self.world.now - self.round >= T.stuck:
            self.at(T.poll, self._ask)
            return
        if self.target is None or self.target.dead:
            self.target, self.seen = self.world.resolve(), 0
            if self.target is None or self.target.dead:
                self.target = None
                self.at(self.world.rng.choice((0.5, 5)), self._ask)
                return
        if not self.token:
            self._read_token()
        self.asked += 1
        self.pending = number = self.asked
        self._send(self.target, self.state(), number)

        def give_up() -> None:
            if self.pending == number:
                self.pending, self.target = 0, None
                self._ask()

        self.at(SOCKET_SECONDS, give_up)

    def _read_token(self) -> None:
        """What this node sees of the lock: it may be old."""
        trouble, _ = self.world.storage(self)
        if trouble is None:
            self.token = self.world.visible_token()

    def _send(self, target: Pod, state: State, number: int) -> None:
        told = replace(state, failure=state.failure)
        token, seen, sent = self.token, self.seen, self.world.now

        def arrives() -> None:
            target.takes(told, token, seen, lambda answer: self._reply(target, number, sent, answer))

        for delay in self.world.delays(self, target):
            self.world.at(delay, lambda: target.at(0, arrives))

    def takes(self, state: State, token: str, seen: int, reply: Callable[[Any], None]) -> None:
        """Rank 0's server."""
        hub = self.hub
        if hub is None or hub.allows(token) is not True:
            reply(503 if hub is None or hub.allows(token) is None else 401)
            return
        try:
            hub.take(state, self.world.now)
        except Refused as refused:
            reply(refused)
            return

        once: list[bool] = []

        def answer() -> None:
            if not once:
                once.append(True)
                hub.answer(state.rank, -1)
                reply((hub._version, hub.order))

        if seen != hub._version:
            answer()
        else:
            self.waiting.append(answer)
            self.at(1.0, answer)

    def _reply(self, target: Pod, number: int, sent: float, answer: Any) -> None:
        def arrives() -> None:
            if self.pending != number:
                return  # its connection was given up
            self.pending = 0
            if isinstance(answer, tuple):
                version, order = answer
                changed, self.seen, self.order = version != self.seen, version, order
                self.heard, self.refused = self.confirmed(sent), None
                self.world.receives(self, order)
                if changed:
                    self.wake()
                self._ask()
                return
            if isinstance(answer, Refused):
                self.refused = answer.twin, self.refused[1] if self.refused else sent
                self.wake()
            elif answer == 401:
                self._read_token()
            self.target = self.target if self.world.rng.random() < 0.8 else None
            self.at(T.poll, self._ask)

        for delay in self.world.delays(target, self):
            self.world.at(delay, lambda: self.at(0, arrives))

    def confirmed(self, sent: float) -> float:
        """When rank 0 certainly still counted on this rank: an answer may have been long on its way."""
        return sent
