"""The staged shard is parsed in a process of its own before the gang meets."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import children
from launcher.errors import ProcessError, StoppedError, UnfitError
from launcher.runtimes import fleet
from launcher.runtimes.base import ProcessSpec
from launcher.runtimes.fleet import FleetRuntime
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from launcher.storage.converting import convert
from launcher.timings import Timings
from tests.launcher.core.kit import environ

PROGRAM = """
from launcher.worker.interface import Ids, Real
COLUMNS = ("label", "id")
LABEL = "label"
def inputs(job): return {"ids": Ids(1), "label": Real()}
def parse(row, job): return {"ids": int(row["id"]), "label": float(row["label"])}
def network(data, job): ...
def metrics(prediction, label): ...
def optimizer(job): ...
"""


class Shell(FleetRuntime):
    """Its conversion is a line of Python."""

    def __init__(self, code: str, folder: Path) -> None:
        self.code, self.folder = code, folder

    def conversion(self, *_: Any) -> ProcessSpec:
        argv = (sys.executable, "-c", self.code)
        return ProcessSpec("parser", "convert", argv, {}, self.folder, self.folder / "logs" / "parse.log")


def settings(folder: Path) -> TrainSettings:
    return TrainSettings.from_environ(
        environ(JOB_PATH=str(folder), PADDLE_LAUNCHER_WORK_DIR=str(folder / "work"))
    )


def run(runtime: Any, folder: Path, pause: Any = lambda seconds: time.sleep(min(seconds, 0.05))) -> None:
    spec = runtime.conversion(settings(folder), 0, folder / "work" / "data", folder / "work" / "program")
    convert(spec, pause, lambda: None, Timings(poll=0.05, stop=1.0))


def test_a_parser_that_ends_well_lets_the_launcher_go_on(tmp_path: Path) -> None:
    run(Shell("print('parsed')", tmp_path), tmp_path)


@pytest.mark.parametrize("code", [64, 65, 70, 75])
def test_a_fault_of_data_program_or_disk_ends_the_run_with_the_parsers_own_words(
    tmp_path: Path, code: int
) -> None:
    text = f"print('much else\\n\\nerror: row 7: no number'); raise SystemExit({code})"
    with pytest.raises(
        ProcessError, match=rf"^the parser ended with exit code {code}: row 7: no number$"
    ) as e:
        run(Shell(text, tmp_path), tmp_path)
    assert e.value.exit_code == code


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(71)"])
def test_a_parser_that_is_killed_or_finds_its_disk_faulty_lets_another_pod_try(
    tmp_path: Path, end: str
) -> None:
    with pytest.raises(UnfitError) as e:
        run(Shell(f"import os; print('at work', flush=True); {end}", tmp_path), tmp_path)
    assert e.value.exit_code == 71
    assert "at work" in str(e.value)
    assert ("memory may be too small" in str(e.value)) == ("kill" in end)


def test_a_launcher_that_is_told_to_stop_leaves_no_parser_behind(tmp_path: Path) -> None:
    def stop(_: float) -> None:
        raise StoppedError("told to stop")

    began = time.monotonic()
    with pytest.raises(StoppedError):
        run(Shell("import time; time.sleep(60)", tmp_path), tmp_path, stop)
    assert time.monotonic() - began < 20
    assert not children.watched()


def test_the_end_of_an_attempts_children_is_not_the_parsers(tmp_path: Path) -> None:
    """A rank that has no contact to rank 0 kills what it runs of an attempt; parsing is of none."""
    killed: list[int] = []

    def pause(seconds: float) -> None:
        if not killed:
            killed.append(len(children.watched()))
            children.kill_all()
        time.sleep(min(seconds, 0.05))

    run(Shell("import time; time.sleep(0.3)", tmp_path), tmp_path, pause)
    assert killed == [1]


def test_fleet_parses_a_large_shard_beforehand_and_leaves_a_small_one_to_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    (work / "program").mkdir()
    (work / "data" / "train.txt").write_text("1\t5\n0\t6\n")
    (work / "data" / "test.txt").write_text("1\t7\n")
    (work / "program" / "trainer_config.py").write_text(PROGRAM)
    run(FleetRuntime(), tmp_path)
    assert not (work / "records").exists()
    monkeypatch.setattr(fleet, "CONVERT_BYTES", 1)
    run(FleetRuntime(), tmp_path)
    assert sorted(path.parent.name for path in work.glob("records/*/index.json")) == ["test", "train"]
    (work / "data" / "train.txt").write_text("1\t5\n0\tx\n")
    with pytest.raises(ProcessError, match=r"0/data/train\.txt, row 2: invalid literal .*'0\\tx'") as e:
        run(FleetRuntime(), tmp_path)
    assert e.value.exit_code == 65
    assert V1Runtime().conversion(settings(tmp_path), 0, work / "data", work / "program") is None
