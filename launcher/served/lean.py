"""Paddle's inference without the rest of Paddle, whose import is half of a server's start.

Inference is one compiled module. A model's program says `import paddle` at its head, for a network() that
nobody calls here: it gets a stand-in, which brings Paddle itself as soon as something of it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from . import kernels

NAME, BASE = "paddle", "paddle.base"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


def core() -> Any:
    """The module `paddle.base.core`. Raises `ImportError`."""
    kernels.take_fast()
    if NAME in sys.modules:
        return importlib.import_module(f"{BASE}.core")
    spec = importlib.util.find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {NAME!r}", name=NAME)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Paddle's own import does
    [folder] = spec.submodule_search_locations
    for name, path in ((NAME, folder), (BASE, f"{folder}/base")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [path]  # its modules are found, and its own code does not run
    try:
        return importlib.import_module(f"{BASE}.core")
    finally:
        del sys.modules[BASE], sys.modules[NAME]


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """`import paddle` gives the stand-in here, unless Paddle is loaded."""
    own = sys.modules.setdefault(NAME, _StandIn(NAME))
    try:
        yield
    finally:
        if isinstance(own, _StandIn) and sys.modules.get(NAME) is own:
            del sys.modules[NAME]
