"""One rank's processes in one attempt: pservers and the trainer, looked after until all have ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from launcher import files, memory
from launcher.children import Child, Follow, ForkServer, Stop
from launcher.errors import DeadlineError, GangError, LauncherError, ProcessError, UnfitError
from launcher.gang.deadlines import FIXES, deadline
from launcher.gang.messages import Failure
from launcher.gang.network import Network, accepts
from launcher.gang.status import number
from launcher.reporting.ending import describe_exit, quote_log
from launcher.reporting.log import log
from launcher.runtimes.base import Gang, ProcessSpec, Runtime
from launcher.settings import TrainSettings
from launcher.timings import Timings


class Crew:
    """Phases: serving → ready → training → done → ended; `stop` from any of them (`machine.Crew`).

    `wake` is called, from threads, when there is something to look at.
    """

    def __init__(
        self,
        runtime: Runtime,
        gang: Gang,
        *,
        network: Network,
        timings: Timings,
        wake: Callable[[], None],
        longest: dict[str, float],
        forks: ForkServer | None = None,
    ) -> None:
        """Starts the pservers, and a trainer that waits for them itself.

        `longest`: state → the trainer's longest stay in it on this rank, in seconds; added to here.
        Raises `LauncherError`, with no child left.
        """
        self._runtime, self._gang, self._network = runtime, gang, network
        self._forks = forks
        self._timings, self._wake = timings, wake
        self.attempt, self.phase = gang.attempt, "serving"
        self.failure: Failure | None = None
        self._trainer: Child | None = None
        self._servers: list[Child] = []
        self._follows: list[Follow] = []
        self._stop: Stop | None = None
        self._stop_by = float("inf")
        """When this launcher gives up on children that do not end."""
        self._fatal: tuple[ProcessSpec, str, float] | None = None
        self._finish_by: float | None = None
        self._servers_stop = Stop([], 0, 0)
        self._oom_kills = memory.oom_kills()
        self._longest = longest
        self._moved: tuple[float, Any] = (0.0, None)
        """When the trainer's place last changed, and to what."""
        self._entered: tuple[float, Any] = (0.0, None)
        """When the trainer's state last changed, and to what."""
        self._began: float | None = None
        """When the gang was told to train."""
        gang.settings.work.progress.unlink(missing_ok=True)
        specs = runtime.pservers(gang)
        self._check_ports(specs)
        self._waiting = [port for spec in specs for port in spec.ready_ports]
        self._ready_by = time.monotonic() + timings.ready
        try:
            for spec in specs:
                self._servers.append(self._start(spec))
            log.info("started %s", ", ".join(spec.name for spec in specs) or "no pserver")
            if runtime.trainer_waits:
                self._start_trainer()
        except LauncherError:
            self._take_down()
            raise

    def _check_ports(self, specs: list[ProcessSpec]) -> None:
        for spec in specs:
            for port in spec.ready_ports:
                if accepts(self._network, self._gang.host, port):
                    raise GangError(
                        f"port {port} of {self._gang.host}, which {spec.name} needs, is in use by another "
                        "process (with hostPorts another job on this node, else what an earlier one left). "
                        "Set another port, or end it."
                    )

    def _start(self, spec: ProcessSpec) -> Child:
        child = Child(spec, self._wake, self._forks)
        texts = self._runtime.fatal_lines

        def judge(lines: str) -> None:
            if self._fatal is None and (text := next((text for text in texts if text in lines), None)):
                self._fatal = spec, text, time.monotonic()
                self._wake()

        shown = spec.role == "trainer"
        self._follows.append(Follow(spec.log, copy=spec.copy, shown=shown, judge=judge if texts else None))
        return child

    def _start_trainer(self) -> None:
        self._trainer = self._start(self._runtime.trainer(self._gang))
        log.info("started trainer (pid %d)", self._trainer.pid)

    @property
    def _children(self) -> list[Child]:
        return [*self._servers, *([self._trainer] if self._trainer is not None else [])]

    @property
    def running(self) -> bool:
        return any(not child.done.is_set() for child in self._children)

    def poll(self, now: float) -> None:
        """Looks at the children and takes the next step.

        Raises `UnfitError`, once, when children that were killed do not end.
        """
        if self._stop is not None:
            if self._stop.poll(now):
                self._unfollow()
            elif now >= self._stop_by:
                self._stop_by = float("inf")
                left = [f"{c.spec.name} (pid {c.pid})" for c in self._children if not c.done.is_set()]
                raise UnfitError(
                    f"{', '.join(left)} did not end {self._timings.stop + self._timings.stuck:.0f} s after "
                    "SIGTERM and SIGKILL, most likely because a storage does not answer. This pod ends, and "
                    "Kubernetes replaces it. Fix: see whether the storage of its node answers"
                )
            return
        if self.phase == "ended":
            return
        try:
            self._judge(now)
        except LauncherError as error:
            self._fail(error, now)

    def _fail(self, error: LauncherError, now: float) -> None:
        ended = [c.ended_at for c in self._children if c.done.is_set() and c.returncode]
        progress = self._progress()
        place = progress.get("pass"), progress.get("batch")
        self.failure = Failure.of(
            error, min(ended, default=now), self._gang.rank, place=place if None not in place else None
        )
        log.error("%s", error)
        self.stop(now)

    def _judge(self, now: float) -> None:
        """Raises what is wrong with the children."""
        for child in sorted((c for c in self._children if c.done.is_set()), key=lambda c: c.ended_at):
            self._judge_end(child, now)
        if self._fatal is not None and self.phase != "done" and self._progress().get("state") != "done":
            spec, text, seen = self._fatal
            if now - seen >= self._timings.echo:
                raise ProcessError(
                    f"{spec.name} cannot go on: its log says {text!r}{quote_log(spec.log)}",
                    process=spec.name,
                )
        if self.phase == "serving":
            self._waiting = [p for p in self._waiting if not accepts(self._network, self._gang.host, p)]
            if not self._waiting:
                self.phase = "ready"
            elif now >= self._ready_by:
                spec = next(c.spec for c in self._servers if self._waiting[0] in c.spec.ready_ports)
                raise DeadlineError(
                    f"{spec.name} does not accept connections on {self._gang.host}:"
                    f"{', '.join(map(str, self._waiting))} after {self._timings.ready:.0f} s"
                    f"{quote_log(spec.log)}"
                )
        elif self.phase == "training":
            self._check_stall(now)
            if self._trainer is not None and self._trainer.done.is_set():
                self.phase = "done"
        elif self.phase == "done" and self._finish_by is not None:
            self._await_servers(now)

    def _judge_end(self, child: Child, now: float) -> None:
        """Raises `ProcessError` for an end that should not be."""
        code = child.returncode or 0
        if child.spec.role == "trainer" and code == 0 and self.phase in ("training", "done"):
            return
        if child.spec.role == "pserver" and (child.stopped or self._finish_by is not None):
            return
        if (
            child.spec.role == "pserver"
            and code == 0
            and child.spec.ends_itself
            and self.phase in ("training", "done")
        ):
            # Trainer 0 stops the servers just before the last trainers end.
            if now - child.ended_at <= self._timings.server_early:
                return
            raise ProcessError(
                f"{child.spec.name} ended with exit code 0, but {self._timings.server_early:.0f} s later not "
                f"all trainers are done: they would wait for it for ever{quote_log(child.spec.log)}",
                process=child.spec.name,
            )
        if code == -signal.SIGKILL and memory.oom_kills() > self._oom_kills:
            raise ProcessError(_out_of_memory(child.spec.name), code, child.spec.name)
        raise ProcessError(
            f"{child.spec.name} ended with {describe_exit(code)}{quote_log(child.spec.log)}",
            code,
            child.spec.name,
        )

    def _check_stall(self, now: float) -> None:
        progress = self._progress()
        state = progress.get("state")
        place = progress.get("pass"), progress.get("batch"), state
        if place != self._moved[1]:
            self._moved = now, place
        self._began = self._began or now
        entered, before = self._entered
        if state != before:
            if isinstance(before, str) and before != "training":
                self._longest[before] = max(self._longest.get(before, 0.0), now - entered)
            self._entered = now, state
        if not isinstance(state, str):  # an old binary says nothing of itself
            return
        limit, source = deadline(
            state,
            stall=self._gang.settings.stall_seconds,
            leave=self._timings.leave,
            longest=self._longest,
            spent=self._entered[0] - self._began,
            size=number(progress.get("bytes", 0)),
        )
        if now - self._moved[0] < limit:
            return
        what = {"training": "no batch", "done": "done, but not ended"}.get(state, f"still {state}")
        fix = FIXES.get(state, "the last lines of its log say what it did")
        quote = quote_log(self._trainer.spec.log) if self._trainer is not None else ""
        raise ProcessError(
            f"trainer hangs: {what} for {limit:.0f} s ({source}), at pass {int(place[0] or 0) + 1}, "
            f"batch {place[1]}. Fix: {fix}{quote}",
            process="trainer",
        )

    def _progress(self) -> dict[str, Any]:
        return progress_of(self._gang.settings)

    def train(self) -> None:
        """All pservers of the job accept."""
        if self.phase != "ready":
            return
        self.phase = "training"
        if self._trainer is None:
            try:
                self._start_trainer()
            except LauncherError as error:
                self._fail(error, time.monotonic())

    def finish(self, now: float) -> None:
        """All trainers of all ranks are done: pservers that never end by themselves are told to."""
        if self.phase == "done" and self._finish_by is None:
            self._finish_by = now + self._timings.servers_end
            self._servers_stop = Stop(
                [c for c in self._servers if not c.spec.ends_itself], self._timings.stop, now
            )

    def _await_servers(self, now: float) -> None:
        self._servers_stop.poll(now)
        staying = [c for c in self._servers if not c.done.is_set()]
        if staying and self._finish_by is not None and now >= self._finish_by:
            names = ", ".join(c.spec.name for c in staying)
            log.warning(
                "%s still run %.0f s after all trainers were done: stopping them",
                names,
                self._timings.servers_end,
            )
            self._servers_stop, self._finish_by = Stop(staying, self._timings.stop, now), float("inf")
        if not staying:
            self.phase = "ended"
            self._unfollow()

    def stop(self, now: float) -> None:
        """Tells all children to end; `running` says when they have."""
        if self._stop is None:
            self._stop = Stop(self._children, self._timings.stop, now)
            self._stop_by = now + self._timings.stop + self._timings.stuck

    def _take_down(self) -> None:
        """Only where a start fails half way: stops what was started, and waits."""
        self.stop(time.monotonic())
        deadline = time.monotonic() + self._timings.stop + 5
        while (
            self._stop is not None and not self._stop.poll(time.monotonic()) and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        self._unfollow()

    def _unfollow(self) -> None:
        for follow in self._follows:
            follow.end()

    def join(self, seconds: float) -> None:
        """Waits until what the children said is told and copied, for at most so long."""
        deadline = time.monotonic() + seconds
        for follow in self._follows:
            follow.join(max(0.0, deadline - time.monotonic()))


def progress_of(settings: TrainSettings) -> dict[str, Any]:
    """What this rank's trainer last said of itself (docs/contracts.md); empty before the first time."""
    try:
        return files.read_json(settings.work.progress) or {}
    except LauncherError:  # a program of a person's own may write anything there
        return {}


def _out_of_memory(name: str) -> str:
    limit = memory.limit()
    size = f" of {limit / (1 << 20):,.0f} MiB" if limit is not None else ""
    return (
        f"{name} was killed by the kernel (SIGKILL): this pod's processes reached its memory limit{size} "
        "(resources.limits.memory). Raise it, or make training.batchSize or the tables smaller."
    )
