"""Programs that know no launcher (tests/foreign_programs) run unmodified in gangs on loopback, also after a kill.

They have their own arguments, packages, checkpoints and outputs.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from launcher.cli.errors import CliError, UsageError
from launcher.cli.packages import PythonEnvironment, install_packages, pack_files, package_files
from launcher.dataprep.parquet_rows import encode_rows
from local.launcher_image import ensure_collective_python
from testkit.written_data import write_data
from tests.launcher.supervisor.loopback_gang import HERE, REPO, WITH_PADDLE, LoopbackGang

pytestmark = [pytest.mark.slow, pytest.mark.paddle]

PROGRAMS = REPO / "tests" / "foreign_programs"
GANG = {
    "trainers": 2,
    "runtime": "collective",
    "config_file": "mine/train.py",
    "data_digest": "none",
    "passes": 1,
}
FOREIGN = yaml.safe_load((HERE / "foreign_programs.yaml").read_text("utf-8"))


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
    (folder / "shared" / ".packages").mkdir(parents=True)
    (folder / "packages.tar.gz").rename(folder / "shared" / ".packages" / f"{digest}.tar.gz")
    return digest


@pytest.mark.long  # the tests below run the same mechanisms without Paddle
@pytest.mark.parametrize("program", FOREIGN.values(), ids=FOREIGN)
def test_a_program_that_knows_no_launcher_survives_a_kill(tmp_path: Path, program: dict[str, Any]) -> None:
    script, settings = Path(program["script"]), program.get("settings", {})
    changes = {**GANG, **WITH_PADDLE, "config_file": f"mine/{script}", "restarts": 2, **settings}
    if "packages" in program:
        changes["packages"] = push_packages(tmp_path, program["packages"])
    python = ensure_collective_python() if "paddle" not in program else Path(sys.executable)
    with LoopbackGang(tmp_path, python=python, args=program["args"], **changes) as gang:
        if "folder" in program:
            shutil.copytree(PROGRAMS / program["folder"], gang.job / "mine", dirs_exist_ok=True)
        else:
            shutil.copy(PROGRAMS / script, gang.job / "mine")
        gang.start().wait_until(lambda: program["kill_at"] in gang.read_log(0), 100)
        gang.wait_until(lambda: gang.read_json("status.json").get("logProgress"), 20)
        role = "TRAINING_ROLE=TRAINER" if "servers" in settings else script.name
        os.kill(gang.find_pids(1, role)[0], signal.SIGKILL)
        assert gang.wait_for_exit(200) == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert "SIGKILL" in run["restarts"][0]["cause"]
        assert program["resumed"] in gang.read_log(0)
        assert [pattern for pattern in program["outputs"] if not list(gang.output.glob(pattern))] == []


def test_files_in_the_working_folder_are_kept_or_named_in_the_log(tmp_path: Path) -> None:
    program = "import os, pathlib\npathlib.Path('logs/deep').mkdir(parents=True)\n"
    for name, size in (("final.pdparams", 3), ("logs/deep/a.pdparams", 5), ("cache.bin", 7)):
        program += f"pathlib.Path('{name}').write_bytes(b'x' * {size})\n"
    with LoopbackGang(tmp_path, keep_files=["*.pdparams"], **GANG) as gang:
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
    with LoopbackGang(tmp_path, restarts=1, checkpoint_dir=folder, FOLDER=folder, **GANG) as gang:
        (gang.job / "mine" / "train.py").write_text(SAVER)
        assert gang.start().wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert "found ['0.pdparams', '1.pdparams']" in gang.read_log(1), "the second attempt"
        assert {path.name for path in (gang.output / "checkpoints").iterdir()} == {"0.pdparams", "1.pdparams"}
        status = gang.read_json("status.json")
        assert status["scriptFile"] in ("0.pdparams", "1.pdparams") and status["scriptFileWritten"] > 1e9
        assert "to its working folder, which are lost" not in gang.pod_log(0)


def test_files_in_the_place_of_the_checkpoint_folder_are_an_error(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, checkpoint_dir="saved", **{**GANG, "trainers": 1}) as gang:
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
    rows = [pa.RecordBatch.from_pylist([{"ids": [n, n + 1], "y": n / 2}]) for n in range(3)]
    parts = [encode_rows(rows[0]) + encode_rows(rows[1]), encode_rows(rows[1])]
    write_data(tmp_path / "shared" / "quick-start", parts, test=encode_rows(rows[2]))
    with LoopbackGang(tmp_path, **{**GANG, "data_digest": "d1"}) as gang:
        (gang.job / "mine" / "train.py").write_text(READER)
        assert gang.start().wait_for_exit(60) == [0, 0], gang.pod_log(0)
        first, second = (gang.read_json(f"{rank}.json") for rank in range(2))
        assert first["TRAIN"] == [{"ids": [0, 1], "y": 0.0}, {"ids": [1, 2], "y": 0.5}]
        assert second["TRAIN"] == first["TRAIN"][1:]
        assert first["TEST"] == second["TEST"] == [{"ids": [2, 3], "y": 1.0}]
