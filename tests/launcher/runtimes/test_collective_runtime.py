"""Tests of runtime collective.

They check the command line and environment of a script's processes, rejected images, and when a run is complete.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import SettingsError
from launcher.io import run_record
from launcher.paths import OutputPaths, Position
from launcher.program import ScriptRun
from launcher.runtimes.collective import CollectiveRuntime
from launcher.runtimes.runtime_protocol import LogMeaning, RankAttempt
from launcher.schema import RunFile
from launcher.settings import TrainSettings
from tests.launcher.supervisor.loopback_gang import REPO, pod_environ

RUNTIME = CollectiveRuntime()


def attempt(tmp_path: Path, rank: int = 0, resume: Position | None = None, **env: str) -> RankAttempt:
    """Return an attempt of two pods with two processes each."""
    values = {
        "JOB_PATH": str(tmp_path),
        "runtime": "collective",
        "config_file": "mine/train.py",
        "trainers": 2,
        "processes_per_pod": 2,
        "PADDLE_LAUNCHER_WORK_DIR": str(tmp_path / "work"),
        "JOB_COMPLETION_INDEX": str(rank),
        **env,
    }
    settings = TrainSettings.from_environ(pod_environ(**values))
    return RankAttempt(rank, ("10.0.0.1", "10.0.0.2"), settings, 3, resume, "/trainers/3/secret")


def test_the_processes_have_the_variables_of_paddle_distributed_and_torchrun(tmp_path: Path) -> None:
    specs = [*RUNTIME.trainers(attempt(tmp_path)), *RUNTIME.trainers(attempt(tmp_path, 1))]
    for rank, spec in enumerate(specs):
        expected = {
            "PADDLE_MASTER": "10.0.0.1:7166",
            "PADDLE_GLOBAL_SIZE": "4",
            "PADDLE_LOCAL_SIZE": "2",
            "PADDLE_GLOBAL_RANK": str(rank),
            "PADDLE_LOCAL_RANK": str(rank % 2),
            "PADDLE_NNODES": "2",
            "PADDLE_CURRENT_ENDPOINT": f"10.0.0.{1 + rank // 2}:{7164 + rank % 2}",
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": "4",
            "PADDLE_RANK_IN_NODE": str(rank % 2),
            "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:7164,10.0.0.1:7165,10.0.0.2:7164,10.0.0.2:7165",
            "PADDLE_DISTRI_BACKEND": "gloo",
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "GROUP_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "4",
            "TORCHELASTIC_RUN_ID": "quick-start-0a1b2c3d",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "7166",
        }
        found = {name: spec.env.get(name) for name in expected}
        assert found == expected
        assert not {name for name in spec.env if name.startswith("FLAGS_selected")}
    assert [spec.ready_ports for spec in specs] == [(7166,), (), (), ()], "only process 0 listens"
    assert [spec.log.name for spec in specs[:2]] == ["train.log", "train-1.log"]
    assert len({spec.env["PADDLE_LAUNCHER_PROGRESS_FILE"] for spec in specs[:2]}) == 2


def test_the_command_line_is_the_script_with_the_extra_arguments(tmp_path: Path) -> None:
    here = attempt(tmp_path, extra_args=["--lr=0.1"])
    spec = RUNTIME.trainers(here)[0]
    assert spec.argv == (sys.executable, "-u", "train.py", "--lr=0.1")
    assert spec.cwd == here.settings.work.program
    assert RUNTIME.pservers(here) == []


@pytest.mark.parametrize(("processes", "expected"), [("1", ["0,1,2"]), ("3", ["0", "1", "2"])])
def test_gpus_are_assigned_to_processes_as_by_paddles_launcher(
    tmp_path: Path, processes: str, expected: list[str]
) -> None:
    env = {"gpus_per_pod": 3, "processes_per_pod": processes}
    specs = RUNTIME.trainers(attempt(tmp_path, CONF_PADDLE_PORTS_NUM="3", **env))
    assert [spec.env["FLAGS_selected_gpus"] for spec in specs] == expected
    assert "PADDLE_DISTRI_BACKEND" not in specs[0].env


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("net1", "=net1")),
        ({"GLOO_SOCKET_IFNAME": "net2"}, ("net2", "=net1")),
        ({"NCCL_SOCKET_IFNAME": "^lo"}, ("net1", "^lo")),
    ],
)
def test_gloo_and_nccl_use_the_network_interface_of_the_chart_unless_extra_env_sets_another(
    tmp_path: Path, given: dict[str, str], expected: tuple[str, str]
) -> None:
    spec = RUNTIME.trainers(attempt(tmp_path, CONF_PADDLE_NIC="net1", **given))[0]
    assert (spec.env["GLOO_SOCKET_IFNAME"], spec.env["NCCL_SOCKET_IFNAME"]) == expected


def test_variables_of_the_device_plugin_and_of_nccl_reach_the_script_unchanged(tmp_path: Path) -> None:
    given = {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_DEBUG": "INFO"}
    spec = RUNTIME.trainers(attempt(tmp_path, gpus_per_pod=2, **given))[1]
    assert {name: spec.env.get(name) for name in given} == given
    assert "CUDA_VISIBLE_DEVICES" not in spec.env, (
        "FLAGS_selected_gpus and LOCAL_RANK count all GPUs of the pod"
    )


def install_paddle(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Let `import paddle` find a package with this version file, or one without such a file."""
    (folder / "paddle" / "version").mkdir(parents=True)
    (folder / "paddle" / "__init__.py").write_text(
        "raise RuntimeError('the launcher must not import Paddle')"
    )
    if version is not None:
        (folder / "paddle" / "version" / "__init__.py").write_text(version)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "paddle", raising=False)


@pytest.mark.parametrize(
    ("version", "gpus", "is_rejected"),
    [
        ("full_version     = '3.3.1'\ncuda_version     = 'False'\ncudnn_version    = 'False'\n", "2", True),
        ("full_version     = '3.3.1'\ncuda_version     = 'False'\ncudnn_version    = 'False'\n", "0", False),
        ("full_version     = '3.3.1'\ncuda_version     = '12.6'\ncudnn_version    = '9.5.1'\n", "2", False),
        ("full_version     = '3.3.1'\nxpu_cuda_version = 'False'\n", "2", False),
        ("full_version     = '3.3.1'\ncuda_version     = 'False'\nhip_version      = None\n", "2", True),
        ("full_version     = '3.3.1'\ncuda_version     = 'False'\nhip_version      = '6.1'\n", "2", False),
        (None, "2", False),
    ],
)
def test_gpus_are_rejected_when_the_paddle_of_the_image_is_built_without_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, gpus: str, is_rejected: bool
) -> None:
    install_paddle(tmp_path / "packages", monkeypatch, version)
    settings = attempt(tmp_path, gpus_per_pod=gpus).settings
    if not is_rejected:
        RUNTIME.check(settings)
        return
    with pytest.raises(
        SettingsError, match=r"\(GPUs\) is 2, but must be absent with this image.* Fix: install paddl"
    ):
        RUNTIME.check(settings)


def test_gpus_are_accepted_in_an_image_without_paddle_and_in_one_with_another_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = attempt(tmp_path, gpus_per_pod=2).settings
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "paddle", None)  # as if not installed
        RUNTIME.check(settings)
    install_paddle(tmp_path / "packages", monkeypatch, "cuda_version     = 'False'\n")
    (tmp_path / "packages" / "torch").mkdir()
    (tmp_path / "packages" / "torch" / "__init__.py").touch()
    RUNTIME.check(settings)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (  # PaddlePaddle 2.6.2
            "AttributeError: module 'paddle.base.libpaddle' has no attribute 'ProcessGroupGloo'. Did you mean: …",
            "-DWITH_GLOO=ON",
        ),
        (
            "ERROR: Unexpected BUS error encountered in DataLoader worker. This might be caused by insufficient "
            "shared memory (shm), please check whether use_shared_memory is set",
            "training.sharedMemory",
        ),
        (
            "misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-cjY8K5",
            "training.sharedMemory",
        ),
    ],
)
def test_lines_of_a_failed_script_are_explained(line: str, fix: str) -> None:
    assert fix in find_meaning(line).why.partition("Fix: ")[2]


def find_meaning(line: str) -> LogMeaning:
    return next(one for one in RUNTIME.log_meanings if re.search(one.pattern, line, re.IGNORECASE))


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total)",
        "RuntimeError: CUDA error: out of memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
        "Out of memory error on GPU 0. Cannot allocate 15.503906GB memory on GPU 0, 28.770508GB memory has been",
        "OSError: (External) CUDA error(2), out of memory. ",
        "  [Hint: 'cudaErrorMemoryAllocation'. The API call failed because it was unable to allocate enough memory",
        "node:12:34 [0] transport.cc:183 NCCL WARN Cuda failure 2 'out of memory'",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17 bytes.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_a_full_memory_of_a_gpu_is_named_with_a_fix(line: str) -> None:
    meaning = find_meaning(line)
    assert meaning.why.startswith("The memory of a GPU is full")
    assert "batch size" in meaning.why.partition("Fix: ")[2]
    assert not meaning.ends_pod, "a new pod would not have more memory"


@pytest.mark.parametrize(
    ("line", "priority"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", 0),
        ("ExternalError: CUDA error(214), uncorrectable ECC error encountered.", 0),
        (
            "  [Hint: 'cudaErrorECCUncorrectable'. This indicates that an uncorrectable ECC error was detected",
            0,
        ),
        ("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error", 0),
        ("  what():  CUDA error: uncorrectable NVLink error detected during the execution", 0),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", 0),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", 0),
        ("NVRM: Xid (PCI:0000:00:1e): 79, pid=1234, GPU has fallen off the bus.", 0),
        ("Xid 48: double bit ECC error", 0),
        ("Unable to determine the device handle for GPU 0000:03:00.0: Unknown Error", 0),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error",
            2,
        ),
        ("ExternalError: NCCL error(1), unhandled cuda error (run with NCCL_DEBUG=INFO for details).", 2),
        ("NCCL error(3), internal error - please report this issue to the NCCL developers.", 2),
        ("CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized", 0),
        ("OSError: (External) CUDA error(714), hardware stack error. ", 0),
        ("  [Hint: 'cudaErrorDevicesUnavailable'. This indicates that all CUDA devices are in use", 0),
        ("NCCL error: remote process exited or there was a network error, NCCL version 2.21.5", 3),
        ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", 3),
        (
            "ncclSystemError: System call failed. It can be also caused by unexpected exit of a remote peer.",
            3,
        ),
        ("[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12) ran for …", 3),
        ("RuntimeError: [gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]", 3),
    ],
)
def test_a_broken_gpu_or_its_connection_ends_the_pod_and_a_lost_peer_does_not(
    line: str, priority: int
) -> None:
    meaning = find_meaning(line)
    assert (meaning.priority, meaning.ends_pod) == (priority, priority < 3)
    assert ("kubectl cordon {node}" in meaning.why.partition("Fix: ")[2]) == (priority < 3)


@pytest.mark.parametrize(
    "line",
    [
        "HTTPError: 503: the server is busy or unavailable, try again later",
        "sounddevice.PortAudioError: device unavailable",
        "RuntimeError: storage system not yet initialized",
        "sample 7: 'the printer shows a hardware error'",
    ],
)
def test_similar_lines_of_a_program_do_not_blame_a_gpu(line: str) -> None:
    assert not any(re.search(one.pattern, line, re.IGNORECASE) for one in RUNTIME.log_meanings)


def test_variables_of_the_pod_that_configure_a_distribution_are_not_passed_on(tmp_path: Path) -> None:
    dirty = {"PADDLE_PSERVERS_IP_PORT_LIST": "x", "FLAGS_selected_gpus": "7", "TRAINING_ROLE": "PSERVER"}
    spec = RUNTIME.trainers(attempt(tmp_path, OMP_NUM_THREADS="4", FLAGS_use_mkldnn="1", **dirty))[0]
    assert not set(dirty) & set(spec.env)
    assert (spec.env["OMP_NUM_THREADS"], spec.env["FLAGS_use_mkldnn"]) == ("4", "1")


def test_variables_of_paddle_that_describe_no_distribution_reach_the_script(tmp_path: Path) -> None:
    given = {"PADDLE_PG_TIMEOUT": "60000", "PADDLE_LOSS_SCALE": "2", "PADDLE_PDX_MODEL_SOURCE": "bos"}
    spec = RUNTIME.trainers(attempt(tmp_path, **given))[1]
    assert {name: spec.env.get(name) for name in given} == given


def test_the_python_path_of_the_pod_reaches_the_script_and_the_launcher_stays_importable(
    tmp_path: Path,
) -> None:
    here = attempt(tmp_path, PYTHONPATH="/opt/image", PADDLE_LAUNCHER_PYTHONPATH="/mine:lib")
    search = RUNTIME.trainers(here)[0].env["PYTHONPATH"].split(":")
    assert search[:2] == ["/mine", "lib"]
    assert {"/opt/image", str(REPO)} < set(search)


def test_a_script_run_reads_the_variables_that_the_runtime_sets(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    env = {"passes": 7, "batch_size": 64}
    run = ScriptRun(RUNTIME.trainers(attempt(tmp_path, 1, **env))[1].env)
    assert (run.rank, run.world_size, run.epochs, run.batch_size) == (3, 4, 7, 64)
    assert (run.train_file, run.test_file) == (tmp_path / "work" / "data" / "train.txt", None)
    assert run.output == tmp_path / "quick-start" / "output"
    assert (run.start, run.checkpoint) == ((0, 0), None)
    assert json.loads((tmp_path / "work" / "progress-1.json").read_text())["state"] == "starting"


@pytest.mark.parametrize(
    ("record", "is_complete"),
    [
        (None, False),
        (RunFile(state="training", passes=10), False),
        (RunFile(state="complete", passes=10), True),
        (RunFile(state="complete", passes=9), False),
    ],
)
def test_a_run_is_complete_by_its_record_unless_more_passes_are_wanted(
    tmp_path: Path, record: RunFile | None, is_complete: bool
) -> None:
    settings = attempt(tmp_path).settings
    if record is not None:
        run_record.write(OutputPaths(tmp_path), record)
    assert RUNTIME.is_complete(tmp_path, settings) is is_complete


START = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "paddle", "boto3", "pandas", "matplotlib")))  # their import fails
import launcher.__main__, launcher.program, launcher.settings, launcher.supervisor.agent
from launcher import runtimes
runtimes.load_runtime("collective")
heavy = [name for name in sys.modules if name.startswith(("launcher.trainer.network", "launcher.trainer.record_files"))]
assert not heavy, heavy
"""


@pytest.mark.slow
def test_the_launcher_of_a_script_imports_neither_numpy_nor_paddle() -> None:
    done = subprocess.run(
        [sys.executable, "-c", START], cwd=REPO, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
