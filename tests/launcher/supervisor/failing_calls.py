"""Let chosen file calls on chosen paths fail, to test errors of the storage."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

CALLS: dict[str, tuple[tuple[Any, str], ...]] = {
    "open": ((os, "open"), (io, "open")),  # pathlib uses the second one
    **{name: ((os, name),) for name in ("stat", "statvfs", "rename", "replace", "link", "unlink", "mkdir")},
    "list": ((os, "listdir"), (os, "scandir")),
    **{name: ((os, name),) for name in ("pread", "pwrite", "fsync")},
}


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
) -> Iterator[SimpleNamespace]:
    """Let calls on matching paths fail inside the `with` block; yield an object whose `hits` counts the failures.

    Args:
        call: a key of `CALLS`.
        path: a pattern as for fnmatch.
        error: the errno to raise; 0 raises nothing.
        times: how many calls fail; later ones succeed.
        then: a function to run before each failure.
    """
    fault = SimpleNamespace(hits=0)

    def wrap(real: Any) -> Any:
        def call_with_fault(where: Any, *args: Any, **kwargs: Any) -> Any:
            name = _path_of(where)
            if fault.hits < times and fnmatch.fnmatch(name, path):
                fault.hits += 1
                then()
                if error:
                    file = name if isinstance(where, str | Path) else None
                    raise OSError(error, os.strerror(error), file)
            return real(where, *args, **kwargs)

        return call_with_fault

    with contextlib.ExitStack() as stack:
        for module, name in CALLS[call]:
            stack.enter_context(mock.patch.object(module, name, wrap(getattr(module, name))))
        yield fault
