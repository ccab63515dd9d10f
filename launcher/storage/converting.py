"""The staged shard becomes the trainer's own form, in a process of its own, before the gang meets."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher import children
from launcher.children import Child
from launcher.errors import EXIT_GANG, EXIT_UNFIT, FINAL, ProcessError, UnfitError
from launcher.reporting.ending import describe_exit, last_lines
from launcher.reporting.log import log
from launcher.runtimes.base import ProcessSpec
from launcher.timings import Timings


def convert(
    spec: ProcessSpec | None, pause: Callable[[float], None], wake: Callable[[], None], timings: Timings
) -> None:
    """Runs what the runtime's `conversion` gave, to its end. `pause(seconds)` may raise to end it.

    Raises `ProcessError` with the process' own words and final code, `UnfitError` where another pod may do
    better (the process was killed, the disk is faulty).
    """
    if spec is None:
        return
    log.info("parsing the shard")
    child = Child(spec, wake, apart=True)
    follow = children.Follow(spec.log, copy=None, shown=True)
    try:
        while not child.done.is_set():
            pause(timings.poll)
    finally:
        stop = children.Stop([child], timings.stop, time.monotonic())
        deadline = time.monotonic() + 2 * timings.stop
        while not stop.poll(time.monotonic()) and time.monotonic() < deadline:
            time.sleep(0.05)
        follow.end()
        follow.join(timings.copies)
    code = child.returncode or 0
    if code == 0:
        return
    said = last_lines(spec.log)
    cause = said.rpartition("error: ")[2] if "error: " in said else f"its last lines:\n{said}"
    text = f"the {spec.name} ended with {describe_exit(code)}: {cause}"
    if code in (*FINAL, EXIT_GANG):
        raise ProcessError(text, code, spec.name)
    if code != EXIT_UNFIT:
        text += "\nIf it was killed, the pod's memory may be too small: see resources.limits.memory."
    raise UnfitError(text)
