"""Which of MKL's kernels a process takes."""

from __future__ import annotations

import os
from pathlib import Path

CHOICE = "MKL_DEBUG_CPU_TYPE"
AVX2 = "5"
CPUINFO = Path("/proc/cpuinfo")


def take_fast() -> None:
    """AVX2 on processors that have it; before the first product of matrices, or nothing changes.

    The MKL in PaddlePaddle 2.6.2 (2019.0.5) asks for the maker first, and takes SSE where it is not Intel:
    8,550 samples a second of a network of 400-400-400 and not 19,550 (AMD EPYC, one thread). What the
    environment says goes before. The variable is in no manual of MKL's; a test asks the library what it took.
    """
    if CHOICE not in os.environ and _avx2_of_another_maker():
        os.environ[CHOICE] = AVX2


def _avx2_of_another_maker() -> bool:
    try:
        first = CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        return False
    told = {
        key.strip(): value.split() for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    return told.get("vendor_id") != ["GenuineIntel"] and {"avx2", "fma"} <= set(told.get("flags", ()))
