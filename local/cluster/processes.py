"""Daemons: started once, known by pid and start time, ended for certain.

A pid alone names nobody: numbers are used again. The record of a daemon therefore holds its start time too
(field 22
of /proc/<pid>/stat, clock ticks since boot) and the boot's id, and every daemon carries `MARK` in its
environment, by which daemons without a record are found after a crash.
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
from local.files import write_whole
from local.paths import STATE
from local.run import tail

RECORDS = STATE / "run"
LOGS = STATE / "logs"
MARK = "PADDLE_TRAINING_DAEMON"
_PROC = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """One process for all time: pid, start in clock ticks since boot, and the boot."""

    pid: int
    start: int
    boot: str


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_ticks(stat: str) -> int:
    """Field 22 of a /proc/<pid>/stat line; the name in field 2 may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[19])


def _state(stat: str) -> str:
    return stat.rpartition(")")[2].split()[0]


def identify(pid: int) -> Identity | None:
    """Who has this pid now; None when nobody, or only a zombie, has it."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if _state(stat) in "ZX" and not _has_threads(pid):
        return None
    return Identity(pid, start_ticks(stat), boot_id())


def _has_threads(pid: int) -> bool:
    """Whether a process whose first thread has ended has others, which still hold its ports and files."""
    try:
        return len(os.listdir(_PROC / str(pid) / "task")) > 1  # noqa: PTH208 - names only, of a moving folder
    except OSError:
        return False


def alive(who: Identity) -> bool:
    """Whether that very process still runs (another one under its pid does not count)."""
    return identify(who.pid) == who


def record(name: str) -> Identity | None:
    """The daemon of that name, if its record is there and it still runs."""
    try:
        who = Identity(**json.loads((RECORDS / f"{name}.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return who if alive(who) else None


def records() -> dict[str, Identity | None]:
    """All recorded daemons; None for one that no longer runs."""
    return {file.stem: record(file.stem) for file in sorted(RECORDS.glob("*.json"))}


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def marked(name: str | None = None) -> list[Identity]:
    """Processes that carry our mark: daemons and what inherited it from them (containerd's shims)."""
    wanted = f"{MARK}={name}".encode() if name else f"{MARK}=".encode()
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and any(
            word == wanted if name else word.startswith(wanted) for word in _environment(int(entry.name))
        ):
            who = identify(int(entry.name))
            if who:
                found.append(who)
    return found


def _is_shim(who: Identity) -> bool:
    try:
        return (_PROC / str(who.pid) / "exe").readlink().name.startswith("containerd-shim")
    except OSError:
        return False


def start(name: str, argv: Sequence[str | Path], env: dict[str, str] | None = None) -> bool:
    """Start a daemon unless it runs; True when it was started. Its output goes to `logs/<name>.log`."""
    if record(name):
        return False
    stop_all(who for who in marked(name) if not _is_shim(who))  # one whose record was lost
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
            env={**_clean_environment(), **(env or {}), MARK: name},
            start_new_session=True,
        )
    who = identify(child.pid)
    if who is None:
        raise LocalError(f"{name} ended as soon as it was started:\n{last_words(name)}")
    write_whole(RECORDS / f"{name}.json", json.dumps(asdict(who)) + "\n")
    _children[who.pid] = child
    return True


_children: dict[int, subprocess.Popen[bytes]] = {}  # kept so that ended children are reaped, not warned about


def _clean_environment() -> dict[str, str]:
    """What a daemon inherits: no KUBECONFIG, no proxies, no credentials of the person."""
    kept = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
    return {key: os.environ[key] for key in kept if key in os.environ}


def last_words(name: str) -> str:
    """The end of a daemon's log, for messages."""
    log = LOGS / f"{name}.log"
    return tail(log.read_text(errors="replace")) if log.exists() else "    (it wrote nothing)"


def check(name: str) -> None:
    """Raise LocalError with the log's end if the daemon no longer runs."""
    if record(name) is None:
        raise LocalError(f"{name} has ended; the end of {LOGS / (name + '.log')}:\n{last_words(name)}")


def stop(*names: str, seconds: float = 10) -> None:
    """End daemons of these names, by TERM, then KILL after `seconds`, and drop their records."""
    stop_all((who for who in map(record, names) if who), seconds)
    for name in names:
        (RECORDS / f"{name}.json").unlink(missing_ok=True)


def stop_all(whom: Iterable[Identity], seconds: float = 10) -> None:
    """TERM to each, one shared deadline, then KILL; returns when all are gone.

    Raises:
        LocalError: a process did not go even 5 s after KILL (it hangs in the kernel).
    """
    left = list(whom)
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for who in left:
            _send(who, number)
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            for who in left:
                if who.pid in _children:
                    _children[who.pid].poll()
            left = [who for who in left if alive(who)]
            if left:
                time.sleep(0.03)
    if left:
        raise LocalError(f"processes {[who.pid for who in left]} did not end 5 s after SIGKILL.")


def _send(who: Identity, number: int) -> None:
    """Signal exactly that process: the handle is opened first, then the identity is looked at once more."""
    try:
        handle = os.pidfd_open(who.pid)
    except OSError:
        return
    try:
        if alive(who):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
