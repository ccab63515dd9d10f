"""One rank's processes in one attempt: pservers, then the trainer, watched until both have ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from launcher.errors import DeadlineError, GangError, ProcessError
from launcher.gang import children
from launcher.gang.children import Child
from launcher.gang.ending import describe_exit, last_lines
from launcher.gang.events import Events
from launcher.gang.log import log
from launcher.gang.network import Network, accepts
from launcher.gang.timings import Timings
from launcher.runtimes.base import Gang, ProcessSpec, Runtime


class Supervisor:
    """States: idle → servers starting → ready → training → trainer done → ended; `stop()` from any of them.

    `pause(seconds)` is the agent's: it handles what happens meanwhile, calls `child_ended` for each child
    that ends, and raises when the gang is over.
    """

    def __init__(
        self,
        runtime: Runtime,
        gang: Gang,
        *,
        network: Network,
        events: Events,
        timings: Timings,
        pause: Callable[[float], None],
    ) -> None:
        self._runtime, self._gang, self._network = runtime, gang, network
        self._events, self._timings, self._pause = events, timings, pause
        self._servers: list[Child] = []
        self._trainer: Child | None = None
        self._echo: children.Echo | None = None
        self._training = False
        """Whether all pservers of the job accept, so that one may end with 0 by itself."""
        self._finishing = False
        self._early: float | None = None
        """When the first pserver ended with 0, before all trainers were done."""

    @property
    def children(self) -> list[Child]:
        return [*self._servers, *([self._trainer] if self._trainer is not None else [])]

    def pids(self) -> set[int]:
        return {child.pid for child in self.children}

    def start_servers(self) -> None:
        """Starts all pservers (a trainer that waits for them too) and waits until their ports accept.

        Raises `GangError` for a port in use.
        """
        specs = self._runtime.pservers(self._gang)
        host = self._gang.host
        for spec in specs:
            for port in spec.ready_ports:
                if accepts(self._network, host, port):
                    raise GangError(
                        f"port {port} of {host}, which {spec.name} needs, is in use by another "
                        "process (with hostPorts "
                        "another job on this node, else what an earlier one left). Set another port, "
                        "or end it."
                    )
        self._servers = [Child(spec, self._events) for spec in specs]
        log.info("started %s", ", ".join(spec.name for spec in specs) or "no pserver")
        if self._runtime.trainer_waits:
            self._start_trainer()
        deadline = time.monotonic() + self._timings.ready
        for spec in specs:
            self._await_ready(spec, deadline)

    def _await_ready(self, spec: ProcessSpec, deadline: float) -> None:
        waiting = list(spec.ready_ports)
        while waiting:
            waiting = [port for port in waiting if not accepts(self._network, self._gang.host, port)]
            if waiting and time.monotonic() >= deadline:
                raise DeadlineError(
                    f"{spec.name} does not accept connections on {self._gang.host}:"
                    f"{', '.join(map(str, waiting))} after {self._timings.ready:.0f} s"
                    f"{_quote(spec)}"
                )
            self._pause(0.05 if waiting else 0)

    def start_training(self) -> None:
        """All pservers of the job accept: starts the trainer, unless it was started with them."""
        self._training = True
        if self._trainer is None:
            self._start_trainer()

    def _start_trainer(self) -> None:
        """Starts the trainer and the echo of its lines."""
        spec = self._runtime.trainer(self._gang)
        with contextlib.suppress(FileNotFoundError):
            self._gang.settings.work.progress.unlink()
        self._trainer = Child(spec, self._events)
        self._echo = children.Echo(spec.log)
        log.info("started %s (pid %d)", spec.name, self._trainer.pid)

    def child_ended(self, child: Child) -> None:
        """Judges one exit. Raises `ProcessError` for one that should not be."""
        if child.stopped:
            return
        code = child.returncode or 0
        if code == 0 and child.spec.role == "trainer":
            log.info("%s ended with 0", child.spec.name)
            return
        if child.spec.role == "pserver" and self._finishing:
            log.info("%s ended with %s", child.spec.name, describe_exit(code))
            return
        if code == 0 and child.spec.ends_itself and self._training:
            # Trainer 0 stops the servers just before the last trainers end.
            self._early = self._early or child.ended_at
            return
        raise ProcessError(f"{child.spec.name} ended with {describe_exit(code)}{_quote(child.spec)}", code)

    def check_early(self) -> None:
        """Raises when a pserver ended, though with 0, and the trainers go on without it."""
        if self._early is None or self._finishing:
            return
        if time.monotonic() - self._early > self._timings.server_early:
            ended = next(c for c in self._servers if c.done.is_set())
            raise ProcessError(
                f"{ended.spec.name} ended with exit code 0, but {self._timings.server_early:.0f} s "
                "later not all "
                f"trainers are done: they would wait for it for ever{_quote(ended.spec)}"
            )

    @property
    def trainer_done(self) -> bool:
        return self._trainer is not None and self._trainer.done.is_set()

    def finish(self) -> None:
        """All trainers of all ranks are done: waits for the pservers, and stops those that stay."""
        self._finishing = True
        children.stop([c for c in self._servers if not c.spec.ends_itself], self._timings.stop)
        deadline = time.monotonic() + self._timings.servers_end
        while staying := [c for c in self._servers if not c.done.is_set()]:
            if time.monotonic() >= deadline:
                log.warning(
                    "%s still run %.0f s after all trainers were done: stopping them",
                    ", ".join(c.spec.name for c in staying),
                    self._timings.servers_end,
                )
                break
            self._pause(0.05)
        self.stop()

    def stop(self) -> None:
        """The one way down: TERM, one deadline, KILL, wait; then the rest of the trainer's lines."""
        children.stop(self.children, self._timings.stop)
        if self._echo is not None:
            self._echo.close()
            self._echo = None


def _quote(spec: ProcessSpec) -> str:
    lines = last_lines(spec.log)
    return f"; the last lines of {spec.log}:\n{lines}" if lines else f"; {spec.log} is empty"
