"""The agent: supervises one rank (one pod of the training Job) from its start to its exit code.

    start HTTP server → (rank 0: acquire the output lease; others: connect to rank 0) → wait for data →
    copy the input to the pod's disk → (rank 0: open output/) → execute the coordinator's orders until the end

Only the main thread decides and acts; other threads record events and wake it. There are two exceptions: the watchdog
thread and the thread of the output lease may kill the processes themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from launcher import runtimes
from launcher.errors import EXIT_UNFIT, LauncherError, StoppedError, StorageError, UnfitError
from launcher.io import files
from launcher.io.stop_signals import handle_signals, stopped_by
from launcher.log import log, start_logging
from launcher.paths import OutputPaths
from launcher.reporting.failure_messages import write_termination_message
from launcher.runtimes.runtime_protocol import RankAttempt, Runtime
from launcher.schema import TrainerProgress, to_json
from launcher.settings import TrainSettings
from launcher.supervisor import child_processes
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.coordinator.run_writer import render_metrics
from launcher.supervisor.helper_processes import convert_shard
from launcher.supervisor.node_check import NodeCheck
from launcher.supervisor.peers.addresses import PodNetwork, find_advertised_address
from launcher.supervisor.peers.coordinator_link import CoordinatorLink, OrderSource, RunEndedError
from launcher.supervisor.peers.messages import SIGTERM_CAUSE, Action, Failure, MemberState, Phase, Plan
from launcher.supervisor.peers.peer_server import PeerServer, build_store_prefix
from launcher.supervisor.process_group import OrderExecutor, ProcessGroup
from launcher.supervisor.progress import read_progress
from launcher.supervisor.shared_storage.input_staging import (
    describe_overfull_work_dir,
    find_program,
    stage_inputs,
)
from launcher.supervisor.shared_storage.output_folder import archive_logs, run_fingerprint
from launcher.supervisor.shared_storage.script_files import keep_script_files
from launcher.supervisor.shared_storage.wait_for_data import wait_for_manifest
from launcher.supervisor.timings import Timings

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

SPARE_SECONDS = 5.0  # for a busy node, and for the state and the order between this rank and rank 0


class StopRequest:
    """Records stop signals and decides when the agent obeys them.

    After the first SIGTERM the agent does not exit at once, because the coordinator may first let all ranks save a
    checkpoint. The agent continues as long as three things are true: its trainer trains, the coordinator's order is
    still `train`, and the pod's grace period leaves time to stop the processes. The agent obeys every other signal, and
    a second SIGTERM, at once.
    """

    def __init__(self, grace: float, exit_seconds: float) -> None:
        """Create the object; no signal was received yet.

        Args:
            grace: seconds from SIGTERM until Kubernetes kills the pod.
            exit_seconds: seconds that the launcher needs to stop its processes and to copy their logs.
        """
        self._stay = grace - exit_seconds - SPARE_SECONDS
        self._signals: list[int] = []
        self._leave_by = 0.0

    def record(self, number: int) -> None:
        """Record a received signal; may be called in a signal handler."""
        if not self._signals:
            self._leave_by = time.monotonic() + self._stay
        self._signals.append(number)

    def seconds_left(self) -> float | None:
        """Return in how many seconds, at the latest, the agent stops its processes because of the received signal.

        None if no signal was received, or if the grace period is too short to wait for a checkpoint.
        """
        if not self._signals or self._stay <= 0:
            return None
        return max(0.0, self._leave_by - time.monotonic())

    def stop_seconds(self) -> float:
        """Return for how many more seconds a user's script may react to SIGTERM.

        0 if no signal was received, if the first signal was not SIGTERM, after a second signal, and if the grace period
        is too short.
        """
        return (self.seconds_left() or 0.0) if self._signals == [signal.SIGTERM] else 0.0

    def check(self, phase: Phase, order: Plan | None) -> None:
        """Raise `StoppedError` if the agent must exit now because of a signal.

        `phase` is the phase of this rank, and `order` is the coordinator's newest order (None before the first order).
        """
        if not self._signals:
            return
        may_stay = self._signals == [signal.SIGTERM] and time.monotonic() < self._leave_by
        if may_stay and phase == Phase.TRAINING and order is not None and order.do == Action.TRAIN:
            return
        cause = order.cause_text if order is not None else ""
        raise stopped_by(self._signals[0], cause.partition(SIGTERM_CAUSE)[2])


WATCHDOG_SECONDS = 0.5  # between two checks

PROBE_SECONDS = 5.0  # between a response of the storage and the next request


class StorageProbe:
    """Requests the storage's status every few seconds in a thread of its own, which a hung storage may block.

    An error counts as a response: the code that uses the storage reports and retries it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: float | None = None
        """Monotonic time at which the pending request was sent; None if no request is pending."""
        threading.Thread(target=self._run, name="storage probe", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._asked = time.monotonic()
            with contextlib.suppress(OSError):
                os.statvfs(self._folder)  # NFS and FUSE send a request to the server each time
            self._asked = None
            time.sleep(PROBE_SECONDS)

    def silence(self, least: float = 0.0) -> float:
        """Return for how many seconds the pending request has had no response; 0 if that is less than `least`."""
        asked = self._asked
        seconds = 0.0 if asked is None else round(time.monotonic() - asked, 1)
        return seconds if seconds >= least else 0.0

    def check(self, limit: float) -> None:
        """Raise `UnfitError` if the storage has not responded for `limit` seconds."""
        if silence := self.silence(limit):
            raise UnfitError(
                f"the storage {self._folder} gave no answer to this pod for {silence:.0f} s. The pod exits, "
                "and Kubernetes replaces it. Fix: see whether the volume is mounted on its node, and whether "
                "the volume's server responds there"
            )


class ProcessWatchdog:
    """Kills this rank's processes when the agent's main thread is stuck or rank 0 is unreachable.

    Attributes:
        is_lease_lost: whether this pod lost the output lease. If so, the watchdog kills the processes after the main
            thread was stuck for `Timings.stop` seconds, instead of `Timings.stuck`.
    """

    def __init__(
        self,
        settings: TrainSettings,
        timings: Timings,
        probe: StorageProbe,
        guard: child_processes.ProcessGuard | None,
        read_orders: Callable[[], OrderSource],
    ) -> None:
        """Create the watchdog; it checks nothing before `start`.

        Args:
            guard: the process that kills this rank's processes if the whole launcher is frozen; None: there is none.
            read_orders: returns the current source of this rank's orders. If the coordinator has not confirmed these
                orders for too long, the watchdog kills the processes. If this pod is the coordinator's and the main
                thread is stuck, the watchdog lets the source reject the states of all ranks.
        """
        self._settings, self._timings, self._probe, self._guard = settings, timings, probe, guard
        self._read_orders = read_orders
        self.is_lease_lost = False
        self._last_turn = time.monotonic()

    def start(self) -> None:
        """Start the watchdog thread."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def record_turn(self) -> float:
        """Record that the main thread runs; return the current monotonic time in seconds."""
        self._last_turn = time.monotonic()
        return self._last_turn

    def seconds_stuck(self) -> float:
        """Return the seconds since the main thread last called `record_turn`."""
        return time.monotonic() - self._last_turn

    def serve_healthz(self) -> tuple[int, str, bytes]:
        """Return the page of the liveness probe (HTTP status, content type, body).

        The status is 503 if the main thread has been stuck, or the storage has not responded, for too long; otherwise
        it is 200.
        """
        stuck, silence = self.seconds_stuck(), self._probe.silence()
        text = f"main thread last ran {stuck:.1f} s ago; storage has not answered for {silence} s\n"
        healthy = stuck < 2 * self._timings.stuck and silence < self._timings.storage
        return 200 if healthy else 503, "text/plain", text.encode()

    def _run(self) -> None:
        while True:
            time.sleep(WATCHDOG_SECONDS)
            now = time.monotonic()
            if self._guard is not None:
                silence = max(0.0, now - self._read_orders().heard)
                self._guard.send(self._timings.orphan + self._timings.stop + 2 - silence)
            self._check_limits(now)

    def _check_limits(self, now: float) -> None:
        """Kill the processes if rank 0 has been silent, or the main thread stuck, for too long.

        `now` is the monotonic time. After the loss of the output lease, a stuck main thread is given less time. While
        the main thread is stuck, a coordinator also rejects the states of all ranks. If the main thread is still stuck
        some time after the kill, exit the launcher.
        """
        t, stuck = self._timings, self.seconds_stuck()
        if now - self._read_orders().heard >= t.orphan + t.stop + 2:
            child_processes.kill_all_children()
        if stuck >= t.stuck or (self.is_lease_lost and stuck >= t.stop):
            child_processes.kill_all_children()
            self._read_orders().reject_states()
        if stuck >= 2 * t.stuck:
            text = (
                f"the launcher's main thread did not run for {stuck:.0f} s, most likely because a volume "
                "does not respond. This pod exits, and Kubernetes replaces it. Fix: check that the volume is "
                f"mounted on node {self._settings.node_name} and that its server responds."
            )
            write_termination_message(self._settings.termination_log, text)
            os._exit(EXIT_UNFIT)


def run_rank(settings: TrainSettings) -> int:
    """Run this pod's rank of the training and return its exit code. No `LauncherError` is raised."""
    return Agent(settings, runtimes.load_runtime(settings.runtime), PodNetwork(), Timings()).run()


def _catch_error(work: Callable[[], None]) -> LauncherError | None:
    """Call `work`, and return the error that it raises; None if it raises no error.

    An unexpected exception is logged with its stack trace, and returned as an `UnfitError`.
    """
    try:
        work()
    except LauncherError as error:
        return error
    except Exception as error:
        log.exception("internal error of the launcher; the stack trace follows")
        fix = "Fix: if it happens again, report it as a bug, with the stack trace in this pod's log"
        return UnfitError(f"internal error of the launcher: {error!r}. {fix}")
    return None


class Agent:
    """The main loop of the launcher in one training pod; on rank 0 it also drives the coordinator."""

    def __init__(
        self, settings: TrainSettings, runtime: Runtime, network: PodNetwork, timings: Timings
    ) -> None:
        self.settings, self.runtime, self.network, self.timings = settings, runtime, network, timings
        # This comes first, because the guard must be forked before any thread starts. The other ranks rely on the
        # guard: they assume that the processes of a lost rank are dead after `Timings.life`.
        guard = child_processes.ProcessGuard() if settings.is_elastic else None
        self.rank = settings.completion_index
        self.incarnation = os.urandom(16).hex()
        """Random identifier of this pod. An earlier pod with the same rank had another identifier."""
        self.output = OutputPaths(settings.layout.output)
        self.executor = OrderExecutor(self._start_processes, self.rank, timings.orphan)
        self.server: PeerServer | None = None
        self.orders = OrderSource()
        """On rank 0 the coordinator; on every other rank the connection to the coordinator."""
        self._probe = StorageProbe(settings.job_path)
        self._forks: child_processes.ForkServer | None = None
        self._fingerprint: dict[str, Any] | None = None
        self._longest_stays: dict[str, float] = {}
        self._exit_failure: Failure | None = None
        """The error because of which this launcher exits; None while it runs, and if it exits because the run is
        over."""
        self._is_leaving = False
        """Whether all processes have been stopped because this launcher exits."""
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._stop_request = StopRequest(settings.grace_seconds, timings.stop + timings.copies)
        self._watchdog = ProcessWatchdog(settings, timings, self._probe, guard, lambda: self.orders)
        self._last_reaping = time.monotonic()
        self._node_check = NodeCheck(settings.work_dir, network)
        self._yielded = 0.0
        """Monotonic time at which this pod last found that another pod holds the output lease. After this pod has
        offered the lease to others, a time in the future, so that `Timings.offer` seconds pass before it tries to take
        the lease again."""
        self._offers, self._waits_since = 0, 0.0
        """How often this pod, as coordinator, has offered the output lease to other pods since training last began; and
        the monotonic time since which it has waited for ranks."""
        self._staged_at: float | None = None
        """Unix time at which the inputs were copied to the pod's own disk; None before that."""

    def run(self) -> int:
        """Run this rank until the run is over or fails; return the exit code, and report the cause of a failure."""
        start_logging(f"rank {self.rank}", self.settings.log_format)
        with handle_signals(self._record_signal, _SIGNALS):
            error = _catch_error(self._train)
            if isinstance(error, StoppedError):
                error = StoppedError(f"{error}{describe_overfull_work_dir(self.settings)}")
            error = _catch_error(lambda: self._shut_down(error)) or error
        if error is None:
            log.info("done")
            return 0
        log.error("this launcher exits with code %d: %s", error.exit_code, error)
        write_termination_message(self.settings.termination_log, str(error))
        return error.exit_code

    # The main thread.

    def _train(self) -> None:
        """Run this rank from the start of its HTTP server until the run is complete.

        Raises:
            LauncherError: the run failed, or this launcher must exit.
        """
        s, t = self.settings, self.timings
        self.runtime.check(s)
        self.executor.address = find_advertised_address(self.network, s.nic)
        pages = {
            "/healthz": self._watchdog.serve_healthz,
            "/status": self._serve_status,
            "/metrics": self._serve_metrics,
        }
        self.server = PeerServer(self.network, s.peer_port, pages)
        self._watchdog.start()
        if self.rank != 0 or not self._start_coordinator():
            self._start_link()
        self._start_fork_server()
        manifest = wait_for_manifest(s, self.pause, timings=t) if s.has_data else None
        with files.storage_errors(s.layout.job):
            program = stage_inputs(s, manifest, find_program(s), lambda: self.pause(0))
        spec = self.runtime.conversion(s, self.rank)
        convert_shard(spec, s.work, t, self.pause)
        self._await_fork_server()
        self._fingerprint = run_fingerprint(s, program)
        self.executor.staged = True
        self._staged_at = time.time()
        self.orders.start_run(self._fingerprint)
        while True:
            order = self._step()
            if order is not None and order.do == Action.END and not self.executor.running:
                if order.cause is not None:
                    raise RunEndedError(order.cause.text, order.cause.code)
                return
            if order is not None and self.incarnation in order.replaced:
                raise UnfitError(order.cause_text)
            if order is not None and order.do == Action.TRAIN:
                self._offers = 0
            if isinstance(self.orders, Coordinator) and self.orders.plan.offers_lease:
                self._offer_lease(self.orders)
            if isinstance(self.orders, CoordinatorLink) and self._is_coordinator_lost(order):
                self.orders.raise_if_run_is_over()
                if self._start_coordinator():
                    self.orders.start_run(self._fingerprint)
            self.pause(t.training_poll if self.executor.phase == Phase.TRAINING else t.poll)

    def _start_coordinator(self) -> bool:
        """Wait for the output lease and become the coordinator; return whether this pod is the coordinator now.

        In an elastic run another pod may already hold the lease and coordinate the run. Then the result is False, and
        this rank gets its orders from that pod.

        Raises:
            LauncherError: another run or pod keeps the lease, or the storage cannot be used.
        """
        assert self.server is not None  # noqa: S101 - `_train` has started it
        link, coordinator = self.orders, Coordinator(
            self.settings, self.runtime, self.network, self.timings,
            address=self.executor.address, pause=self.pause, wake=self.wake, offers=self._offers,
        )  # fmt: skip
        self.orders = coordinator
        self.server.membership, self.server.trainer_store = coordinator.membership, coordinator.trainer_store
        if not coordinator.acquire_output(self._lose_lease):
            self.orders = link
            self.server.membership = self.server.trainer_store = None
            self._yielded = time.monotonic()
            return False
        if isinstance(link, CoordinatorLink):
            log.info("rank %d coordinates the run from now on", self.rank)
            coordinator.succeeds = link.order is not None
            if self._offers:
                coordinator.waits_since = self._waits_since
            link.close(0.0)
        return True

    def _offer_lease(self, coordinator: Coordinator) -> None:
        """Release the output lease, so that another rank can coordinate the run.

        This rank may take the lease again `Timings.offer` seconds later.

        Raises:
            LauncherError: the lease was lost, the run is complete, or run.json cannot be read.
        """
        self._offers, self._waits_since = self._offers + 1, coordinator.plan.since
        coordinator.leave_run(self._watchdog.record_turn)
        if self._watchdog.is_lease_lost:
            coordinator.check_lease()
        assert self.server is not None  # noqa: S101 - `_train` has started it
        self.server.membership = self.server.trainer_store = None
        self._start_link()
        self._yielded = time.monotonic() + self.timings.offer - self.timings.silence

    def _is_coordinator_lost(self, order: Plan | None) -> bool:
        """Return whether the coordinator has been silent for so long that this rank may try to take the output lease.

        False if the run is not elastic, or if this rank still runs processes.
        """
        if not self.settings.is_elastic or self.executor.running:
            return False
        has_left = order is not None and order.do == Action.STOP
        seconds = self.timings.left if has_left else self.timings.silence
        return time.monotonic() - max(self.orders.heard, self._yielded) >= seconds

    def _start_link(self) -> None:
        link = CoordinatorLink(
            self.settings, self.runtime, self.network, self.timings,
            read_state=self._read_state_to_send, wake=self.wake,
        )  # fmt: skip
        link.raise_if_run_is_over()
        self.orders = link
        link.start()

    def _step(self) -> Plan | None:
        """Act on the newest order, and return the order that is newest afterwards; None before the first order.

        On rank 0 the coordinator decides before this rank acts, and again after this rank has acted. So there the
        returned order may be newer than the order on which this rank acted.
        """
        now = time.monotonic()
        self.orders.update(self._build_state, now)
        before = self.executor.report
        self.executor.step(self.orders.order, self.orders.heard, now)
        if self.executor.report != before:
            self.orders.send_now()
        if self.executor.phase == Phase.IDLE and self._forks is not None and not self._forks.alive:
            self._start_fork_server()
        self.orders.update(self._build_state, now)
        return self.orders.order

    def _start_processes(self, order: Plan) -> ProcessGroup:
        """Start this rank's parameter servers and trainers for the attempt of `order`; return them as a group.

        Before that, move the logs of the last attempt to a folder of their own. With `training.nodeCheck`, then also
        measure this pod's node, which takes some seconds.

        Raises:
            LauncherError: the order has expired, the output lease is lost, or a process cannot start.
        """
        archive_logs(self.output, self.rank, order.attempt)
        # The storage may have taken long for this, so the order may no longer be valid.
        self.orders.check_lease()
        if time.monotonic() - self.orders.heard >= self.timings.orphan:
            raise UnfitError(
                f"attempt {order.attempt} was not started: the storage took so long that the order to start it "
                f"expired after {self.timings.orphan:.0f} s. All ranks start the next attempt. "
                "Fix: if this happens again, check the load of the volume's server"
            )
        model = self.settings.init_model if order.init_model is None else order.init_model
        gang = RankAttempt(
            rank=order.place(self.rank) or 0,
            hosts=order.addresses,
            world=order.world or (),
            settings=replace(self.settings, init_model=model),
            attempt=order.attempt,
            resume=order.resume,
            store=build_store_prefix(self.orders.credential, order.attempt),
        )
        if self.settings.node_check and self.server is not None:
            self._node_check.run(gang, self.server, self.orders.credential)
        return ProcessGroup(
            self.runtime,
            gang,
            network=self.network,
            timings=self.timings,
            wake=self.wake,
            longest_stays=self._longest_stays,
            forks=self._forks,
        )

    def _start_fork_server(self) -> None:
        """Start the fork server, a process that loads Paddle once and then forks the pservers and trainers.

        Loading Paddle takes most of the time of a start. If the fork server does not start, this is only logged.
        """
        spec = self.runtime.fork_server(self.settings)
        try:
            self._forks = None if spec is None else child_processes.ForkServer(spec)
        except (LauncherError, OSError) as error:  # the fork server only saves time
            self._forks = None
            log.warning(
                "the fork server did not start, so each process loads Paddle itself, which takes longer, but changes "
                "nothing else: %s",
                error,
            )

    def _await_fork_server(self) -> None:
        """Wait until the fork server is ready to fork processes, for at most `Timings.ready` seconds."""
        deadline = time.monotonic() + self.timings.ready
        forks = self._forks
        while forks is not None and forks.alive and not forks.ready() and time.monotonic() < deadline:
            self.pause(self.timings.poll)

    def _build_state(self) -> MemberState:
        """Return the state of this rank (phase, failure, progress …) as the coordinator receives it."""
        s, (phase, attempt, failure), processes = self.settings, self.executor.report, self.executor.processes
        return MemberState(
            rank=self.rank,
            incarnation=self.incarnation,
            phase=Phase.LEAVING if self._is_leaving else phase,
            attempt=attempt,
            failure=self._exit_failure or failure,
            address=self.executor.address,
            pod=s.pod_name,
            node=s.node_name,
            fingerprint=self._fingerprint,
            progress=read_progress(s) if attempt >= 0 else TrainerProgress(),
            storage=self._probe.silence(self.timings.storage_late),
            leave_in=self._stop_request.seconds_left(),
            hang=processes.hang if processes is not None else None,
            ended=processes.ended if processes is not None else (),
            node_speeds=self._node_check.speeds,
            connected=processes is not None and processes.connected,
        )

    def pause(self, seconds: float) -> None:
        """Wait in the main thread for `seconds`; return earlier if another thread calls `wake`.

        With 0 seconds this does not wait, and only checks whether the launcher must exit. Each call also records for
        the watchdog that the main thread runs. About once a second a call removes exited orphaned processes from the
        process table. Before it returns, a call forgets all earlier calls of `wake`.

        Raises:
            LauncherError: this launcher must exit, because it must obey a stop signal now (`StopRequest.check`), it has
                lost the output lease, or the storage has not responded for `Timings.storage` seconds.
        """
        now = self._watchdog.record_turn()
        if now - self._last_reaping > 1:
            self._last_reaping = now
            child_processes.reap_orphans()
        self.orders.check_lease()
        if self._exit_failure is None:
            self._stop_request.check(self.executor.phase, self.orders.order)
            self._probe.check(self.timings.storage)
        with contextlib.suppress(Empty):
            if seconds > 0:
                self._wakes.get(timeout=seconds)
            while True:
                self._wakes.get_nowait()

    def _shut_down(self, error: LauncherError | None) -> None:
        """Stop this rank's processes and the fork server, then end the communication with the other ranks.

        After an `error` (None: the run is complete), rank 0 first orders the other ranks to stop. Rank 0 does not do
        this if `error` is a `RunEndedError`, because the other ranks have the order `end` already. For a user's script,
        the files of training.keepFiles are copied to the storage after its processes have stopped. Rank 0 then waits,
        for a limited time, until the other ranks have received its last order and have stopped. Then rank 0 records the
        error in run.json, unless run.json has the outcome of the run already, and releases the output lease. Every
        other rank waits, for a limited time, until rank 0 knows that this rank exits. At the end the logs of the
        processes are copied, and the HTTP server is closed.
        """
        reported = error if not isinstance(error, RunEndedError) else None
        if reported is not None:
            log.error("stopping: %s", reported)
            self._exit_failure = Failure.from_error(reported, time.monotonic(), self.rank)
            self.orders.announce_exit(reported)
        is_script = self.runtime.is_user_script and isinstance(error, StoppedError)
        self._stop_processes(is_script=is_script)
        if self._forks is not None:
            self._forks.end()
        if self.runtime.is_user_script and self._staged_at is not None and not self._watchdog.is_lease_lost:
            self._keep_script_files(self._staged_at)
        self._is_leaving = True
        seconds = self._stop_request.stop_seconds() if is_script else 0.0
        self.orders.wait_and_close(reported, self._watchdog.record_turn, seconds)
        if self.executor.processes is not None:
            self.executor.processes.join_log_followers(self.timings.copies)
        if self.server is not None:
            self.server.close()

    def _keep_script_files(self, since: float) -> None:
        """Copy the files of training.keepFiles to the storage, for at most `Timings.keep` seconds.

        After a stop signal, the time is at most the rest of the grace period and 5 seconds. Only files that were
        written after the Unix time `since` are copied.
        """
        left = self._stop_request.seconds_left()
        # `left` does not contain the time that the end of the processes may take.
        deadline = time.monotonic() + min(self.timings.keep, self.timings.keep if left is None else left + 5)

        def check() -> None:
            if self._watchdog.record_turn() > deadline:
                raise StorageError(f"the copy took longer than {self.timings.keep:.0f} s. Fix: write less")

        target = self.output.node(self.rank) / "files"
        keep_script_files(self.settings.work.program, target, since, self.settings.keep_files, check)

    def _stop_processes(self, *, is_script: bool) -> None:
        """Stop all processes of this rank and wait until they have exited, for a limited time.

        `is_script` says that a user's script must react to SIGTERM now. The script has the rest of the grace period for
        this; a second signal ends that time.
        """
        seconds = self._stop_request.stop_seconds() if is_script else 0.0
        deadline = time.monotonic() + max(self.timings.stop, seconds) + 5
        while True:
            now = self._watchdog.record_turn()
            if is_script:
                seconds = self._stop_request.stop_seconds()
            try:
                self.executor.step(None, now, now, seconds)
            except (LauncherError, OSError) as error:  # these do not keep the launcher alive
                log.error("%s", error)
            if not self.executor.running or now >= deadline:
                child_processes.kill_all_children()
                return
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=self.timings.poll)

    # Other threads.

    def wake(self) -> None:
        """End the current `pause` of the main thread at once; if there is none, end the next one.

        Any thread may call this.
        """
        self._wakes.put(None)

    def _record_signal(self, number: int) -> None:
        """Record a received stop signal, for `pause` to act on."""
        self._stop_request.record(number)
        self._wakes.put(None)  # a SimpleQueue may be used in a signal handler

    def _lose_lease(self) -> None:
        """Kill all processes, because the output lease is lost and another pod may write to the output.

        The thread of the lease calls this. Afterwards `pause` raises the cause in the main thread.
        """
        self._watchdog.is_lease_lost = True
        # Of the helpers, the report writes to output/, and the export uploads files from there.
        child_processes.kill_all_children(helpers=True)
        self.wake()

    def _serve_status(self) -> tuple[int, str, bytes]:
        """Return the page of GET /status (HTTP status, content type, body)."""
        status = self.orders.build_status()
        missing = {"error": "only the rank that holds the output lease has a status. Fix: ask its pod"}
        body = json.dumps(missing if status is None else to_json(status)).encode()
        return 404 if status is None else 200, "application/json", body

    def _serve_metrics(self) -> tuple[int, str, bytes]:
        """Return the page of GET /metrics (HTTP status, content type, body)."""
        if (status := self.orders.build_status()) is None:
            missing = b"# only the rank that holds the output lease has metrics. Fix: ask its pod\n"
            # Prometheus reads all pods of an elastic run, and a page without metrics is valid.
            return 200 if self.settings.is_elastic else 404, "text/plain; version=0.0.4", missing
        return 200, "text/plain; version=0.0.4", render_metrics(status, self.orders.rendezvous_seconds)

    def _read_state_to_send(self) -> MemberState | None:
        """Return this rank's state for the threads that send it; None while the main thread is stuck."""
        return None if self._watchdog.seconds_stuck() >= self.timings.stuck else self._build_state()
