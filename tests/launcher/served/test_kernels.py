"""Which of MKL's kernels Paddle's own library takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.served import kernels
from tests.launcher.worker.conftest import needs_paddle

ROOT = Path(__file__).resolve().parents[3]
AMD = "processor : 0\nvendor_id : AuthenticAMD\nflags : fpu fma avx avx2 sse4a\n\nprocessor : 1\n"
ASKED = """
import ctypes
from pathlib import Path
import paddle  # its MKL is loaded, and has not looked at the processor yet
from launcher.served import kernels, lean
from launcher.worker import network
kernels.CPUINFO = Path({cpuinfo!r})
{way}
mkl = Path(paddle.__file__).parent / "libs" / "libmklml_intel.so"
print("kernels", ctypes.CDLL(str(mkl)).mkl_serv_cpu_detect())
"""


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.CHOICE, "")  # so that what a test sets is taken back behind it
    monkeypatch.delenv(kernels.CHOICE)


def taken(way: str, cpuinfo: Path) -> str:
    """What the library in a process of its own says."""
    argv = [sys.executable, "-c", ASKED.format(way=way, cpuinfo=str(cpuinfo))]
    done = subprocess.run(argv, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("kernels")).split()[1]


@needs_paddle
@pytest.mark.parametrize("way", ["lean.core()", "network.begin(1)"], ids=["served", "training"])
def test_the_library_takes_avx2_on_another_makers_processor(tmp_path: Path, way: str) -> None:
    """As its own numbers have it: 5 is AVX2; by itself it takes another one on a processor of AMD's."""
    if "avx2" not in kernels.CPUINFO.read_text():
        pytest.skip("this processor has no AVX2")
    (tmp_path / "cpuinfo").write_text(AMD)
    assert taken(way, tmp_path / "cpuinfo") == kernels.AVX2
    if "AuthenticAMD" in kernels.CPUINFO.read_text():
        assert taken(way, tmp_path / "none") != kernels.AVX2


@pytest.mark.parametrize(
    ("cpuinfo", "chosen"),
    [
        (AMD, "5"),
        (AMD.replace("AuthenticAMD", "GenuineIntel"), None),
        (AMD.replace("avx2", ""), None),
        (AMD.replace("fma", ""), None),
        (None, None),
    ],
    ids=["amd", "intel", "no-avx2", "no-fma", "no-cpuinfo"],
)
def test_it_is_asked_for_where_the_processor_has_it_and_mkl_would_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, chosen: str | None
) -> None:
    monkeypatch.setattr(kernels, "CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        kernels.CPUINFO.write_text(cpuinfo)
    kernels.take_fast()
    assert os.environ.get(kernels.CHOICE) == chosen


def test_what_the_environment_says_goes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CPUINFO", tmp_path / "cpuinfo")
    kernels.CPUINFO.write_text(AMD)
    monkeypatch.setenv(kernels.CHOICE, "4")
    kernels.take_fast()
    assert os.environ[kernels.CHOICE] == "4"
