"""Tests of runtime collective.

They check the command line and environment of a script's processes, rejected images, and when a run is complete.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.errors import SettingsError
from launcher.io import run_record
from launcher.paths import OutputPaths, Position
from launcher.program import ScriptRun
from launcher.runtimes.collective import CollectiveRuntime
from launcher.runtimes.runtime_protocol import RankAttempt
from launcher.schema import RunFile
from launcher.settings import TrainSettings
from tests.launcher.supervisor.loopback_gang import REPO, pod_environ

RUNTIME = CollectiveRuntime()
HERE = Path(__file__).parent
LINES, VARIABLES = (
    yaml.safe_load((HERE / name).read_text("utf-8")) for name in ("log_lines.yaml", "script_variables.yaml")
)


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
        expected = {name: row[rank] if isinstance(row, list) else row for name, row in VARIABLES.items()}
        assert {name: spec.env.get(name) for name in expected} == expected
        assert not {name for name in spec.env if name.startswith("FLAGS_selected")}
    assert [spec.ready_ports for spec in specs] == [(7166,), (), (), ()], "only process 0 listens"
    assert [spec.log.name for spec in specs[:2]] == ["train.log", "train-1.log"]
    assert len({spec.env["PADDLE_LAUNCHER_PROGRESS_FILE"] for spec in specs[:2]}) == 2


def test_the_command_line_is_the_script_with_the_extra_arguments(tmp_path: Path) -> None:
    here = attempt(tmp_path, args=["--lr=0.1"])
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


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["line"][:40])
def test_a_line_of_a_failed_script_is_explained(row: dict[str, Any]) -> None:
    meaning = next((one for one in RUNTIME.log_meanings if one.search(row["line"])), None)
    if len(row) == 1:
        assert meaning is None
        return
    assert meaning is not None
    assert meaning.priority == row.get("priority", 1)
    assert meaning.ends_pod is (meaning.priority in (0, 2))
    assert meaning.why.startswith(row.get("why", ""))
    assert row.get("fix", "") in meaning.why.partition("Fix: ")[2]
    assert ("kubectl cordon {node}" in meaning.why.partition("Fix: ")[2]) is meaning.ends_pod


def test_the_pods_variables_reach_the_script_except_those_that_describe_a_distribution(
    tmp_path: Path,
) -> None:
    dirty = {"PADDLE_PSERVERS_IP_PORT_LIST": "x", "FLAGS_selected_gpus": "7", "TRAINING_ROLE": "PSERVER"}
    given = {
        "OMP_NUM_THREADS": "4",
        "FLAGS_use_mkldnn": "1",
        "PADDLE_PG_TIMEOUT": "60000",
        "PADDLE_LOSS_SCALE": "2",
    }
    given |= {"PADDLE_PDX_MODEL_SOURCE": "bos", "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "NCCL_DEBUG": "INFO"}
    here = attempt(tmp_path, gpus_per_pod=2, CUDA_DEVICE_ORDER="PCI_BUS_ID", **dirty, **given)
    spec = RUNTIME.trainers(here)[1]
    assert given.items() <= spec.env.items()
    assert not {"PADDLE_PSERVERS_IP_PORT_LIST", "TRAINING_ROLE"} & spec.env.keys()
    assert spec.env["FLAGS_selected_gpus"] != "7"
    assert "CUDA_VISIBLE_DEVICES" not in spec.env, (
        "FLAGS_selected_gpus and LOCAL_RANK count all GPUs of the pod"
    )


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


def test_a_run_is_complete_by_its_record_unless_more_passes_are_wanted(tmp_path: Path) -> None:
    settings = attempt(tmp_path).settings
    assert not RUNTIME.is_complete(tmp_path, settings)
    for state, passes, is_complete in (
        ("training", 10, False),
        ("complete", 10, True),
        ("complete", 9, False),
    ):
        run_record.write(OutputPaths(tmp_path), RunFile(state=state, passes=passes))
        assert RUNTIME.is_complete(tmp_path, settings) is is_complete
