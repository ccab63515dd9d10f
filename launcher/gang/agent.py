"""`train`: one rank's launcher from its start to its exit code.

    server → (rank 0: the lease on the output; others: the link to rank 0) → data → stage → (rank 0: adopt an
    output) → do what the order says, until it says that the run is over

Threads only note what happens and wake the main thread, which alone decides and acts. One more, the guard,
kills the children when the main thread can no longer do it in time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

from launcher import children, files, runtimes
from launcher.errors import (
    EXIT_GANG,
    EXIT_UNFIT,
    DeadlineError,
    LauncherError,
    StoppedError,
    TwinError,
    UnfitError,
)
from launcher.gang.control import Link, Server
from launcher.gang.crew import Crew, progress_of
from launcher.gang.finding import Finder, credential
from launcher.gang.follower import Follower
from launcher.gang.lead import Leader
from launcher.gang.messages import Failure, Order, State
from launcher.gang.network import Network, advertised
from launcher.gang.pages import pages
from launcher.layout import Output
from launcher.reporting.ending import write_termination_message
from launcher.reporting.log import begin, log
from launcher.runtimes.base import Gang, Runtime
from launcher.settings import TrainSettings
from launcher.storage.converting import convert
from launcher.storage.manifest import await_manifest
from launcher.storage.output import fingerprint, make_room, read_run
from launcher.storage.probe import Probe
from launcher.storage.stage import Staged, find_program, stage
from launcher.timings import Timings

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def train(settings: TrainSettings) -> int:
    """The exit code of this rank. Raises `SettingsError` before anything is made."""
    return Agent(settings, runtimes.load(settings.runtime), Network(), Timings()).run()


class EndedError(LauncherError):
    """The run is over: what rank 0 told, or left in run.json."""

    def __init__(self, cause: str, code: int) -> None:
        super().__init__(cause)
        self.exit_code = code


class Agent:
    """One rank's launcher."""

    def __init__(self, settings: TrainSettings, runtime: Runtime, network: Network, timings: Timings) -> None:
        self.settings, self.runtime, self.network, self.timings = settings, runtime, network, timings
        self.rank = settings.completion_index
        self.incarnation = os.urandom(16).hex()
        self.output = Output(settings.layout.output)
        self.follower = Follower(self._start, self.rank, timings.orphan)
        self.server: Server | None = None
        self.leader: Leader | None = None
        self.link: Link | None = None
        self._address = ""
        self._finder: Finder | None = None
        self._probe = Probe(settings.job_path)
        self._forks: children.ForkServer | None = None
        self._staged: Staged | None = None
        self._print: dict[str, Any] | None = None
        self._longest: dict[str, float] = {}
        self._leaving: Failure | None = None
        self._gone = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._signal: int | None = None
        self._lease: LauncherError | None = None
        self._round = self._reaped = self._said = time.monotonic()
        """When the main thread last went round."""

    def run(self) -> int:
        """0, or the exit code of the cause, which is then logged and in the termination message."""
        begin(f"rank {self.rank}", self.settings.log_format)
        with self._signals():
            try:
                self.runtime.check(self.settings)
                self._script()
            except LauncherError as caught:
                error = caught
            except Exception as caught:
                log.exception("a fault of the launcher itself")
                error = UnfitError(f"a fault of the launcher itself: {type(caught).__name__}: {caught}")
            else:
                self._leave(None)
                log.info("done")
                return 0
            self._leave(error)
        log.error("ends with exit code %d: %s", error.exit_code, error)
        write_termination_message(self.settings.termination_log, str(error))
        return error.exit_code

    # What the main thread does.

    def _script(self) -> None:
        s, t = self.settings, self.timings
        self._address = self.follower.address = advertised(self.network, s.nic)
        self.server = Server(
            self.network, s.peer_port, pages(self._stuck, self._probe, t, lambda: self.leader)
        )
        threading.Thread(target=self._guard, name="guard", daemon=True).start()
        if self.rank == 0:
            self.leader = Leader(
                s,
                self.runtime,
                self.network,
                t,
                incarnation=self.incarnation,
                address=self._address,
                pause=self.pause,
                wake=self.wake,
            )
            self.server.hub = self.leader.hub
            self.leader.open(self._lease_lost)
        else:
            self._look_whether_over("complete")
            self._finder = Finder(s, self.network)
            self.link = Link(
                self.network,
                s.peer_port,
                t,
                locate=self._finder.locate,
                token=self._finder.credential,
                tell=self._tell,
                wake=self.wake,
            )
            self.link.start()
        self._load()
        manifest = await_manifest(s, self.pause, timings=t)
        with files.storage(s.layout.job):
            staged = stage(s, self.rank, manifest, find_program(s), lambda: self.pause(0))
        spec = self.runtime.conversion(s, self.rank, staged.data_dir, staged.program_dir)
        convert(spec, self.pause, self.wake, t)
        self._await_loaded()
        self._staged = staged
        self._print = fingerprint(s, self._staged.program_sha256)
        self.follower.staged = True
        if self.leader is not None:
            self.leader.begin(self._print)
        while True:
            order = self._step()
            if order is not None and order.do == "end" and not self.follower.running:
                if order.cause is not None:
                    raise EndedError(order.cause, order.code)
                return
            self.pause(t.calm if self.follower.phase == "training" else t.poll)

    def _step(self) -> Order | None:
        now = time.monotonic()
        if self.leader is not None:
            order: Order | None = self.leader.step(self._state(), now)
            heard = now
        else:
            assert self.link is not None  # noqa: S101 - _script() made one of both
            order, heard = self.link.order, self.link.heard
            self._check_link(self.link, now)
        before = self.follower.told
        self.follower.step(order, heard, now)
        if self.link is not None and self.follower.told != before:
            self.link.news()
        if self.follower.phase == "idle" and self._forks is not None and not self._forks.alive:
            self._load()
        if self.leader is not None:
            order = self.leader.step(self._state(), now)
        return order

    def _check_link(self, link: Link, now: float) -> None:
        """Raises when this rank cannot hope for rank 0 any more, or is not the pod that counts."""
        if link.refused is not None:
            twin, since = link.refused
            if twin or now - since >= self.timings.twin:
                raise TwinError(f"{link.trouble}. This pod ends; it fails nothing.")
        silent = now - link.heard
        if silent < self.timings.silence or now - self._said < self.timings.silence:
            return
        self._said = now
        self._look_whether_over("complete", "failed")
        log.info("waiting for rank 0, for %.0f s now: %s", silent, link.trouble)
        if silent >= self.settings.rendezvous_seconds:
            raise DeadlineError(
                f"rank 0 was not there for {silent:.0f} s (rendezvousSeconds is "
                f"{self.settings.rendezvous_seconds}): {link.trouble}. See why its pod does not run: "
                "`python -m launcher status`, or kubectl describe pod."
            )

    def _look_whether_over(self, *states: str) -> None:
        """Ends this rank as run.json says, when rank 0 has ended and this rank did not hear of it.

        A complete run is complete for every pod of it. A failed one only for who worked under the same lock:
        a later start of the same run tries again.
        """
        try:
            told = read_run(self.output) or {}
        except files.UnreadableError:  # rank 0 judges it
            return
        state = told.get("state")
        if told.get("runId") != self.settings.run_id or state not in states:
            return
        if state == "complete" and self.runtime.complete(self.output.root, self.settings):
            raise EndedError("the run is complete", 0)
        if (
            state == "failed"
            and self.link is not None
            and self.link.token == credential(self.settings, str(told.get("holder")))
        ):
            raise EndedError(str(told.get("cause")), int(told.get("exitCode") or EXIT_GANG))

    def _start(self, order: Order) -> Crew:
        """This rank's children of one attempt."""
        assert self._staged is not None  # noqa: S101 - the follower starts nothing before
        make_room(self.output, self.rank, order.attempt)
        # That may have taken long: what was ordered then may not be started now.
        if self.leader is not None:
            self.leader.lock.check()
        elif self.link is not None and time.monotonic() - self.link.heard >= self.timings.orphan:
            raise UnfitError(f"attempt {order.attempt} was not started: rank 0 was not heard meanwhile")
        gang = Gang(
            rank=self.rank,
            trainers=self.settings.trainers,
            hosts=order.addresses,
            settings=self.settings,
            data_dir=self._staged.data_dir,
            program_dir=self._staged.program_dir,
            output_dir=self.output.root,
            work_dir=self.settings.work_dir,
            attempt=order.attempt,
            resume=order.resume,
        )
        return Crew(
            self.runtime,
            gang,
            network=self.network,
            timings=self.timings,
            wake=self.wake,
            longest=self._longest,
            forks=self._forks,
        )

    def _load(self) -> None:
        """Has Paddle loaded, now and once, while others are waited for: it is most of an attempt's start."""
        spec = self.runtime.fork_server(self.settings)
        try:
            self._forks = None if spec is None else children.ForkServer(spec)
        except (LauncherError, OSError) as error:  # without it only takes longer
            self._forks = None
            log.warning("each process loads Paddle for itself: %s", error)

    def _await_loaded(self) -> None:
        """This rank can start at once from here on: an order that comes earlier would have to load twice."""
        deadline = time.monotonic() + self.timings.ready
        forks = self._forks
        while forks is not None and forks.alive and not forks.ready() and time.monotonic() < deadline:
            self.pause(self.timings.poll)

    def _state(self) -> State:
        s, (phase, attempt, failure) = self.settings, self.follower.told
        phase = "leaving" if self._gone else phase
        return State(
            self.rank, self.incarnation, phase, attempt, self._leaving or failure,
            self._address, s.pod_name, s.node_name, self._print, progress_of(s) if attempt >= 0 else {},
            self._probe.silence(self.timings.storage_late),
        )  # fmt: skip

    def pause(self, seconds: float) -> None:
        """Goes round: waits for so long or until something happens. Raises when this launcher is to end."""
        now = self._round = time.monotonic()
        if now - self._reaped > 1:
            self._reaped = now
            children.reap_orphans(children.watched())
        if self._lease is not None:
            raise self._lease
        if self._signal is not None and self._leaving is None:
            raise StoppedError(f"told to stop ({signal.Signals(self._signal).name})")
        if self._leaving is None:
            self._probe.check(self.timings.storage)
        with contextlib.suppress(Empty):
            if seconds > 0:
                self._wakes.get(timeout=seconds)
            while True:
                self._wakes.get_nowait()

    def _leave(self, error: LauncherError | None) -> None:
        """The way out: children first, then the others are told, then the books and the lock."""
        told = error if not isinstance(error, EndedError) else None
        if told is not None:
            log.error("stopping: %s", told)
            self._leaving = Failure.of(told, time.monotonic(), self.rank)
            if self.leader is not None:
                self.leader.announce(told)
        self._await_children()
        if self._forks is not None:
            self._forks.end()
        self._gone = True
        if self.leader is not None:
            self.leader.farewell(told, self._go_round)
        elif self.link is not None:
            self.link.close(self.timings.copies)
        if self.follower.crew is not None and isinstance(self.follower.crew, Crew):
            self.follower.crew.join(self.timings.copies)
        if self._finder is not None:
            self._finder.close()
        if self.server is not None:
            self.server.close()

    def _await_children(self) -> None:
        deadline = time.monotonic() + self.timings.stop + 5
        while True:
            now = self._round = time.monotonic()
            try:
                self.follower.step(None, now, now)
            except LauncherError as error:  # children that cannot be killed: the way out goes on without them
                log.error("%s", error)
            if not self.follower.running or now >= deadline:
                children.kill_all()
                return
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=self.timings.poll)

    def _go_round(self) -> float:
        """Notes that the main thread goes round, and gives when."""
        self._round = time.monotonic()
        return self._round

    # What other threads do.

    def wake(self) -> None:
        """Has the main thread go round now."""
        self._wakes.put(None)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and its like only leave a note; the main thread acts on it."""

        def stop(signum: int, _frame: object) -> None:
            self._signal = signum
            self._wakes.put(None)  # a SimpleQueue may be used in a signal handler

        before = {signum: signal.signal(signum, stop) for signum in _SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _lease_lost(self, error: LauncherError) -> None:
        """From the lock's thread: nothing may be written any more, whatever the main thread is doing."""
        self._lease = error
        children.kill_all()
        if self.leader is not None:
            self.leader.leave(error)
        self.wake()

    def _guard(self) -> None:
        """Touches no storage. Children never outlive the contact to rank 0, nor a main thread that is
        stuck."""
        t = self.timings
        while True:
            time.sleep(0.5)
            now = time.monotonic()
            stuck = self._stuck()
            if self.link is not None and now - self.link.heard >= t.orphan + t.stop + 2:
                children.kill_all()
            if stuck >= t.stuck or (self._lease is not None and stuck >= t.stop):
                children.kill_all()
                if self.leader is not None:
                    self.leader.hub.shut()
            if stuck >= 2 * t.stuck:
                text = f"the launcher was stuck for {stuck:.0f} s, most likely in a volume that hangs"
                write_termination_message(self.settings.termination_log, text)
                os._exit(EXIT_UNFIT)

    def _tell(self) -> State | None:
        """For the link's thread: a launcher whose main thread is stuck says nothing."""
        return None if self._stuck() >= self.timings.stuck else self._state()

    def _stuck(self) -> float:
        """Seconds since the main thread went round."""
        return time.monotonic() - self._round
