"""Programs that know no launcher (tests/foreign_programs) run unmodified in gangs on loopback, also after a kill.

They have their own arguments, packages, checkpoints and outputs.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from launcher.cli.errors import CliError, UsageError
from launcher.cli.packages import PythonEnvironment, install_packages, pack_files, package_files
from launcher.dataprep.parquet_rows import encode_rows
from local.launcher_image import ensure_collective_python
from testkit.written_data import write_data
from tests.launcher.supervisor.loopback_gang import REPO, LoopbackGang

pytestmark = [pytest.mark.slow, pytest.mark.paddle]

PROGRAMS = REPO / "tests" / "foreign_programs"
PADDLENLP = """paddlenlp==2.8.1
aistudio-sdk==0.2.6
huggingface_hub<0.25
datasets<3
pandas<3
pyarrow<20
"""
"""PaddleNLP's own requirements have no upper limits; this is what it was written for."""


@dataclass(frozen=True)
class Foreign:
    """A program, its command line, and what is seen of it."""

    name: str
    """Its file, or the path of its script in its folder."""
    args: list[str]
    kill_at: str
    """Text in the log of rank 0 at which a process of rank 1 is killed."""
    resumed: str
    """Text in the log after the restart."""
    outputs: tuple[str, ...]
    """Patterns of files below output/ at the end."""
    settings: dict[str, Any] = field(default_factory=dict)
    paddle: str = "3.3.1"
    packages: str = ""


SERVERS = {"runtime": "ps", "servers": 2}
TRAINER = [
    "--max_steps",
    "60",
    "--save_steps",
    "20",
    "--logging_steps",
    "5",
    "--device",
    "cpu",
    "--report_to",
    "none",
]
FOREIGN = [
    pytest.param(
        Foreign(
            "hapi.py",
            ["--epochs", "8", "--save_dir", "{checkpoint_dir}"],
            kill_at="Epoch 3/8",
            resumed="resume training from epoch",
            outputs=("checkpoints/*.pdparams",),
        ),
        marks=pytest.mark.long,
    ),
    Foreign(
        "sharding.py",
        ["--save", "{checkpoint_dir}"],
        kill_at="step 30/60",
        resumed="resume from step 20",
        outputs=("checkpoints/60-0.pdopt", "checkpoints/60-1.pdopt"),
    ),
    Foreign(
        "rec/tools/static_ps_trainer.py",
        ["-m", "models/config.yaml", "-o", "runner.epochs=3", "runner.model_save_path={output_dir}/models"],
        kill_at="epoch: 0 done",
        resumed="epoch: 0 done",  # it starts from scratch
        outputs=("models/2/*",),
        settings={**SERVERS, "servers": 1},
        paddle="2.6.2",
    ),
    pytest.param(
        Foreign(
            "fleetx.py",
            ["--epochs=3", "--save_model_dir={output_dir}/model"],
            kill_at="epoch: 1, step: 5",
            resumed="epoch: 0, step: 0",
            outputs=("model/*",),
            settings=SERVERS,
            paddle="2.6.2",
        ),
        marks=pytest.mark.long,
    ),
    pytest.param(
        Foreign(
            "nlp_trainer.py",
            [
                *TRAINER,
                "--output_dir",
                "{checkpoint_dir}",
                "--per_device_train_batch_size",
                "2",
                "--disable_tqdm",
                "1",
            ],
            kill_at="global_step: 40",
            resumed="Continuing training from global step",
            outputs=("checkpoints/checkpoint-60/optimizer.pdopt",),
            paddle="2.6.2",
            packages=PADDLENLP,
        ),
        marks=pytest.mark.long,
    ),
    pytest.param(
        Foreign(
            "seg.py",
            ["--save_dir", "{checkpoint_dir}"],
            kill_at="iter: 30/60",
            resumed="iter: 32/60",
            outputs=("checkpoints/iter_60/model.pdparams",),
            settings={"FLAGS_set_to_1d": "1"},  # PaddleSeg 2.8.0 was written for Paddle 2.4
            paddle="2.6.2",
            packages="paddleseg==2.8.0\n",
        ),
        marks=pytest.mark.long,
    ),
]


def push_packages(folder: Path, requirements: str) -> str:
    """Write the archive with the packages to the storage in `folder`; return its sha256. Skips without an index."""
    file = folder / "requirements.txt"
    file.write_text(requirements)
    try:
        install_packages(file, PythonEnvironment.of_this_machine(), folder / "packages")
    except UsageError:
        raise
    except CliError as error:
        pytest.skip(str(error))
    digest = pack_files(package_files(folder / "packages"), folder / "packages.tar.gz")
    (folder / "shared" / ".packages").mkdir()
    (folder / "packages.tar.gz").rename(folder / "shared" / ".packages" / f"{digest}.tar.gz")
    return digest


@pytest.mark.parametrize("program", FOREIGN, ids=lambda program: Path(program.name).stem)
def test_a_program_that_knows_no_launcher_survives_a_kill(tmp_path: Path, program: Foreign) -> None:
    folder, _, script = (
        program.name.rpartition("/") if "/" not in program.name else program.name.partition("/")
    )
    changes = {
        "trainers": 2,
        "runtime": "collective",
        "config_file": f"mine/{script or program.name}",
        "args": program.args,
        "data_digest": "none",
        "passes": 1,
        "restarts": 2,
        "rendezvous_seconds": 60,
        "CONF_PADDLE_PORT": str(20_000 + os.getpid() % 1000 * 10),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "timings": {"silence": 15.0, "orphan": 15.0},
        **program.settings,
    }
    (tmp_path / "shared").mkdir()
    if program.packages:
        changes["packages"] = push_packages(tmp_path, program.packages)
    python = ensure_collective_python() if program.paddle == "3.3.1" else Path(sys.executable)
    with LoopbackGang(tmp_path, python=python, **changes) as gang:
        if folder:
            shutil.copytree(PROGRAMS / folder, gang.job / "mine", dirs_exist_ok=True)
        else:
            shutil.copy(PROGRAMS / program.name, gang.job / "mine")
        gang.start().wait_until(lambda: program.kill_at in gang.read_log(0), 100)
        gang.wait_until(lambda: gang.read_json("status.json").get("logProgress"), 20)
        role = "TRAINING_ROLE=TRAINER" if "servers" in program.settings else Path(program.name).name
        os.kill(gang.find_pids(1, role)[0], signal.SIGKILL)
        assert gang.wait_for_exit(200) == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert "SIGKILL" in run["restarts"][0]["cause"]
        assert program.resumed in gang.read_log(0)
        assert [pattern for pattern in program.outputs if not list(gang.output.glob(pattern))] == []


def test_files_in_the_working_folder_are_kept_or_named_in_the_log(tmp_path: Path) -> None:
    program = "import os, pathlib\npathlib.Path('logs/deep').mkdir(parents=True)\n"
    for name, size in (("final.pdparams", 3), ("logs/deep/a.pdparams", 5), ("cache.bin", 7)):
        program += f"pathlib.Path('{name}').write_bytes(b'x' * {size})\n"
    (tmp_path / "shared").mkdir()
    changes = {"trainers": 2, "runtime": "collective", "config_file": "mine/train.py", "data_digest": "none"}
    with LoopbackGang(tmp_path, passes=1, keep_files=["*.pdparams"], **changes) as gang:
        (gang.job / "mine" / "train.py").write_text(program)
        assert gang.start().wait_for_exit(60) == [0, 0], gang.pod_log(0)
        for rank in range(2):
            kept = gang.output / f"node_{rank}" / "files"
            found = {
                path.relative_to(kept).as_posix(): path.read_bytes()
                for path in kept.rglob("*")
                if path.is_file()
            }
            assert found == {"final.pdparams": b"xxx", "logs/deep/a.pdparams": b"xxxxx"}
            assert "wrote 1 files (7 bytes) to its working folder" in gang.pod_log(rank)
            assert "cache.bin (7 bytes). Fix: " in gang.pod_log(rank)


SAVER = """
import os, pathlib, time
folder = pathlib.Path(os.environ["FOLDER"].format(output_dir=os.environ["PADDLE_LAUNCHER_OUTPUT_DIR"]))
print("found", sorted(path.name for path in folder.iterdir()), flush=True)
(folder / f"{os.environ['PADDLE_TRAINER_ID']}.pdparams").write_text("x")
if os.environ["PADDLE_LAUNCHER_ATTEMPT"] == "0" and os.environ["PADDLE_TRAINER_ID"] == "0":
    time.sleep(3)  # a status.json is written
    raise SystemExit("first attempt")
"""


@pytest.mark.parametrize("folder", ["saved/deep", "{output_dir}/weights"])
def test_the_folder_of_a_scripts_checkpoints_is_on_the_storage(folder: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    changes = {"trainers": 2, "runtime": "collective", "config_file": "mine/train.py", "data_digest": "none"}
    with LoopbackGang(
        tmp_path, passes=1, restarts=1, checkpoint_dir=folder, FOLDER=folder, **changes
    ) as gang:
        (gang.job / "mine" / "train.py").write_text(SAVER)
        assert gang.start().wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert "found ['0.pdparams', '1.pdparams']" in gang.read_log(1), "the second attempt"
        assert {path.name for path in (gang.output / "checkpoints").iterdir()} == {"0.pdparams", "1.pdparams"}
        status = gang.read_json("status.json")
        assert status["scriptFile"] in ("0.pdparams", "1.pdparams") and status["scriptFileWritten"] > 1e9
        assert "to its working folder, which are lost" not in gang.pod_log(0)


def test_files_in_the_place_of_the_checkpoint_folder_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    changes = {"trainers": 1, "runtime": "collective", "config_file": "mine/train.py", "data_digest": "none"}
    with LoopbackGang(tmp_path, passes=1, checkpoint_dir="saved", **changes) as gang:
        (gang.job / "mine" / "train.py").write_text("")
        (gang.job / "mine" / "saved").mkdir()
        (gang.job / "mine" / "saved" / "old.pdparams").write_text("x")
        assert gang.start().wait_for_exit(60) != [0]
        assert "must be a place without files" in gang.pod_log(0) and "Fix: remove the files" in gang.pod_log(
            0
        )


READER = """
import json, os
import pyarrow.parquet as pq
rows = {name: pq.read_table(os.environ[f"PADDLE_LAUNCHER_{name}_FILE"]).to_pylist() for name in ("TRAIN", "TEST")}
with open(os.environ["PADDLE_LAUNCHER_OUTPUT_DIR"] + f"/{os.environ['PADDLE_TRAINER_ID']}.json", "w") as file:
    json.dump(rows, file)
"""


def test_a_script_gets_its_shard_of_parquet_data_as_a_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    rows = [pa.RecordBatch.from_pylist([{"ids": [n, n + 1], "y": n / 2}]) for n in range(3)]
    parts = [encode_rows(rows[0]) + encode_rows(rows[1]), encode_rows(rows[1])]
    write_data(tmp_path / "shared" / "quick-start", parts, test=encode_rows(rows[2]))
    changes = {"trainers": 2, "runtime": "collective", "config_file": "mine/train.py", "passes": 1}
    with LoopbackGang(tmp_path, **changes) as gang:
        (gang.job / "mine" / "train.py").write_text(READER)
        assert gang.start().wait_for_exit(60) == [0, 0], gang.pod_log(0)
        first, second = (gang.read_json(f"{rank}.json") for rank in range(2))
        assert first["TRAIN"] == [{"ids": [0, 1], "y": 0.0}, {"ids": [1, 2], "y": 0.5}]
        assert second["TRAIN"] == first["TRAIN"][1:]
        assert first["TEST"] == second["TEST"] == [{"ids": [2, 3], "y": 1.0}]
