"""Start, find and stop the cluster's daemons without ever signalling another process.

Each daemon has a record, the JSON file `run/<name>.json` in the cluster's state folder. The kernel reuses process
ids, so the record also contains the start time of the process (field 22 of /proc/<pid>/stat, in clock ticks
since boot) and the boot id. Every daemon has the variable `MARK` in its
environment, so that daemons whose record was lost are found after a crash.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from local.errors import LocalError
from local.external_commands import indent_last_lines
from local.files_and_locks import write_file_atomically
from local.paths import STATE

RECORDS = STATE / "run"
LOGS = STATE / "logs"
MARK = "PADDLE_TRAINING_DAEMON"
_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """Unique identity of a process: pid, start time in clock ticks since boot, and boot id."""

    pid: int
    start: int
    boot: str


def read_boot_id() -> str:
    """Return the id of the current boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def parse_start_ticks(stat: str) -> int:
    """Return field 22 of a /proc/<pid>/stat line; field 2, the name, may contain spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[19])


def _process_state(stat: str) -> str:
    return stat.rpartition(")")[2].split()[0]


def identify_process(pid: int) -> ProcessIdentity | None:
    """Return the process that has this pid now; None if there is none or only a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if _process_state(stat) in "ZX" and not _has_threads(pid):
        return None
    return ProcessIdentity(pid, parse_start_ticks(stat), read_boot_id())


def _has_threads(pid: int) -> bool:
    """Return whether the process has threads besides its main thread: they keep its ports and files open."""
    try:
        return len(os.listdir(_PROC / str(pid) / "task")) > 1  # noqa: PTH208 - only names are read; entries may vanish
    except OSError:
        return False


def is_alive(process: ProcessIdentity) -> bool:
    """Return whether exactly this process is running, not another one with its pid."""
    return identify_process(process.pid) == process


def running_daemon(name: str) -> ProcessIdentity | None:
    """Return the recorded daemon `name` if it is running, else None."""
    try:
        process = ProcessIdentity(**json.loads((RECORDS / f"{name}.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return process if is_alive(process) else None


def recorded_daemons() -> dict[str, ProcessIdentity | None]:
    """Return all recorded daemons by name; None for daemons that are not running."""
    return {file.stem: running_daemon(file.stem) for file in sorted(RECORDS.glob("*.json"))}


def _process_environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def find_marked_processes(name: str | None = None) -> list[ProcessIdentity]:
    """Return the processes with `MARK` in their environment: the daemon `name`, or all daemons, and their descendants.

    Descendants are, for example, containerd's shims.
    """
    wanted = f"{MARK}={name}".encode() if name else f"{MARK}=".encode()
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and any(
            word == wanted if name else word.startswith(wanted)
            for word in _process_environment(int(entry.name))
        ):
            process = identify_process(int(entry.name))
            if process:
                found.append(process)
    return found


def _is_shim(process: ProcessIdentity) -> bool:
    try:
        return (_PROC / str(process.pid) / "exe").readlink().name.startswith("containerd-shim")
    except OSError:
        return False


def start_daemon(name: str, argv: Sequence[str | Path]) -> bool:
    """Start a daemon unless it is running, and return whether it was started; its output goes to `logs/<name>.log`."""
    if running_daemon(name):
        return False
    terminate_processes(
        process for process in find_marked_processes(name) if not _is_shim(process)
    )  # one whose record was lost
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    if log.exists():
        log.replace(LOGS / f"{name}.log.1")
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**_clean_environment(), MARK: name},
            start_new_session=True,
        )
    process = identify_process(child.pid)
    if process is None:
        raise LocalError(
            f"{name} exited immediately after its start. Fix: correct the cause in its log, then run make cluster:\n"
            f"{log_tail(name)}"
        )
    write_file_atomically(RECORDS / f"{name}.json", json.dumps(asdict(process)) + "\n")
    _children[process.pid] = child
    return True


_children: dict[
    int, subprocess.Popen[bytes]
] = {}  # kept, so that exited children are reaped without a warning


def _clean_environment() -> dict[str, str]:
    """Return the inherited variables of a daemon: no KUBECONFIG, no proxies, no credentials of the user."""
    kept = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
    return {key: os.environ[key] for key in kept if key in os.environ}


def log_tail(name: str) -> str:
    """Return the end of a daemon's log for use in a message."""
    log = LOGS / f"{name}.log"
    return indent_last_lines(log.read_text(errors="replace")) if log.exists() else "    (the log is empty)"


def check_daemon_runs(name: str) -> None:
    """Raise LocalError with the end of the log if the daemon is not running."""
    if running_daemon(name) is None:
        raise LocalError(
            f"{name} has exited. Fix: correct the cause in {LOGS / (name + '.log')}, then run make cluster:\n"
            f"{log_tail(name)}"
        )


def stop_daemons(*names: str, seconds: float = 10) -> None:
    """Delete the records of these daemons, then stop them with SIGTERM, after `seconds` with SIGKILL.

    If this process is killed meanwhile, `start_daemon` finds no record, and so does not take a daemon that is
    still shutting down for a running one.
    """
    running = [process for process in map(running_daemon, names) if process]
    for name in names:
        (RECORDS / f"{name}.json").unlink(missing_ok=True)
    terminate_processes(running, seconds)


def terminate_processes(processes: Iterable[ProcessIdentity], seconds: float = 10) -> None:
    """Send SIGTERM to all processes, and SIGKILL to those that still run after `seconds`; wait for their exit.

    Raises:
        LocalError: A process still runs 5 s after SIGKILL, because it hangs in the kernel.
    """
    left = list(processes)
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in left:
            _send_signal(process, number)
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            for process in left:
                if process.pid in _children:
                    _children[process.pid].poll()
            left = [process for process in left if is_alive(process)]
            if left:
                time.sleep(0.03)
    if left:
        raise LocalError(
            f"processes {[process.pid for process in left]} still run 5 s after SIGKILL, because they hang in the "
            "kernel. Fix: restart this machine"
        )


def _send_signal(process: ProcessIdentity, number: int) -> None:
    """Send a signal to exactly this process: open a pidfd first, then check the identity again."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
