"""Replace what the launcher's modules use of the machine by the parts of a simulation.

Threads, time, processes, network and the storage's faults are simulated; everything else is the product.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from launcher import log as launcher_log
from launcher.io import cgroup_memory, files
from launcher.paths import OutputPaths
from launcher.supervisor import agent, child_processes
from launcher.supervisor.coordinator.members import Membership
from launcher.supervisor.coordinator.run_writer import RunFilesWriter
from launcher.supervisor.helper_processes import write_report
from launcher.supervisor.peers import coordinator_link, peer_server
from tests.launcher.supervisor import simulated_pod, virtual_time
from tests.launcher.supervisor.simulated_pod import Ignored, SimulatedNetwork, SimulatedPod, running_pod
from tests.launcher.supervisor.simulated_processes import start_child


def _start_server(network: SimulatedNetwork, *_: object) -> Ignored:
    """Replace the pod's HTTP server (`PeerServer`)."""
    network.pod.server = Ignored()
    return network.pod.server


_IGNORED = Ignored()
_REPLACED: tuple[tuple[object, object], ...] = (
    (time, virtual_time.TIME),
    (time.sleep, virtual_time.TIME.sleep),
    (time.monotonic, virtual_time.TIME.monotonic),
    (threading, virtual_time.THREADING),
    (SimpleQueue, virtual_time.SimpleQueue),
    (child_processes.ChildProcess, start_child),
    (child_processes.LogFollower, _IGNORED),
    (child_processes.kill_all_children, lambda **_: running_pod().kill_children()),
    (child_processes.reap_orphans, _IGNORED),
    (cgroup_memory.oom_kills, lambda: 0),
    (peer_server.PeerServer, _start_server),
    (coordinator_link.HttpConnection, simulated_pod.SimulatedConnection),
    (coordinator_link.read_lease_holder, simulated_pod.read_old_lease_holder),
    (write_report, _IGNORED),
    (launcher_log.start_logging, _IGNORED),
    (agent.wait_for_manifest, lambda settings, *_, **__: files.list_names(settings.layout.job)),
    (agent.stage_inputs, simulated_pod.stage_inputs),
    (agent.find_program, lambda settings: settings.work_dir),
    (agent.handle_signals, simulated_pod.handle_signals),
    (agent.write_termination_message, lambda _, text: setattr(running_pod(), "message", text)),
)


@contextlib.contextmanager
def simulated_machine() -> Iterator[None]:
    """Replace all of `_REPLACED` in the launcher's modules, also where it is the default of an argument."""
    fakes = {id(real): (real, fake) for real, fake in _REPLACED}
    with contextlib.ExitStack() as stack:

        def put(target: object, name: str, value: object) -> None:
            stack.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)

        for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "launcher"]:
            for name, value in list(vars(module).items()):
                if id(value) in fakes:
                    put(module, name, fakes[id(value)][1])
                for function in (value, *(vars(value).values() if isinstance(value, type) else ())):
                    given = getattr(function, "__defaults__", None) or ()
                    if any(id(default) in fakes for default in given):
                        new = tuple(fakes.get(id(each), (each, each))[1] for each in given)
                        put(function, "__defaults__", new)
        for target, name, wrap in _WRAPPED:
            put(target, name, wrap(getattr(target, name)))
        put(os, "_exit", simulated_pod.exit_now)
        put(agent, "WATCHDOG_SECONDS", 2.0)
        put(agent, "PROBE_SECONDS", 15.0)
        yield


def _pod_of_storage(path: object) -> SimulatedPod | None:
    """Return the pod whose launcher uses this path of the shared storage in the running thread, if any."""
    clock = virtual_time.active()
    pod: Any = None if clock is None else clock.owner
    return pod if pod is not None and str(path).startswith(pod.world.storage_prefix) else None


def _use_storage(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let the storage's present fault happen before a call."""

    def call(path: Any, *rest: Any, **more: Any) -> Any:
        pod = _pod_of_storage(path)
        if pod is not None:
            writes = real is not os.open or bool(rest and rest[0] & os.O_CREAT)
            _await_storage(pod, str(path), writes=writes and real not in _READS)
        return real(path, *rest, **more)

    return call


_READS = (io.open, os.listdir, os.statvfs)


def _await_storage(pod: SimulatedPod, path: str, *, writes: bool) -> None:
    world, clock = pod.world, pod.world.clock
    while True:
        kind, until = world.find_storage_fault(pod)
        if kind == "full" and writes:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if kind == "fail":
            raise OSError(errno.EIO, "Input/output error", path)
        if kind == "hang":
            clock.wait(until - clock.now + 0.01)
            continue
        if kind == "slow":
            clock.wait(world.rng.uniform(0.1, 3))
        elif world.rng.random() < 0.2:
            clock.wait(world.rng.uniform(0, 0.1))
        return


def _check(check: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a wrapper that calls `check` with the pod and the arguments after each call of a launcher."""

    def wrap(real: Callable[..., Any]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            real(*given)
            clock = virtual_time.active()
            pod = None if clock is None else clock.owner
            if clock is not None and pod is not None:
                with clock.outside():
                    check(pod, *given)

        return call

    return wrap


def _check_replace(pod: SimulatedPod, _: object, target: Path) -> None:
    output = OutputPaths(pod.world.output)
    if target.parent == output.root and not target.name.startswith((".", output.lock.name)):
        pod.world.check_output_write(pod, target.name)
    if target == output.run_json:
        pod.world.read_run_record(pod)


_WRAPPED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    *((os, name, _use_storage) for name in ("open", "listdir", "statvfs", "link", "mkdir")),
    (io, "open", _use_storage),
    (os, "replace", _check(_check_replace)),
    (RunFilesWriter, "write_plan", _check(lambda pod, _, plan: pod.world.check_restart_limit(plan))),
    (Membership, "publish", _check(lambda pod, _, order: pod.world.check_published_order(pod, order))),
)
