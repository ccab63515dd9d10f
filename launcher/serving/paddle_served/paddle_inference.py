"""Import Paddle's inference without the rest of Paddle, and choose fast kernels.

Inference is one compiled module of PaddlePaddle 2.6.2. An import of all of Paddle would take half of the time of a
start.

A model's program has `import paddle` at its top, because network() needs it; predictions never call network(). So the
program gets a stand-in for the module `paddle`. The stand-in imports Paddle only when the program uses one of its
attributes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

CHOICE = "MKL_DEBUG_CPU_TYPE"
AVX2 = "5"
CPUINFO = Path("/proc/cpuinfo")


def prefer_avx2() -> None:
    """Set MKL_DEBUG_CPU_TYPE for AVX2, if the processor is not from Intel and has AVX2 and FMA.

    Call this before the first matrix product.

    The MKL in PaddlePaddle 2.6.2 (2019.0.5) uses SSE on processors that are not from Intel: 8,550 samples per second of
    a 400-400-400 network instead of 19,550 (AMD EPYC, one thread). The variable makes MKL use AVX2 there. A value that
    the environment already has stays.

    MKL's manual does not describe the variable, so a test asks the library which kernels it uses.
    """
    if CHOICE not in os.environ and _has_avx2_but_is_not_intel():
        os.environ[CHOICE] = AVX2


def _has_avx2_but_is_not_intel() -> bool:
    try:
        first = CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        return False
    fields = {
        key.strip(): value.split() for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    return fields.get("vendor_id") != ["GenuineIntel"] and {"avx2", "fma"} <= set(fields.get("flags", ()))


NAME, BASE = "paddle", "paddle.base"


class _StandIn(ModuleType):
    """Stand-in for the module `paddle`. It imports the real module when one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


def import_inference() -> Any:
    """Import and return the module `paddle.base.core`.

    The rest of Paddle is not imported. Before the import, this function calls `prefer_avx2`, and sets the environment
    variable OMP_NUM_THREADS to 1 if it is not set and Paddle is not imported already.

    Raises:
        ModuleNotFoundError: Paddle is not installed.
    """
    prefer_avx2()
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
    """Make `import paddle` return the stand-in inside the block, unless Paddle is imported already."""
    own = sys.modules.setdefault(NAME, _StandIn(NAME))
    try:
        yield
    finally:
        if isinstance(own, _StandIn) and sys.modules.get(NAME) is own:
            del sys.modules[NAME]
