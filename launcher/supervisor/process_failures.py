"""Messages about a process that failed or hangs, with the meaning of its log."""

from __future__ import annotations

import re

from launcher.errors import ProcessError
from launcher.io import cgroup_memory
from launcher.reporting.failure_messages import last_lines, quote_log
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, Runtime
from launcher.settings import TrainSettings

_TAIL = (400, 1 << 15)
"""Lines and bytes at the end of a log in which the cause of a failure is searched: a C++ stack trace may follow it."""
SILENT_LOG = (
    "hangs: its log has not grown for {:.0f} s (training.progressDeadlineSeconds), and the script does not report its "
    "steps"
)
SILENT_LOG_FIX = (
    "Fix: let any process of the script log a line at shorter intervals, or report its steps "
    "(launcher.program.ScriptRun); or increase training.progressDeadlineSeconds"
)


def explain_failure(
    spec: ProcessSpec, runtime: Runtime, settings: TrainSettings, what: str, *, code: int | None, fix: str
) -> ProcessError:
    """Return the error about a process with the last lines of its log, and with cause and fix.

    Args:
        spec: the process.
        runtime: its `log_meanings` explain the log.
        settings: the settings of the pod.
        what: what the process did, such as `exited with exit code 1`.
        code: its exit code; None if it still runs.
        fix: cause and fix if the log has no known meaning.
    """
    lines = last_lines(spec.log, *_TAIL).splitlines()
    known = (
        (meaning, line)
        for meaning in runtime.log_meanings
        for line in lines
        if re.search(meaning.pattern, line, re.IGNORECASE)
    )
    meaning, line = next(known, (LogMeaning("", fix), ""))
    quoted = quote_log(spec.log)
    found = f"\nIts log contains: {line[:300]}" if line not in quoted else ""
    why = meaning.why.replace("{node}", settings.node_name or "NODE")
    text = "\n".join(filter(None, [f"{spec.name} {what}{quoted}{found}", why]))
    return ProcessError(text, code, spec.name, meaning.priority, ends_pod=meaning.ends_pod)


def describe_out_of_memory(name: str) -> str:
    """Return the message about the process `name` that the kernel killed because of the pod's memory limit."""
    limit = cgroup_memory.limit()
    size = f" of {limit / (1 << 20):,.0f} MiB" if limit is not None else ""
    return (
        f"{name} was killed by the kernel (SIGKILL): this pod's processes reached its memory limit{size} "
        "(resources.limits.memory). Fix: increase that limit, or decrease training.batchSize or the size of "
        "the tables."
    )
