"""Tests of which MKL kernels Paddle's library uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.serving.paddle_served import mkl_kernels
from tests.launcher.trainer.conftest import run_python

AMD = "processor : 0\nvendor_id : AuthenticAMD\nflags : fpu fma avx avx2 sse4a\n\nprocessor : 1\n"
PRINT_KERNELS = """
import ctypes
from pathlib import Path
import paddle  # its MKL is loaded, and has not looked at the processor yet
from launcher.serving.paddle_served import mkl_kernels, light_import
from launcher.trainer.graph import network_builder
mkl_kernels.CPUINFO = Path({cpuinfo!r})
{way}
mkl = Path(paddle.__file__).parent / "libs" / "libmklml_intel.so"
print("kernels", ctypes.CDLL(str(mkl)).mkl_serv_cpu_detect())
"""


@pytest.fixture(autouse=True)
def without_kernel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mkl_kernels.CHOICE, "")  # so that monkeypatch restores what a test sets
    monkeypatch.delenv(mkl_kernels.CHOICE)


def read_used_kernels(way: str, cpuinfo: Path) -> str:
    """Return the kernels that the library reports in its own process."""
    printed = run_python(PRINT_KERNELS.format(way=way, cpuinfo=str(cpuinfo)))
    return next(line for line in printed.splitlines() if line.startswith("kernels")).split()[1]


@pytest.mark.paddle
@pytest.mark.parametrize(
    "way",
    ["light_import.import_inference()", "network_builder.prepare_paddle(1)"],
    ids=["served", "training"],
)
def test_the_library_uses_avx2_on_processors_of_other_makers(tmp_path: Path, way: str) -> None:
    """MKL reports 5 for AVX2; by default it chooses other kernels on AMD processors."""
    if "avx2" not in mkl_kernels.CPUINFO.read_text():
        pytest.skip("this processor has no AVX2")
    (tmp_path / "cpuinfo").write_text(AMD)
    assert read_used_kernels(way, tmp_path / "cpuinfo") == mkl_kernels.AVX2
    if "AuthenticAMD" in mkl_kernels.CPUINFO.read_text():
        assert read_used_kernels(way, tmp_path / "none") != mkl_kernels.AVX2


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
def test_avx2_is_requested_only_where_the_processor_has_it_and_mkl_would_not_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, chosen: str | None
) -> None:
    monkeypatch.setattr(mkl_kernels, "CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        mkl_kernels.CPUINFO.write_text(cpuinfo)
    mkl_kernels.prefer_avx2()
    assert os.environ.get(mkl_kernels.CHOICE) == chosen


def test_the_environment_variable_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl_kernels, "CPUINFO", tmp_path / "cpuinfo")
    mkl_kernels.CPUINFO.write_text(AMD)
    monkeypatch.setenv(mkl_kernels.CHOICE, "4")
    mkl_kernels.prefer_avx2()
    assert os.environ[mkl_kernels.CHOICE] == "4"
