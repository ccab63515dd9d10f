"""`train`: one rank's launcher from its start to its exit code.

    find the peers' names → channel → stage → (rank 0: lock, adopt an output) → plan → pservers → go →
    trainer → finish → (rank 0: picture, export) → end

The channel to rank 0 opens first, so that whatever goes wrong later on any rank ends all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from queue import Empty
from typing import Any

from launcher import files, runtimes
from launcher.errors import DeadlineError, GangError, LauncherError, PeerError, StoppedError
from launcher.gang.books import Books
from launcher.gang.children import reap_orphans
from launcher.gang.ending import write_termination_message
from launcher.gang.events import Event, Events
from launcher.gang.exporting import Exporter
from launcher.gang.lock import Holder, LockLostError, RunLock, holder_text
from launcher.gang.log import begin, log
from launcher.gang.manifest import await_manifest
from launcher.gang.members import Member
from launcher.gang.network import Network, advertised
from launcher.gang.output import adopt, fingerprint, move_logs
from launcher.gang.peers import Ending, Hub, Spoke
from launcher.gang.rendezvous import await_names, check_fingerprints, gather, peer_names
from launcher.gang.stage import Staged, find_program, stage
from launcher.gang.supervise import Supervisor
from launcher.gang.timings import Timings
from launcher.gang.wire import HubWire, SpokeWire
from launcher.layout import Output
from launcher.runtimes.base import Gang, Runtime
from launcher.settings import TrainSettings

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def train(settings: TrainSettings) -> int:
    """The exit code of this rank. Raises `SettingsError` before anything is made."""
    return Agent(settings, runtimes.load(settings.runtime), Network(), Timings()).run()


class Agent:
    """One rank's launcher."""

    def __init__(self, settings: TrainSettings, runtime: Runtime, network: Network, timings: Timings) -> None:
        self.settings, self.runtime, self.network, self.timings = settings, runtime, network, timings
        self.events: Events = Events()
        self.output = Output(settings.layout.output)
        self.rank = settings.completion_index
        self.peers: Hub | Spoke | None = None
        self.hub: Hub | None = None
        self.supervisor: Supervisor | None = None
        self.lock: RunLock | None = None
        self.books: Books | None = None
        self.exporter: Exporter | None = None
        self._ending = False
        self._lock_lost = False
        self._reaped = 0.0

    def run(self) -> int:
        """0, or the exit code of the cause, which is then logged and in the termination message."""
        begin(f"rank {self.rank}")
        with self._signals():
            at = 0.0
            try:
                self.runtime.check(self.settings)
                with files.storage(self.settings.layout.job):
                    self._script()
            except LauncherError as caught:
                error, at = caught, time.monotonic()
            except Exception as caught:
                log.exception("a fault of the launcher itself")
                error, at = GangError(f"a fault of the launcher itself: {type(caught).__name__}: {caught}"), 0
            else:
                self._close()
                log.info("done")
                return 0
            ending = self._end_badly(error, at or time.monotonic())
        log.error("ends with exit code %d: %s", ending.exit_code, ending.cause)
        write_termination_message(self.settings.termination_log, ending.cause or "")
        return ending.exit_code

    def _end_badly(self, error: LauncherError, at: float) -> Ending:
        self._ending = True
        log.error(
            "%s", "stopping: another rank gave up" if isinstance(error, PeerError) else f"stopping: {error}"
        )
        if self.peers is not None:
            self.peers.halt(error, at)
        if self.supervisor is not None:
            self.supervisor.stop()
        ending = Ending(str(error), error.exit_code)
        if self.peers is not None:
            ending = self.peers.agree(error, self._take)
        if self.books is not None and not self._lock_lost:
            try:
                stopped = ending.exit_code == StoppedError.exit_code
                self.books.close("failed", f"stopped: {ending.cause}" if stopped else ending.cause)
            except (LauncherError, OSError) as failed:
                log.warning("cannot write how the run ended: %s", failed)
        self._close()
        return ending

    def _close(self) -> None:
        if self.lock is not None:
            self.lock.release()
        if self.peers is not None:
            self.peers.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and its like only put an event; the main thread acts on it."""

        def stop(signum: int, _frame: object) -> None:
            self.events.put(Event("stop", body={"signum": signum}))

        before = {signum: signal.signal(signum, stop) for signum in _SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def pause(self, seconds: float) -> None:
        """Handles events for so long. Raises when the gang is over."""
        deadline = time.monotonic() + seconds
        while True:
            self._take(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline and self.events.empty():
                return

    def _take(self, seconds: float) -> None:
        """Handles at most one event; while ending, what comes is noted and raises nothing."""
        now = time.monotonic()
        if now - self._reaped > 1:
            self._reaped = now
            reap_orphans(self._pids())
        try:
            event = self.events.get(timeout=seconds) if seconds > 0 else self.events.get_nowait()
        except Empty:
            return
        try:
            self._handle(event)
        except LauncherError as error:
            if not self._ending:
                raise
            # An own child's end, seen after another's was told, may still be the first by time.
            if event.kind == "exit" and self.peers is not None:
                self.peers.halt(error, event.at)

    def _pids(self) -> set[int]:
        """Of the children that have watchers."""
        return {pid for each in (self.supervisor, self.exporter) if each is not None for pid in each.pids()}

    def _handle(self, event: Event) -> None:
        if event.kind == "stop":
            if not self._ending:
                raise StoppedError(f"told to stop ({signal.Signals(event.body['signum']).name})")
        elif event.kind == "error":
            raise event.body["error"]
        elif event.kind == "exit":
            child = event.body["child"]
            if self.supervisor is not None and child.spec.role != "export":  # the exporter looks itself
                self.supervisor.child_ended(child)
        elif self.peers is not None:
            self.peers.handle(event)

    def _check(self) -> None:
        """For long work: handles what is there, waits for nothing."""
        while not self.events.empty():
            self._take(0)

    def _await_signal(self, name: str) -> dict[str, Any]:
        """What rank 0 decides. It has the deadlines; its silence or loss raises here."""
        assert self.peers is not None  # noqa: S101 - _open() made it
        while name not in self.peers.signals:
            self._take(self.timings.poll)
            if self.supervisor is not None:
                self.supervisor.check_early()
        return self.peers.signals[name]

    def _script(self) -> None:
        names, self.rank = peer_names(self.settings, self.pause)
        begin(f"rank {self.rank}")
        host, address = advertised(self.network, self.settings.nic, names[self.rank])
        self._open(names[0], host, address)
        assert self.peers is not None  # noqa: S101 - _open() made it
        manifest = await_manifest(self.settings, self.pause, timings=self.timings)
        program = find_program(self.settings)
        staged = stage(self.settings, self.rank, manifest, program, self._check)
        print_ = fingerprint(self.settings, staged.program_sha256)
        if self.hub is not None:
            self._adopt(print_)
        self.peers.report("staged", fingerprint=print_)
        if self.hub is not None:
            self._plan(names, print_)
        plan = self._await_signal("plan")
        if plan["complete"]:
            log.info("all %d passes are done already: nothing to start", self.settings.passes)
        else:
            self._attempt(plan, staged)
        self.peers.report("ended")
        self._finish()

    def _open(self, hub_name: str, host: str, address: str) -> None:
        s = self.settings
        if self.rank == 0:
            wire = HubWire(
                self.network,
                s.peer_port,
                run_id=s.run_id,
                trainers=s.trainers,
                events=self.events,
                timings=self.timings,
            )
            members = [Member(rank) for rank in range(s.trainers)]
            own = members[0]
            own.phase, own.host, own.address, own.pod, own.node = (
                "staging",
                host,
                address,
                s.pod_name,
                s.node_name,
            )
            wire.start()
            self.peers = self.hub = Hub(wire, members, self.timings)
            return
        hello = {
            "t": "hello",
            "run": s.run_id,
            "rank": self.rank,
            "host": host,
            "address": address,
            "pod": s.pod_name,
            "node": s.node_name,
        }
        spoke = SpokeWire(
            self.network,
            hub_name,
            s.peer_port,
            hello=hello,
            events=self.events,
            timings=self.timings,
            seconds=s.rendezvous_seconds,
            beat=lambda: {"t": "beat", "progress": self._progress()},
        )
        self.peers = Spoke(spoke, self.rank, self.timings)
        spoke.start()

    def _progress(self) -> dict[str, Any]:
        return files.read_json(self.settings.work.progress) or {}

    def _adopt(self, print_: dict[str, Any]) -> None:
        """Rank 0: takes the lock and the output that fits this fingerprint."""
        assert self.hub is not None  # noqa: S101 - only rank 0 comes here
        s = self.settings
        holder = Holder(s.run_id, s.namespace, s.release, s.job_name, s.pod_name, os.urandom(8).hex())
        lock = RunLock(self.output.lock, holder, self.timings, pause=self.pause)
        lock.acquire()
        self.lock = lock
        adopted = adopt(s, print_, lock, holder)
        lock.keep(self._lock_failed)
        self.attempt = adopted.attempt
        self.complete = self.runtime.complete(self.output.root, s.passes)
        self.books = Books(
            self.output,
            s,
            fingerprint=print_,
            attempt=adopted.attempt,
            earlier=adopted.earlier,
            members=self.hub.members,
            progress=self._progress,
            timings=self.timings,
        )
        self.books.open(self.complete)
        if s.export_to:
            self.exporter = Exporter(s, self.timings, self.events, self._take)
            if not self.complete:
                self.exporter.reserve(self.books.output_id)

    def _lock_failed(self, error: LauncherError) -> None:
        """From the lock's thread."""
        self._lock_lost = isinstance(error, LockLostError)
        if self.books is not None:
            self.books.abandon()
        self.events.put(Event("error", body={"error": error}))

    def _plan(self, names: list[str], print_: dict[str, Any]) -> None:
        """Rank 0: waits for all ranks, then says how this attempt goes."""
        assert self.hub is not None  # noqa: S101 - only rank 0 comes here
        s = self.settings
        gather(self.hub, names, s, self.network, timings=self.timings, pause=self._take)
        check_fingerprints(self.hub.members, print_)
        self.hub.plan(
            {
                "attempt": self.attempt,
                "hosts": [member.host for member in self.hub.members],
                "addresses": [member.address for member in self.hub.members],
                "resume": self.runtime.newest_pass(self.output.root),
                "complete": self.complete,
            }
        )

    def _attempt(self, plan: dict[str, Any], staged: Staged) -> None:
        assert self.peers is not None  # noqa: S101 - _open() made it
        s = self.settings
        gang = Gang(
            rank=self.rank,
            trainers=s.trainers,
            hosts=tuple(plan["hosts"]),
            settings=s,
            data_dir=staged.data_dir,
            program_dir=staged.program_dir,
            output_dir=self.output.root,
            work_dir=s.work_dir,
            attempt=plan["attempt"],
            resume_pass=plan["resume"],
        )
        if gang.resume_pass is not None:
            log.info("attempt %d goes on behind pass %d", gang.attempt, gang.resume_pass)
        self._state("starting")
        self.peers.report("starting")
        await_names(self.network, plan["hosts"], plan["addresses"], self.timings, self.pause)
        self._check_lock()
        move_logs(self.output, self.rank, gang.attempt)
        self.supervisor = Supervisor(
            self.runtime,
            gang,
            network=self.network,
            events=self.events,
            timings=self.timings,
            pause=self.pause,
        )
        self.supervisor.start_servers()
        self.peers.report("ready")
        self._await_signal("go")
        self.supervisor.start_training()
        self._state("training")
        self.peers.report("training")
        while not self.supervisor.trainer_done:
            self._take(self.timings.poll)
            self.supervisor.check_early()
        self.pause(0)
        self.peers.report("done")
        self._await_signal("finish")
        self._state("finishing")
        self.supervisor.finish()

    def _state(self, state: str) -> None:
        if self.books is not None:
            self.books.state = state

    def _check_lock(self) -> None:
        """Every rank, before it writes to the output."""
        current = files.read_json(self.output.lock)
        if current is None or current.get("runId") != self.settings.run_id:
            raise LockLostError(
                f"{self.output.lock} is not this run's ({self.settings.run_id}) but that of "
                f"{holder_text(self.output.lock)}: not writing to it"
            )

    def _finish(self) -> None:
        """All children have ended here; rank 0 waits for the others and closes the books."""
        if self.hub is None:
            t = self.timings
            deadline = time.monotonic() + t.servers_end + t.stop + 2 * t.farewell + t.curve
            if self.settings.export_to:
                deadline += t.export + t.stop
            assert self.peers is not None  # noqa: S101 - _open() made it
            while "end" not in self.peers.signals:
                self._take(self.timings.poll)
                if time.monotonic() >= deadline:
                    raise DeadlineError(
                        "rank 0 did not say that the run is over, though all trainers are done"
                    )
            return
        deadline = time.monotonic() + self.timings.servers_end + self.timings.stop + self.timings.farewell
        while not self.hub.everybody_ended():
            self._take(self.timings.poll)
            if time.monotonic() >= deadline:
                late = ", ".join(m.label for m in self.hub.members if not m.reached("ended"))
                raise DeadlineError(f"all trainers are done, but {late} did not end its pservers")
        assert self.books is not None  # noqa: S101 - _adopt() made it
        self.books.draw(self.timings.curve)
        if self.exporter is not None:
            self.books.trained()
            self._state("exporting")
            self.books.exported = self.exporter.copy(self.books.output_id)
        self.books.close("complete", None)
        self.hub.bid_farewell()
