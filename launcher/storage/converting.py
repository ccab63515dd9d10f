"""The staged shard becomes the trainer's own form, in a process of its own, before the gang meets."""

from __future__ import annotations

from collections.abc import Callable

from launcher.children import attend
from launcher.errors import EXIT_GANG, EXIT_UNFIT, FINAL, ProcessError, UnfitError
from launcher.reporting.ending import describe_exit, quote_log
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
    code = attend(spec, wake=wake, pause=pause, timings=timings, apart=True) or 0
    if code == 0:
        return
    text = f"the {spec.name} ended with {describe_exit(code)}{quote_log(spec.log)}"
    if code in (*FINAL, EXIT_GANG):
        raise ProcessError(text, code, spec.name)
    if code != EXIT_UNFIT:
        text += "\nIf it was killed, the pod's memory may be too small: see resources.limits.memory."
    raise UnfitError(text)
