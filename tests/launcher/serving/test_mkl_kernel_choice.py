"""Tests of which MKL kernels Paddle's library uses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.serving.paddle_served import paddle_inference
from tests.launcher.trainer.conftest import run_python

AMD = "processor : 0\nvendor_id : AuthenticAMD\nflags : fpu fma avx avx2 sse4a\n\nprocessor : 1\n"
PRINT_KERNELS = """
import ctypes, json, os, sys
from pathlib import Path
import paddle  # its MKL is loaded, and has not looked at the processor yet
from launcher.serving.paddle_served import paddle_inference
from launcher.trainer import network
mkl = Path(paddle.__file__).parent / "libs" / "libmklml_intel.so"
ways = {"served": paddle_inference.import_inference, "training": lambda: network.prepare_paddle(1)}
for way, cpuinfo in json.loads(sys.argv[1]):
    if child := os.fork():  # MKL looks at the processor once in a process
        os.waitpid(child, 0)
        continue
    paddle_inference.CPUINFO = Path(cpuinfo)
    ways[way]()
    print("kernels", ctypes.CDLL(str(mkl)).mkl_serv_cpu_detect(), flush=True)
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def without_kernel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paddle_inference.CHOICE, "")  # so that monkeypatch restores what a test sets
    monkeypatch.delenv(paddle_inference.CHOICE)


@pytest.mark.paddle
def test_the_library_uses_avx2_on_processors_of_other_makers(tmp_path: Path) -> None:
    """MKL reports 5 for AVX2; by default it chooses other kernels on AMD processors."""
    if "avx2" not in paddle_inference.CPUINFO.read_text():
        pytest.skip("this processor has no AVX2")
    (tmp_path / "cpuinfo").write_text(AMD)
    given = [(way, str(tmp_path / name)) for name in ("cpuinfo", "none") for way in ("served", "training")]
    printed = run_python(PRINT_KERNELS, json.dumps(given))
    used = [line.split()[1] for line in printed.splitlines() if line.startswith("kernels")]
    assert used[:2] == [paddle_inference.AVX2] * 2
    if "AuthenticAMD" in paddle_inference.CPUINFO.read_text():
        assert len(used) == 4
        assert paddle_inference.AVX2 not in used[2:]


@pytest.mark.parametrize(
    ("cpuinfo", "given", "chosen"),
    [
        (AMD, None, "5"),
        (AMD, "4", "4"),
        (AMD.replace("AuthenticAMD", "GenuineIntel"), None, None),
        (AMD.replace("avx2", ""), None, None),
        (AMD.replace("fma", ""), None, None),
        (None, None, None),
    ],
    ids=["amd", "variable", "intel", "no-avx2", "no-fma", "no-cpuinfo"],
)
def test_avx2_is_requested_only_where_the_processor_has_it_and_mkl_would_not_use_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpuinfo: str | None,
    given: str | None,
    chosen: str | None,
) -> None:
    """The environment variable takes precedence."""
    if given is not None:
        monkeypatch.setenv(paddle_inference.CHOICE, given)
    monkeypatch.setattr(paddle_inference, "CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        paddle_inference.CPUINFO.write_text(cpuinfo)
    paddle_inference.prefer_avx2()
    assert os.environ.get(paddle_inference.CHOICE) == chosen
