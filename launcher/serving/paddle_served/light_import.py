"""Import Paddle's inference without the rest of Paddle, whose import takes half of a server's start.

Inference is one compiled module. A model's program has `import paddle` at its top, for a network() that is
never called here. It gets a stand-in module, which imports Paddle when the program uses an attribute of it.
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

from . import mkl_kernels

NAME, BASE = "paddle", "paddle.base"


class _StandIn(ModuleType):
    """Stands for the module `paddle`, and imports it when an attribute is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


def import_inference() -> Any:
    """Import and return the module `paddle.base.core`."""
    mkl_kernels.prefer_avx2()
    if NAME in sys.modules:
        return importlib.import_module(f"{BASE}.core")
    spec = importlib.util.find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {NAME!r}", name=NAME)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Paddle's own import does
    [folder] = spec.submodule_search_locations
    for name, path in ((NAME, folder), (BASE, f"{folder}/base")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [path]  # its modules can be imported, but its own code does not run
    try:
        return importlib.import_module(f"{BASE}.core")
    finally:
        del sys.modules[BASE], sys.modules[NAME]


@contextlib.contextmanager
def paddle_stand_in() -> Iterator[None]:
    """Let `import paddle` import the stand-in inside the block, unless Paddle is imported already."""
    own = sys.modules.setdefault(NAME, _StandIn(NAME))
    try:
        yield
    finally:
        if isinstance(own, _StandIn) and sys.modules.get(NAME) is own:
            del sys.modules[NAME]
