"""Tests of helper processes: parsing the staged shard before the rendezvous, and writing the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ProcessError, StoppedError, UnfitError
from launcher.io import run_record
from launcher.io.helper_protocol import HelperSpec, python_environ
from launcher.paths import OutputPaths, WorkPaths
from launcher.runtimes import fleet
from launcher.runtimes.fleet import FleetRuntime
from launcher.runtimes.v1 import V1Runtime
from launcher.schema import RunFile
from launcher.supervisor import child_processes
from launcher.supervisor.helper_processes import convert_shard, write_report
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.loopback_gang import train_settings

PROGRAM = """
from launcher.program import Ids, Real
COLUMNS = ("label", "id")
LABEL = "label"
def inputs(job): return {"ids": Ids(1), "label": Real()}
def parse(row, job): return {"ids": int(row["id"]), "label": float(row["label"])}
def network(data, job): ...
def metrics(prediction, label): ...
def optimizer(job): ...
"""


def convert(
    folder: Path,
    code: str,
    pause: Any = lambda seconds: time.sleep(min(seconds, 0.05)),
    **timings: float,
) -> None:
    """Convert the shard with a helper process that runs `code`."""
    module = f"""
import os, time
from launcher.errors import *
from launcher.io.helper_protocol import main
def work(request):
    {code}
    return {{}}
main(work)
"""
    (folder / "helper.py").write_text(module)
    spec = HelperSpec("parser", "helper", {}, python_environ({"PYTHONPATH": str(folder)}))
    convert_shard(spec, WorkPaths(folder / "work"), Timings(**{"poll": 0.05, "stop": 1.0, **timings}), pause)


@pytest.mark.parametrize(
    ("error", "code"), [("SettingsError", 64), ("DataError", 65), ("GangError", 70), ("StorageError", 75)]
)
def test_an_error_of_the_parser_keeps_its_message_and_exit_code(
    tmp_path: Path, error: str, code: int
) -> None:
    text = f"print('other output'); raise {error}('row 7: not a number')"
    with pytest.raises(ProcessError, match=r"^the parser failed: row 7: not a number$") as e:
        convert(tmp_path, text)
    assert e.value.exit_code == code


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(71)"])
def test_a_killed_parser_or_a_faulty_disk_is_an_error_of_this_pod_only(tmp_path: Path, end: str) -> None:
    with pytest.raises(UnfitError) as e:
        convert(tmp_path, f"print('parsing', flush=True); {end}")
    assert e.value.exit_code == 71
    assert "parsing" in str(e.value)
    assert ("raise resources.limits.memory" in str(e.value)) == ("kill" in end)


def test_a_parser_that_logs_nothing_is_stopped_and_one_that_logs_is_not(tmp_path: Path) -> None:
    logs = "[(print(number, flush=True), time.sleep(0.3)) for number in range(12)]"
    convert(tmp_path, logs, parser_quiet=3.0)
    silent = "print(0, flush=True); time.sleep(600)"
    with pytest.raises(ProcessError, match=r"it has logged nothing for 3 s; the last.*\n0\nFix: see") as e:
        convert(tmp_path, silent, parser_quiet=3.0)
    assert e.value.exit_code == 70


def test_a_stopped_launcher_kills_the_parser(tmp_path: Path) -> None:
    def stop(_: float) -> None:
        raise StoppedError("received SIGTERM")

    start = time.monotonic()
    with pytest.raises(StoppedError):
        convert(tmp_path, "time.sleep(60)", stop)
    assert time.monotonic() - start < 20
    assert not child_processes._running


def test_kill_all_children_does_not_kill_the_parser(tmp_path: Path) -> None:
    """A rank without contact to rank 0 kills the processes of an attempt; the parser belongs to none."""
    killed: list[int] = []

    def pause(seconds: float) -> None:
        if not killed:
            killed.append(len(child_processes._running))
            child_processes.kill_all_children()
        time.sleep(min(seconds, 0.05))

    convert(tmp_path, "time.sleep(0.3)", pause)
    assert killed == [1]


@pytest.mark.slow
def test_fleet_converts_a_large_shard_before_the_training_and_leaves_a_small_one_to_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    (work / "program").mkdir()
    (work / "data" / "train.txt").write_text("1\t5\n0\t6\n")
    (work / "data" / "test.txt").write_text("1\t7\n")
    (work / "program" / "trainer_config.py").write_text(PROGRAM)
    settings = train_settings(tmp_path)

    def convert_rows() -> None:
        convert_shard(FleetRuntime().conversion(settings, 0), settings.work, Timings(poll=0.05), time.sleep)

    convert_rows()
    assert not (work / "records").exists()
    monkeypatch.setattr(fleet, "CONVERT_BYTES", 1)
    convert_rows()
    assert sorted(path.parent.name for path in work.glob("records/*/index.json")) == ["test", "train"]
    (work / "data" / "train.txt").write_text("1\t5\n0\tx\n")
    with pytest.raises(ProcessError, match=r"0/data/train\.txt, row 2: invalid literal .*'0\\tx'") as e:
        convert_rows()
    assert e.value.exit_code == 65
    assert V1Runtime().conversion(settings, 0) is None


@pytest.mark.slow
def test_the_report_of_a_failed_run_is_written_on_a_slow_machine_and_only_logged_if_it_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a busy machine the start of Python and the import of matplotlib took longer than 5 s."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text("import time; time.sleep(6)")
    (tmp_path / "slow" / "matplotlib.py").write_text(
        "raise SystemExit('no pass is finished: nothing to draw')"
    )
    settings = train_settings(tmp_path, PYTHONPATH=str(tmp_path / "slow"))
    settings.work_dir.mkdir()
    output = OutputPaths(settings.layout.output)
    output.root.mkdir(parents=True)
    run_record.write(output, RunFile(run_id="r", state="failed", cause="a death"))
    write_report(settings, Timings(), Timings().report, time.sleep)
    assert output.report_html.is_file()
    output.report_html.unlink()
    output.report_html.mkdir()
    write_report(settings, Timings(), Timings().report, time.sleep)
    assert "report.html" in caplog.text.partition("plots and report were not made, because")[2]
