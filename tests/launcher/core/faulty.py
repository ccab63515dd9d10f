"""Storage that fails: chosen calls on chosen paths give a chosen errno, as often as is asked for."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

CALLS: dict[str, tuple[tuple[Any, str], ...]] = {
    "open": ((os, "open"), (io, "open")),  # pathlib's own way is the second
    **{name: ((os, name),) for name in ("stat", "statvfs", "rename", "replace", "link", "unlink", "mkdir")},
    "list": ((os, "listdir"), (os, "scandir")),
    **{name: ((os, name),) for name in ("pread", "pwrite", "fsync")},
}


class Fault:
    """One kind of fault. `hits`: how often it happened."""

    def __init__(self, path: str, error: int, times: float, then: Callable[[], None]) -> None:
        self.path, self.error, self.times, self.then = path, error, times, then
        self.hits = 0

    def maybe(self, where: object) -> None:
        name = _name(where)
        if self.hits < self.times and fnmatch.fnmatch(name, self.path):
            self.hits += 1
            self.then()
            if self.error:
                raise OSError(
                    self.error, os.strerror(self.error), name if isinstance(where, str | Path) else None
                )


def _name(where: object) -> str:
    if isinstance(where, int):  # a file descriptor
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/fd/{where}").readlink()).removesuffix(" (deleted)")
        return ""
    return str(where)


@contextlib.contextmanager
def faulty(
    call: str, path: str, error: int = 0, times: float = float("inf"), then: Callable[[], None] = lambda: None
) -> Iterator[Fault]:
    """Inside the block the first `times` calls of `CALLS` on a path like `path` (with `*`) fail with `error`.

    `then` runs at that moment, before the failure; without an `error` the call goes on behind it.
    """
    fault = Fault(path, error, times, then)

    def broken(real: Any) -> Any:
        def replaced(where: Any, *args: Any, **kwargs: Any) -> Any:
            fault.maybe(where)
            return real(where, *args, **kwargs)

        return replaced

    with contextlib.ExitStack() as stack:
        for module, name in CALLS[call]:
            stack.enter_context(mock.patch.object(module, name, broken(getattr(module, name))))
        yield fault
