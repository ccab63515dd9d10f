"""Make MKL, Paddle's library for matrices, use AVX2 on processors that are not from Intel."""

from __future__ import annotations

import os
from pathlib import Path

CHOICE = "MKL_DEBUG_CPU_TYPE"
AVX2 = "5"
CPUINFO = Path("/proc/cpuinfo")


def prefer_avx2() -> None:
    """Set MKL_DEBUG_CPU_TYPE for AVX2, if the processor has it. Call this before the first matrix product.

    The MKL in PaddlePaddle 2.6.2 (2019.0.5) checks the processor's vendor and uses SSE if it is not Intel:
    8,550 samples per second of a 400-400-400 network instead of 19,550 (AMD EPYC, one thread). A value that
    the environment already has stays. MKL's manual does not describe the variable; a test asks the library
    which kernels it uses.
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
