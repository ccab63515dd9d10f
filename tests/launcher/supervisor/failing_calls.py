"""Let chosen file calls on chosen paths fail, to test errors of the storage."""

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
    "open": ((os, "open"), (io, "open")),  # pathlib uses the second one
    **{name: ((os, name),) for name in ("stat", "statvfs", "rename", "replace", "link", "unlink", "mkdir")},
    "list": ((os, "listdir"), (os, "scandir")),
    **{name: ((os, name),) for name in ("pread", "pwrite", "fsync")},
}


class InjectedFault:
    """One injected fault; `hits` counts how often it happened."""

    def __init__(self, path: str, error: int, times: float, then: Callable[[], None]) -> None:
        self.path, self.error, self.times, self.then = path, error, times, then
        self.hits = 0

    def apply(self, where: object) -> None:
        """Run `then` and raise the error if `where` matches the path and calls are left to fail."""
        name = _path_of(where)
        if self.hits < self.times and fnmatch.fnmatch(name, self.path):
            self.hits += 1
            self.then()
            if self.error:
                raise OSError(
                    self.error, os.strerror(self.error), name if isinstance(where, str | Path) else None
                )


def _path_of(where: object) -> str:
    """Return the path of a path or file descriptor as text."""
    if isinstance(where, int):  # a file descriptor
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/fd/{where}").readlink()).removesuffix(" (deleted)")
        return ""
    return str(where)


@contextlib.contextmanager
def fail_calls(
    call: str, path: str, error: int = 0, times: float = float("inf"), then: Callable[[], None] = lambda: None
) -> Iterator[InjectedFault]:
    """Let calls on matching paths fail inside the `with` block.

    Args:
        call: a key of `CALLS`.
        path: a pattern as for fnmatch.
        error: the errno to raise; 0 raises nothing.
        times: how many calls fail; later ones succeed.
        then: a function to run before each failure.
    """
    fault = InjectedFault(path, error, times, then)

    def wrap(real: Any) -> Any:
        def call_with_fault(where: Any, *args: Any, **kwargs: Any) -> Any:
            fault.apply(where)
            return real(where, *args, **kwargs)

        return call_with_fault

    with contextlib.ExitStack() as stack:
        for module, name in CALLS[call]:
            stack.enter_context(mock.patch.object(module, name, wrap(getattr(module, name))))
        yield fault
