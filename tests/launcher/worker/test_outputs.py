"""Saves, progress and metrics, without Paddle."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from launcher import files
from launcher.errors import DataError, StorageError, StorageFailedError
from launcher.layout import Output, Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.worker import checkpoint, outputs
from launcher.worker.books import Progress, add_metrics
from launcher.worker.checkpoint import Save
from tests.launcher.core.faulty import faulty

if TYPE_CHECKING:
    from launcher.settings import TrainSettings

ABOUT = {
    "seed": 1, "batches": 20, "mode": "async", "servers": 2, "shards": 60, "ranks": [[0.0, 0.0, 0.0]],
    "dense": "", "tables": {"words": {"folder": "000", "rows": None, "width": 1, "rule": "adam"}},
}  # fmt: skip


def write(
    output: Path,
    at: Position,
    attempt: int = 0,
    end: bool = True,
    *,
    upon: tuple[Position, ...] = (),
    about: Mapping[str, object] = ABOUT,
) -> Save:
    """`upon`: what a delta continues. `about`: more of contents.json."""
    save = Save(output, at, attempt)
    save.begin(100)
    part = save.folder / "tables" / "000" / "part-000-00000.gz"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(range(256)))
    entry = {"bytes": 256, "sha256": files.sha256_file(part)}
    rows = {"words": {"ids": [at.passes], "values": [[0.5]]}}
    save.add(0, {"tables/000/part-000-00000.gz": entry}, rows)
    if end:
        config = output.parent / "trainer_config.py"
        config.write_text("LABEL = 'x'\n")
        chain = [outputs.link(Output(output).save(member)) for member in upon]
        save.end(config, 1, {**ABOUT, **about} | ({"chain": chain} if chain else {}))
    return save


def write_chain(output: Path) -> list[Position]:
    """A base and three deltas."""
    chain = [Position(1), Position(1, 4), Position(1, 8), Position(1, 12)]
    for n, at in enumerate(chain):
        write(output, at, upon=tuple(chain[:n]))
    return chain


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def test_the_newest_whole_save_is_found_by_its_place_in_the_run(output: Path) -> None:
    assert outputs.newest_save(output) is None
    for at in (Position(1), Position(1, 500), Position(2), Position(2, 10)):
        write(output, at)
    write(output, Position(3), end=False)
    assert FleetRuntime().newest_save(output) == Position(2, 10)
    (output / "pass-00002-batch-0000010" / "done").unlink()
    assert outputs.newest_save(output) == Position(2)
    (output / "pass-00001" / "tables" / "000" / "part-000-00000.gz").write_bytes(b"short")
    assert outputs.newest_save(output) == Position(1, 500), "done alone is not enough"
    about = checkpoint.refuse(output / "pass-00001-batch-0000500", "rows differ", 3)
    assert isinstance(about, StorageFailedError)
    assert outputs.newest_save(output) == Position(1)
    assert outputs.save_bytes(output / "pass-00000") > 256


def test_the_outputs_id_is_read_from_the_copy_of_a_damaged_record(output: Path) -> None:
    output.mkdir(exist_ok=True)
    Output(output).run_json.write_text("{")
    assert outputs.output_id(output) is None
    Output(output).run_copy.write_text('{"outputId": "here"}')
    assert outputs.output_id(output) == "here"


def test_a_run_whose_saves_are_all_unfit_is_never_begun_anew(output: Path) -> None:
    write(output, Position(1))
    write(output, Position(2))
    (output / "pass-00000" / "contents.json").write_text("{}")
    checkpoint.refuse(output / "pass-00001", "rows differ", 0)
    with pytest.raises(
        DataError, match=r"none of the saves(.|\n)*refused: rows differ(.|\n)*another version"
    ) as told:
        outputs.newest_save(output)
    assert "remove these folders" in str(told.value)
    (output / "pass-00000" / "contents.json").write_text("not json")
    with pytest.raises(DataError, match="none of the saves"):
        outputs.newest_save(output)


def test_storage_that_fails_is_not_taken_for_a_missing_save(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(output, Position(1))
    monkeypatch.setattr(files, "WAITS", ())
    stat = Path.stat

    def stale(path: Path, **how: bool) -> os.stat_result:
        if path.name.startswith("part-"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", stale)
    with pytest.raises(StorageFailedError, match="Stale file handle"):
        outputs.newest_save(output)


def test_no_space_is_said_before_anything_is_written(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"no space left to save the end of pass 4 .* 1000 bytes are free"):
        Save(output, Position(4), 0).begin(5000)
    assert not list(output.iterdir())


def test_what_earlier_attempts_left_unfinished_goes_and_nothing_else(output: Path) -> None:
    for attempt in (1, 2, 5):
        write(output, Position(2, 7), attempt, end=False)
    assert names(output) == [".pass-00002-batch-0000007.attempt-5.tmp"], "a begin removes those before it"
    other = output / ".run.json.1.tmp"
    other.touch()
    write(output, Position(3), 5)
    assert names(output) == sorted([other.name, ".pass-00002-batch-0000007.attempt-5.tmp", "pass-00002"])
    write(output, Position(4), 4)
    assert ".pass-00002-batch-0000007.attempt-5.tmp" in names(output), "a later attempt's is never touched"


def test_only_whole_saves_beyond_the_newest_few_are_pruned(output: Path) -> None:
    for at in (Position(1), Position(2), Position(2, 5), Position(3), Position(4)):
        last = write(output, at)
    (output / "pass-00000" / "done").unlink()
    checkpoint.refuse(output / "pass-00003", "rows differ", 0)
    (output / "model").mkdir()
    assert last.prune(2) == ["pass-00001"]
    assert names(output) == ["model", "pass-00000", "pass-00002", "pass-00002-batch-0000005", "pass-00003"]
    assert outputs.newest_save(output) == Position(3)


def test_a_delta_is_whole_with_all_that_it_continues_and_no_older_launcher_takes_it(output: Path) -> None:
    base, first, second, third = write_chain(output)
    assert outputs.newest_save(output) == third
    found = outputs.contents(output / third.folder)
    assert found["version"] == outputs.DELTA_VERSION != outputs.VERSION
    assert outputs.contents(output / base.folder)["version"] == outputs.VERSION
    assert outputs.chain(output / third.folder, found) == [output / at.folder for at in (base, first, second)]
    backup = output.with_name("backup")
    shutil.copytree(output, backup)
    part = output / second.folder / "tables" / "000" / "part-000-00000.gz"
    for broken in (
        (output / second.folder / "done").unlink,
        lambda: part.write_bytes(b"short"),
        lambda: checkpoint.refuse(output / second.folder, "other bytes", 1),
        lambda: shutil.rmtree(output / second.folder),
    ):
        broken()
        assert outputs.newest_save(output) == first
        assert str(outputs.fault(output / third.folder)).startswith(f"it continues {second.folder}")
        shutil.rmtree(output)
        shutil.copytree(backup, output)
    write(output, second, 1, upon=(base, first))
    assert outputs.newest_save(output) == second, "the third continues another one"
    (output / base.folder / "done").unlink()
    with pytest.raises(DataError, match=r"it continues pass-00000, which is not there, not finished or ref"):
        outputs.newest_save(output)


def test_what_a_kept_delta_continues_is_kept_and_goes_after_it(output: Path) -> None:
    base, first, second, third = write_chain(output)
    older = Position(0, 6)
    last = write(output, older)
    assert last.prune(1) == [older.folder]
    assert names(output) == sorted(at.folder for at in (base, first, second, third))
    last = write(output, Position(2))
    assert last.prune(2) == []
    assert last.prune(1) == [at.folder for at in (third, second, first, base)]


def test_a_delta_upon_a_truncated_checkpoint_counts_for_none_of_the_newest(output: Path) -> None:
    older = Position(0, 6)
    last = write(output, older)
    _, first, second, _ = write_chain(output)
    (output / second.folder / "tables" / "000" / "part-000-00000.gz").write_bytes(b"short")
    assert last.prune(1) == [older.folder]
    assert outputs.newest_save(output) == first


def test_a_delta_without_its_chain_counts_for_none_of_the_newest(output: Path) -> None:
    """An attempt that goes on from the first delta finds the third of the attempt before in its way."""
    base, first, second, third = write_chain(output)
    last = write(output, second, 1)
    assert last.prune(1) == [first.folder, base.folder]
    assert outputs.newest_save(output) == second
    assert (output / third.folder).exists(), "it is not whole"


def test_a_refused_save_is_replaced_by_a_new_one_at_the_same_place(output: Path) -> None:
    write(output, Position(1))
    checkpoint.refuse(output / "pass-00000", "rows differ", 0)
    write(output, Position(1), 1)
    assert outputs.newest_save(output) == Position(1)


def test_contents_hold_what_all_ranks_wrote_and_a_rank_without_a_list_leaves_no_done(output: Path) -> None:
    save = write(output, Position(2, 7), end=False)
    config = output.parent / "c.py"
    config.touch()
    with pytest.raises(StorageFailedError, match=r"rank-1.json is not there"):
        save.end(config, 2, ABOUT)
    assert outputs.finished(output) == []
    save = write(output, Position(2, 8), end=False)
    save.add(1, save.arrays("params.npz", {}), {"words": {"ids": [9], "values": [[0.25]]}})
    save.end(config, 2, ABOUT)
    found = outputs.contents(Output(output).save(Position(2, 8)))
    assert found["position"] == {"pass": 2, "batch": 8}
    assert found["rows"] == {"words": {"ids": [2, 9], "values": [[0.5], [0.25]]}}
    assert {"params.npz", "tables/000/part-000-00000.gz", "c.py", "path.txt"} == set(found["files"])


@pytest.mark.parametrize("name", ["params.npz", ".c.py.*", ".path.txt.*", ".contents.json.*"])
def test_all_that_trainer_0_writes_is_on_the_disk_before_a_save_is_done(output: Path, name: str) -> None:
    """The tables' parts are made durable by who reads them back (parts.py)."""
    config = output.parent / "c.py"
    config.write_text("LABEL = 'x'\n")
    done: list[bool] = []
    with faulty("fsync", f"*/{name}", then=lambda: done.append(bool(outputs.finished(output)))):
        save = write(output, Position(1), end=False)
        save.add(1, save.arrays("params.npz", {"bias": np.ones(1)}), {})
        save.end(config, 2, ABOUT)
    assert done == [False]


def test_flipped_bytes_of_the_same_length_are_seen(output: Path) -> None:
    write(output, Position(1))
    folder = output / "pass-00000"
    contents = outputs.contents(folder)
    name = "tables/000/part-000-00000.gz"
    assert checkpoint.check_files(folder, [name], contents) is None
    (folder / name).write_bytes(bytes(256))
    assert outputs.newest_save(output) == Position(1), "its length is right"
    assert checkpoint.check_files(folder, [name], contents) == f"{name} has other bytes than were saved"
    assert checkpoint.check_files(folder, ["params.npz"], contents) is not None, "absent is never empty"


def told(passes: int, keep_best: str = "", patience: int = 0) -> TrainSettings:
    return cast("TrainSettings", SimpleNamespace(passes=passes, keep_best=keep_best, patience=patience))


def make_model(output: Path, checkpoint: str | None) -> None:
    (output / "model").mkdir(exist_ok=True)
    for name in outputs.MODEL_PARTS:
        (output / "model" / name).write_text("{}")
    if checkpoint is not None:
        files.write_json(output / "model" / "model.json", {"checkpoint": checkpoint})


@pytest.mark.parametrize("checkpoint", [None, "pass-00001"])
def test_a_run_is_complete_when_its_last_pass_and_its_model_are_whole(
    output: Path, checkpoint: str | None
) -> None:
    """Models of earlier launchers do not say of which checkpoint they are."""
    runtime = FleetRuntime()
    write(output, Position(1, 50))
    write(output, Position(2))
    assert not runtime.complete(output, told(2))
    make_model(output, checkpoint)
    assert runtime.complete(output, told(2))
    assert not runtime.complete(output, told(3))
    write(output, Position(2, 50))
    assert not runtime.complete(output, told(3))
    assert runtime.complete(output, told(2))


def test_a_run_is_not_complete_with_the_model_of_an_earlier_pass(output: Path) -> None:
    write(output, Position(2))
    write(output, Position(3))
    make_model(output, "pass-00001")
    assert not FleetRuntime().complete(output, told(3))


def test_a_run_that_ended_early_is_complete_with_the_best_model_until_it_may_go_on(output: Path) -> None:
    complete = FleetRuntime().complete
    scores = {"metric": "auc", "passes": [[2, 0.8], [3, None], [4, 0.7]]}
    for number in (2, 3, 4):
        write(output, Position(number), about={"scores": scores})
    make_model(output, "pass-00003")
    assert not complete(output, told(9, "auc", 2)), "the model is of the last pass"
    make_model(output, "pass-00001")
    assert complete(output, told(9, "auc", 2))
    assert complete(output, told(4, "auc"))
    assert not complete(output, told(9, "auc", 3))
    assert not complete(output, told(9, "error", 2)), "another metric has no scores yet"
    assert not complete(output, told(4)), "the model must be of the last pass"
    shutil.rmtree(output / "pass-00001")
    assert complete(output, told(9, "auc", 2)), "the model is there, and its checkpoint is not needed"


def test_the_best_checkpoint_is_pruned_by_nobody(output: Path) -> None:
    for number in range(1, 5):
        last = write(output, Position(number))
    assert last.prune(1, [Position(2), Position(9)]) == ["pass-00002", "pass-00000"]
    assert outputs.finished(output) == [Position(4), Position(2)]


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

    progress.set(batch=1, state="testing")
    now[0] = 0.1
    progress.set(batch=2)
    assert seen()["batch"] == 1
    now[0] = 0.6
    progress.set(batch=3, loss=float("nan"))
    assert (seen()["batch"], seen()["loss"]) == (3, None)
    progress.set(state="saving")
    assert seen()["state"] == "saving"
    progress.set(saved={"pass": 1, "batch": 0})
    assert seen()["saved"] == {"pass": 1, "batch": 0}


def test_training_begins_with_the_first_batch_and_progress_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a sync in the training thread"))
    progress = Progress(tmp_path / "progress.json")

    def seen() -> dict[str, object]:
        return json.loads((tmp_path / "progress.json").read_text())

    progress.mark("met", state="loading")
    progress.going_on()
    assert seen()["state"] == "loading", "no batch yet: nothing can stall"
    progress.stepped(loss=0.5)
    assert seen()["state"] == "training"
    progress.set(state="testing")
    progress.going_on()
    assert seen()["state"] == "training"
    assert list(seen()["marks"]) == ["met", "first_batch"]
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
