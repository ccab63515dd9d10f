"""Passes and their parts, without Paddle."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from launcher import files
from launcher.errors import GangError, SettingsError, StorageError
from launcher.layout import Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.worker import checkpoint, outputs
from launcher.worker.books import Progress, add_metrics


def save(output: Path, number: int, tables: int = 1, servers: int = 2, parts: bool = True) -> checkpoint.Save:
    found = checkpoint.Save(output, number, 0)
    found.begin(100)
    for table in range(tables):
        folder = found.folder / "tables" / f"{table:03d}"
        folder.mkdir(parents=True)
        for server in range(servers if parts else servers - 1):
            with gzip.open(folder / f"part-{server:03d}-00000.gz", "wb") as file:
                file.write(bytes(range(256)) * 50)
    return found


def config(tmp_path: Path) -> Path:
    path = tmp_path / "trainer_config.py"
    path.write_text("LABEL = 'x'\n")
    return path


def test_done_is_written_last_and_the_newest_whole_pass_is_found(tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert outputs.newest_save(output) is None
    for number in (0, 1, 2):
        save(output, number).end(config(tmp_path), 1, 2)
    save(output, 3)
    assert outputs.newest_save(output) == Position(3)
    (output / "pass-00002" / "tables" / "000" / "part-000-00000.gz").write_bytes(b"short")
    assert FleetRuntime().newest_save(output) == Position(2), (
        "a pass with done but without all its bytes does not count"
    )
    (output / "pass-00001" / "done").unlink()
    assert outputs.newest_save(output) == Position(1)


def test_a_pass_of_another_number_of_servers_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 0).end(config(tmp_path), 1, 2)
    checkpoint.check_servers(tmp_path / "pass-00000", 2)
    with pytest.raises(SettingsError, match=r"saved by 2 pservers, now there are 4"):
        checkpoint.check_servers(tmp_path / "pass-00000", 4)


def test_a_missing_part_of_a_server_leaves_no_done(tmp_path: Path) -> None:
    with pytest.raises(GangError, match="table 0, server 1, no part is there"):
        save(tmp_path, 0, parts=False).end(config(tmp_path), 1, 2)
    assert not list(tmp_path.glob("pass-*"))


def test_a_torn_part_of_a_server_leaves_no_done(tmp_path: Path) -> None:
    found = save(tmp_path, 0)
    part = found.folder / "tables" / "000" / "part-001-00000.gz"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(GangError, match=r"part part-001-00000.gz is torn"):
        found.end(config(tmp_path), 1, 2)
    assert outputs.newest_save(tmp_path) is None


def test_no_space_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"no space left to save pass 3 .* 1000 bytes are free"):
        checkpoint.Save(tmp_path, 3, 0).begin(5000)
    assert not list(tmp_path.iterdir())


def test_what_an_aborted_save_left_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 0)
    save(tmp_path, 0).end(config(tmp_path), 1, 2)
    save(tmp_path, 0).end(config(tmp_path), 1, 2)
    assert outputs.newest_save(tmp_path) == Position(1)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_run_is_complete_when_its_last_pass_and_its_model_are_whole(tmp_path: Path) -> None:
    runtime = FleetRuntime()
    save(tmp_path, 1).end(config(tmp_path), 1, 2)
    assert not runtime.complete(tmp_path, 2)
    (tmp_path / "model").mkdir()
    for name in outputs.MODEL_PARTS:
        (tmp_path / "model" / name).write_text("{}")
    assert runtime.complete(tmp_path, 2)
    assert not runtime.complete(tmp_path, 3)


def test_metrics_have_a_row_a_rank_and_a_second_start_writes_its_pass_anew(tmp_path: Path) -> None:
    ranks = [(100, 2.0, 0.5), (90, 1.0, 0.6)]
    add_metrics(tmp_path, 0, 0, ranks, {"error": 0.25})
    add_metrics(tmp_path, 1, 0, ranks, {"error": 0.2})
    add_metrics(tmp_path, 1, 0, ranks, {"error": 0.1})
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_error"
    assert lines[1:3] == ["0,0,0,100,2.000,50.0,0.5,0.25", "0,1,0,90,1.000,90.0,0.6,"]
    assert len(lines) == 5
    assert lines[3].endswith(",0.1")


def test_progress_is_written_at_most_twice_a_second_but_each_state_at_once(tmp_path: Path) -> None:
    now = [0.0]
    progress = Progress(tmp_path / "progress.json", clock=lambda: now[0])

    def seen() -> dict[str, object]:
        return json.loads((tmp_path / "progress.json").read_text())

    progress.set(batch=1, state="training")
    now[0] = 0.1
    progress.set(batch=2)
    assert seen()["batch"] == 1
    now[0] = 0.6
    progress.set(batch=3, loss=float("nan"))
    assert (seen()["batch"], seen()["loss"]) == (3, None)
    progress.set(state="saving")
    assert seen()["state"] == "saving"
