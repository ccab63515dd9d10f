"""Start, watch and stop one rank's parameter servers (pservers) and trainers, as the coordinator orders.

`ProcessGroup` holds the processes of one attempt. `OrderExecutor` starts and stops one `ProcessGroup` after the other,
as the coordinator's orders say; coordinator/decisions.py describes the orders and the phases of a rank.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from launcher.errors import DeadlineError, GangError, LauncherError, ProcessError, UnfitError
from launcher.io import cgroup_memory, files
from launcher.log import log
from launcher.paths import Position
from launcher.reporting.failure_messages import describe_early_exit, describe_exit, last_lines, quote_log
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt, Runtime
from launcher.supervisor.child_processes import (
    ChildProcess,
    ForkServer,
    GroupTermination,
    LogFollower,
    measure_log,
)
from launcher.supervisor.peers.addresses import PodNetwork, accepts_connections, has_clients, has_connection
from launcher.supervisor.peers.messages import Action, Failure, Phase, Plan
from launcher.supervisor.progress import STATES_BEFORE_TRAINING, HangDetector, read_progress
from launcher.supervisor.timings import Timings

_TAIL = (400, 1 << 15)
"""The cause of a failure is searched in at most this many (lines, bytes) at the end of a log. The limits are this large
because a C++ stack trace may follow the cause."""


class ProcessGroup:
    """The pservers and the trainers of one rank in one attempt.

    Phases: serving → ready → training → done → ended; `stop` may be called in each of them. The methods do not wait for
    the processes: the agent calls `poll` again and again.
    """

    def __init__(
        self,
        runtime: Runtime,
        gang: RankAttempt,
        *,
        network: PodNetwork,
        timings: Timings,
        wake: Callable[[], None],
        longest_stays: dict[str, float],
        forks: ForkServer | None = None,
    ) -> None:
        """Start the pservers, and also the trainers if these wait for the pservers themselves (`trainer_waits`).

        Args:
            runtime: describes the processes.
            gang: this rank's part of the attempt: addresses, settings, checkpoint to resume from.
            wake: called in a thread when `poll` has something to do, for example after the exit of a process.
            longest_stays: state of a trainer → longest time in seconds that a trainer of this rank has spent in this
                state; the group updates it.
            forks: the fork server that creates the processes; None: they are started with subprocess.Popen.

        Raises:
            LauncherError: a port of a process is in use, or a process could not start. The processes that had started
                before were stopped.
        """
        self._runtime, self._gang, self._network = runtime, gang, network
        self._forks = forks
        self._timings, self._wake = timings, wake
        self.attempt, self.phase = gang.attempt, Phase.SERVING
        self.failure: Failure | None = None
        self.hang: Failure | None = None
        """Why this rank's trainers seem to hang; None if they do not. Only set for a user's script, whose trainers
        count as hanging only if the trainers of all ranks hang."""
        self._trainers: list[ChildProcess] = []
        self._servers: list[ChildProcess] = []
        self._follows: list[LogFollower] = []
        self._stop: GroupTermination | None = None
        self._stop_by = float("inf")
        """Monotonic time at which this launcher gives up on processes that do not exit."""
        is_alone = runtime.is_user_script and len(gang.hosts) * gang.settings.processes_per_pod == 1
        self._meanings = [each for each in runtime.log_meanings if not (each.is_fatal and is_alone)]
        self._fatal: tuple[ChildProcess, LogMeaning, float] | None = None
        """(process, meaning, monotonic time) of the first log line after which a process cannot continue."""
        self._finish_by: float | None = None
        self._servers_stop: GroupTermination | None = None
        self._oom_kills = cgroup_memory.oom_kills()
        self._hangs = HangDetector(gang.settings, runtime, timings.trainer_exit, longest_stays)
        self._was_searched = False
        """Whether the logs of the stopped trainers were searched for a failed device."""
        self.connected = False
        """Whether a process of a user's script has been connected to a process of another pod, or of this pod if there
        is no other pod."""
        for trainer in range(gang.settings.processes_per_pod):
            self._remove_progress(trainer)
        specs = runtime.pservers(gang)
        self._check_ports(specs)
        # A script may do anything before its servers accept connections, so nothing waits for them.
        waits = not runtime.is_user_script
        self._waiting = [port for spec in specs for port in spec.ready_ports] if waits else []
        self._ready_by = time.monotonic() + timings.ready
        try:
            for spec in specs:
                self._servers.append(self._start(spec))
            log.info("started %s", ", ".join(spec.name for spec in specs) or "no pserver")
            if runtime.trainer_waits:
                self._start_trainers()
        except LauncherError:
            # Stop the processes that were started before another process failed to start.
            started = GroupTermination(self._children, self._stop_seconds(), time.monotonic())
            started.wait(timings.stop + 5)
            self._finish_logs()
            raise

    def _remove_progress(self, trainer: int) -> None:
        path = self._gang.settings.work.trainer_progress(trainer)
        with files.storage_errors(path):
            path.unlink(missing_ok=True)

    def _check_ports(self, specs: list[ProcessSpec]) -> None:
        for spec in specs:
            for port in spec.ready_ports:
                if self._is_open(port):
                    raise GangError(
                        f"port {port} of {self._gang.host}, which {spec.name} needs, is in use by another "
                        "process (with hostPorts: another job on this node; else: a process that an earlier "
                        "attempt left running). Fix: set another port, or stop that process."
                    )

    def _is_open(self, port: int) -> bool:
        return accepts_connections(self._network, self._gang.host, port)

    def _start(self, spec: ProcessSpec) -> ChildProcess:
        child = ChildProcess(spec, self._wake, self._forks)
        fatal = [meaning for meaning in self._meanings if meaning.is_fatal]

        def judge(lines: str) -> None:
            meaning = next((each for each in fatal if each.search(lines)), None)
            if self._fatal is None and meaning is not None:
                self._fatal = child, meaning, time.monotonic()
                self._wake()

        shown = spec.role == "trainer" and not self._trainers
        self._follows.append(
            LogFollower(spec.log, copy=spec.copy, shown=shown, judge=judge if fatal else None)
        )
        return child

    def _start_trainers(self) -> None:
        specs = self._runtime.trainers(self._gang)
        self._check_ports(specs)
        for spec in specs:
            self._trainers.append(self._start(spec))
            log.info("started %s (pid %d)", spec.name, self._trainers[-1].pid)

    @property
    def _children(self) -> list[ChildProcess]:
        return [*self._servers, *self._trainers]

    @property
    def ended(self) -> tuple[str, ...]:
        """Return the names of the trainers that exited with code 0 before anything stopped them."""
        ended = (c for c in self._trainers if c.done.is_set() and c.returncode == 0 and not c.stopped)
        return tuple(child.spec.name for child in ended)

    @property
    def running(self) -> bool:
        """Return whether any process may still run."""
        return any(not child.done.is_set() for child in self._children)

    def poll(self, now: float) -> None:
        """Check the processes, and update `phase` and `failure`; call this again and again.

        Raises:
            UnfitError: processes did not exit after SIGKILL; this is raised only once.
        """
        if self._stop is not None:
            if self._stop.poll(now) and self._stop_servers(now, self._stop.deadline):
                self._finish_logs()
                self._find_broken_device(now)
            elif now >= self._stop_by:
                self._stop_by = float("inf")
                left = [f"{c.spec.name} (pid {c.pid})" for c in self._children if not c.done.is_set()]
                raise UnfitError(
                    f"{', '.join(left)} did not exit within {self._timings.stuck:.0f} s after SIGKILL, most likely "
                    "because a volume does not respond. This pod exits, and Kubernetes replaces it. Fix: check that "
                    "the pod's volumes are mounted on its node and that their servers respond"
                )
            return
        if self.phase == Phase.ENDED:
            return
        try:
            self._check_processes(now)
        except LauncherError as error:
            self._fail(error, now)

    def _fail(self, error: LauncherError, now: float) -> None:
        exited = [c.ended_at for c in self._children if c.done.is_set() and c.returncode]
        self.failure = self._describe_failure(error, min(exited, default=now))
        log.error("%s", self.failure.text)
        self.stop(now)

    def _describe_failure(self, error: LauncherError, at: float) -> Failure:
        progress, place = read_progress(self._gang.settings), None
        number, batch = progress.number, progress.batch
        has_trained = progress.state not in STATES_BEFORE_TRAINING
        # A script's own progress.json may have negative numbers.
        if has_trained and number is not None and batch is not None and min(number, batch) >= 0:
            place = Position(number, batch)
        failure = Failure.from_error(error, at, self._gang.index, place=place)
        if self.ended and isinstance(error, ProcessError):
            failure = replace(failure, text=describe_early_exit(" and ".join(self.ended), failure.text))
        return failure

    def _check_processes(self, now: float) -> None:
        """Raise `LauncherError` if a process has failed, hangs or missed its deadline; else advance the phase.

        In the phase `training`, this also updates `connected`. If some trainers have ended while others still train, it
        removes the progress files of those that have ended.
        """
        for child in sorted((c for c in self._children if c.done.is_set()), key=lambda c: c.ended_at):
            self._check_exit(child, now)
        self._check_fatal_line(now)
        if self.phase == Phase.SERVING:
            self._waiting = [port for port in self._waiting if not self._is_open(port)]
            if not self._waiting:
                self.phase = Phase.READY
            elif now >= self._ready_by:
                spec = next(c.spec for c in self._servers if self._waiting[0] in c.spec.ready_ports)
                raise DeadlineError(
                    f"{spec.name} does not accept connections on {self._gang.host}:"
                    f"{', '.join(map(str, self._waiting))} after {self._timings.ready:.0f} s"
                    f"{quote_log(spec.log)}\nFix: if its log has no error, increase resources.requests.cpu: "
                    "loading Paddle takes long on a busy node"
                )
        elif self.phase == Phase.TRAINING:
            if self._runtime.is_user_script and not self.connected:
                peers = set(self._gang.hosts) - {self._gang.host} or {self._gang.host, "127.0.0.1"}
                self.connected = has_connection(peers, self._gang.settings.peer_port)
            self._check_hang(now)
            ended = [number for number, trainer in enumerate(self._trainers) if trainer.done.is_set()]
            if self._trainers and len(ended) == len(self._trainers):
                if self._runtime.is_user_script:  # a trainer may have exited right after such a line
                    self._finish_logs()
                    self.join_log_followers(self._timings.copies)
                    self._check_fatal_line(float("inf"))
                self.phase = Phase.DONE
                return
            for number in ended:  # those that still train decide the progress of this rank
                self._remove_progress(number)
        elif self.phase == Phase.DONE and self._finish_by is not None:
            self._await_servers(now)

    def _check_fatal_line(self, now: float) -> None:
        """Raise `ProcessError` some time after a line with a fatal meaning has appeared in a log.

        Nothing is raised if the trainers are done by then. The time is `Timings.pserver_exit_lag`. If the process exits
        in that time, its exit code is the better cause.
        """
        if self._fatal is None or self.phase == Phase.DONE:
            return
        child, meaning, seen = self._fatal
        if now - seen < self._timings.pserver_exit_lag or read_progress(self._gang.settings).state == "done":
            return
        raise self._explain(
            child, f"cannot continue: its log contains {meaning.pattern!r}", None, meaning.why
        )

    def _check_exit(self, child: ChildProcess, now: float) -> None:
        """Raise `ProcessError` if the exited process `child` exited too early or with an unexpected exit code."""
        code, is_training = child.returncode or 0, self.phase in (Phase.TRAINING, Phase.DONE)
        if child.spec.role == "trainer":
            if code == 0 and is_training:
                return
        elif child.stopped or self._finish_by is not None:
            return
        elif code == 0 and is_training and (child.spec.ends_itself or self._runtime.is_user_script):
            # Trainer 0 stops the servers just before the last trainers exit, as a user's script may, too.
            if now - child.ended_at <= self._timings.early_pserver_exit:
                return
            raise ProcessError(
                f"{child.spec.name} exited with code 0, but {self._timings.early_pserver_exit:.0f} s later "
                "not all trainers are done, and they would wait for it without end"
                f"{quote_log(child.spec.log)}\nFix: if this repeats, see what the other trainers wait for: "
                "python -m launcher logs --role trainer --rank RANK",
                process=child.spec.name,
            )
        if code == -signal.SIGKILL and cgroup_memory.oom_kills() > self._oom_kills:
            raise ProcessError(_describe_out_of_memory(child.spec.name), code, child.spec.name)
        raise self._explain(child, f"exited with {describe_exit(code)}", code)

    def _explain(self, child: ChildProcess, what: str, code: int | None, fix: str = "") -> ProcessError:
        """Return the error about a process; its text has the last lines of the log, the cause and the fix.

        Args:
            child: the process; the `log_meanings` of its runtime explain its log.
            what: what the process did, such as `exited with exit code 1`.
            code: its exit code; None if it still runs.
            fix: text with cause and fix, used if the log does not show the cause.
        """
        spec = child.spec
        lines = last_lines(spec.log, *_TAIL).splitlines()
        known = ((meaning, line) for meaning in self._meanings for line in lines if meaning.search(line))
        meaning, line = next(known, (LogMeaning("", fix), ""))
        quoted = quote_log(spec.log)
        found = f"\nIts log contains: {line[:300]}" if line not in quoted else ""
        why = (meaning.why or fix).replace("{node}", self._gang.settings.node_name or "NODE")
        text = "\n".join(filter(None, [f"{spec.name} {what}{quoted}{found}", why]))
        return ProcessError(text, code, spec.name, meaning.priority, ends_pod=meaning.ends_pod)

    def _find_broken_device(self, now: float) -> None:
        """Search the trainers' logs for a failed device; if one is found, set `failure`, but log nothing.

        `poll` calls this when all processes have been stopped. Only the first call searches, and only if this rank has
        no failure yet. The search is needed because another rank may have reported a failure first, although its cause
        is a failed device of this pod.
        """
        if self.failure is None and not self._was_searched:
            self._was_searched = True
            errors = (self._explain(c, "was stopped", c.returncode) for c in self._trainers)
            broken = next((error for error in errors if not error.priority), None)
            self.failure = self._describe_failure(broken, now) if broken else None

    def _check_hang(self, now: float) -> None:
        """Raise `ProcessError` if the trainers hang; for a user's script, set `hang` instead."""
        log_size = sum(measure_log(child.spec.log) for child in self._trainers)
        found = self._hangs.find_hang(log_size, now)
        running = [trainer for trainer in self._trainers if not trainer.done.is_set()]
        hang = self._explain(running[0], found[0], None, found[1]) if found and running else None
        if hang is not None and not self._runtime.is_user_script:
            raise hang
        if (hang is None) != (self.hang is None):
            self.hang = None if hang is None else self._describe_failure(hang, now)

    def train(self) -> None:
        """Begin the phase `training`, and start the trainers if they do not run yet.

        Call this when all pservers of the job accept connections. In a phase other than `ready`, it does nothing. If a
        trainer cannot start, `failure` is set and all processes are stopped; nothing is raised.
        """
        if self.phase != Phase.READY:
            return
        self.phase = Phase.TRAINING
        if not self._trainers:
            try:
                self._start_trainers()
            except LauncherError as error:
                self._fail(error, time.monotonic())

    def finish(self, now: float) -> None:
        """Stop the pservers that do not exit by themselves (`ends_itself` is false).

        Call this when all trainers of the job are done. The other pservers have `Timings.pserver_exit` seconds to exit;
        then `poll` stops them, too. Only the first call in the phase `done` has an effect; every other call does
        nothing.
        """
        if self.phase == Phase.DONE and self._finish_by is None:
            self._finish_by = now + self._timings.pserver_exit
            left = [c for c in self._servers if not c.spec.ends_itself]
            self._servers_stop = GroupTermination(left, self._stop_seconds(), now)

    def _await_servers(self, now: float) -> None:
        if self._servers_stop is not None:
            self._servers_stop.poll(now)
        staying = [c for c in self._servers if not c.done.is_set()]
        if staying and self._finish_by is not None and now >= self._finish_by:
            names = ", ".join(c.spec.name for c in staying)
            log.warning(
                "%s: still running %.0f s after all trainers were done, so the launcher stops it",
                names,
                self._timings.pserver_exit,
            )
            self._servers_stop = GroupTermination(staying, self._stop_seconds(), now)
            self._finish_by = float("inf")
        if not staying:
            self.phase = Phase.ENDED
            self._finish_logs()

    def stop(self, now: float, seconds: float = 0.0) -> None:
        """Terminate all processes; `running` is true until they have exited.

        The processes receive SIGTERM, and SIGKILL if they have not exited `Timings.stop` seconds later. The processes
        of a user's script have at least `seconds` until SIGKILL. If `seconds` is not 0, the pservers of a user's script
        are stopped later: when no trainer of any pod is connected to them, or at that deadline. If the processes have
        nothing to save (`Runtime.has_nothing_to_save`), they receive SIGKILL at once. A second call may bring SIGKILL
        forward, but does not postpone it.
        """
        given = self._stop_seconds(seconds)
        if self._stop is None:
            # The script's trainers may save a checkpoint, which needs the servers of all pods.
            first = self._trainers if self._runtime.is_user_script and seconds else self._children
            self._stop = GroupTermination(first, given, now)
            self._stop_by = now + given + self._timings.stuck
        else:
            self._stop.deadline = min(self._stop.deadline, now + given)

    def _stop_servers(self, now: float, deadline: float) -> bool:
        """Stop the pservers once no trainer of any pod is connected to them, or at the monotonic time `deadline`.

        Returns:
            Whether all pservers have exited.
        """
        if all(server.done.is_set() for server in self._servers):
            return True
        ports = [port for server in self._servers for port in server.spec.ready_ports]
        if self._servers_stop is None and (now >= deadline or not has_clients(self._gang.host, ports)):
            self._servers_stop = GroupTermination(self._servers, self._stop_seconds(), now)
            self._stop_by = now + self._stop_seconds() + self._timings.stuck
        return self._servers_stop is not None and self._servers_stop.poll(now)

    def _stop_seconds(self, seconds: float = 0.0) -> float:
        if self._runtime.has_nothing_to_save:
            return 0.0
        return max(self._timings.stop, seconds if self._runtime.is_user_script else 0.0)

    def _finish_logs(self) -> None:
        """Tell the log followers to copy the last lines and then exit; `join_log_followers` waits for that."""
        for follow in self._follows:
            follow.end()

    def join_log_followers(self, seconds: float) -> None:
        """Wait until the last lines of the logs are shown and copied, for at most two times `seconds`.

        A log may have two threads, one that shows and one that copies, and each of them gets the same time.
        """
        deadline = time.monotonic() + seconds
        for follow in self._follows:
            follow.join(max(0.0, deadline - time.monotonic()))


def _describe_out_of_memory(name: str) -> str:
    """Return the message about the process `name` that the kernel killed because of the pod's memory limit."""
    limit = cgroup_memory.limit()
    size = f" of {limit / (1 << 20):,.0f} MiB" if limit is not None else ""
    return (
        f"{name} was killed by the kernel (SIGKILL): this pod's processes reached its memory limit{size} "
        "(resources.limits.memory). Fix: increase that limit, or decrease training.batchSize or the size of the tables."
    )


class Report(NamedTuple):
    """What a rank reports about its processes: phase, number of the attempt, and failure if there was one."""

    phase: Phase
    attempt: int
    failure: Failure | None


class OrderExecutor:
    """Starts and stops one rank's processes as the coordinator's newest order says.

    Every rank has an executor, rank 0 too.
    """

    def __init__(self, start: Callable[[Plan], ProcessGroup], rank: int, orphan_seconds: float) -> None:
        """Create the executor; it starts nothing before `step` receives an order.

        `start` takes an order, starts this rank's processes for this order and returns them; it may raise
        `LauncherError`. If rank 0 does not confirm the order for `orphan_seconds`, the executor stops all processes.
        """
        self._start, self._rank, self._orphan_seconds = start, rank, orphan_seconds
        self.processes: ProcessGroup | None = None
        self.attempt = -1
        self.failure: Failure | None = None
        self.staged = False
        """Whether this rank's input is staged, so that processes can start."""
        self.address = ""
        """This launcher's address. An order with another address for this rank is meant for an earlier pod of the
        rank."""
        self._stopped_early = False
        """Whether this rank has begun to stop its processes before the attempt was complete."""
        self.report = Report(Phase.STAGING, -1, None)
        """What this rank reports now. Other threads read it, so it is always replaced as a whole. It is also replaced
        right before the first process of an attempt starts."""

    def step(self, order: Plan | None, heard: float, now: float, stop_seconds: float = 0.0) -> None:
        """Carry out the newest order as far as possible without waiting; call this again and again.

        Args:
            order: the coordinator's newest order; None stops all processes.
            heard: monotonic time at which rank 0 last confirmed the order.
            stop_seconds: how long a user's script may react to SIGTERM if `order` is None; otherwise,
                `Plan.stop_seconds` of the order says this.

        Raises:
            UnfitError: processes did not exit after SIGKILL (`ProcessGroup.poll`).
        """
        processes = self.processes
        if processes is not None:
            processes.poll(now)
            self.failure = self.failure or processes.failure
            self._stopped_early = self._stopped_early or self.failure is not None
        is_confirmed = order is not None and now - heard < self._orphan_seconds
        may_run = is_confirmed and order is not None and order.do.runs_processes
        if order is not None:
            stop_seconds = order.stop_seconds if is_confirmed else 0.0
        if processes is not None and order is not None:
            is_current = order.attempt == processes.attempt
            if order.do in (Action.STOP, Action.WAIT) or not is_current:
                # Also needed if all processes have exited by themselves: the coordinator waits for the phase `idle`.
                self._stopped_early = True
                processes.stop(now, stop_seconds)
        if processes is not None and order is not None and may_run and not self._stopped_early:
            if order.do == Action.TRAIN:
                processes.train()
            elif order.do == Action.FINISH:
                processes.finish(now)
        elif processes is not None and processes.running:
            self._stopped_early = True
            processes.stop(now, stop_seconds)
        elif order is not None and may_run and self._can_start(order):
            self._start_attempt(order, now)
        elif order is not None and order.do == Action.STOP and order.attempt > self.attempt:
            self.attempt, self.failure, self.processes = order.attempt, None, None
        self.report = Report(self.phase, self.attempt, self.failure)

    def _can_start(self, order: Plan) -> bool:
        place = order.place(self._rank)
        is_ours = place is not None and self.address == order.addresses[place]
        return order.do == Action.SERVE and is_ours and self.staged and order.attempt > self.attempt

    def _start_attempt(self, order: Plan, now: float) -> None:
        self.attempt, self.failure, self.processes, self._stopped_early = order.attempt, None, None, False
        self.report = Report(Phase.SERVING, order.attempt, None)
        try:
            self.processes = self._start(order)
        except LauncherError as error:
            self.failure = Failure.from_error(error, now, self._rank)

    @property
    def running(self) -> bool:
        """Return whether any process may still run."""
        return self.processes is not None and self.processes.running

    @property
    def phase(self) -> Phase:
        """Return the phase that this rank reports."""
        if not self.staged:
            return Phase.STAGING
        if self.processes is None or (self._stopped_early and not self.processes.running):
            return Phase.IDLE
        return self.processes.phase
