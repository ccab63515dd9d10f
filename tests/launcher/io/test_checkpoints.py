"""Tests of checkpoint folders and of the choice of a checkpoint; neither Paddle nor a script runs."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from launcher.errors import EXIT_UNFIT, DataError, LauncherError, StorageError, StorageFailedError
from launcher.io import checkpoints, files
from launcher.io.checkpoints import CheckpointFolder, newest_checkpoint
from launcher.paths import OutputPaths, Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.schema import (
    CheckpointContents,
    CheckpointFile,
    CheckpointRows,
    CheckpointScores,
    CheckpointTable,
    RankFiles,
)
from tests.launcher.supervisor.failing_calls import fail_calls

if TYPE_CHECKING:
    from launcher.settings import TrainSettings

OLDER, NEWEST = Position(1), Position(2)
PART = "tables/words/shard-00000.rows"


def publish(folder: CheckpointFolder, config: Path, ranks: int = 1, **more: Any) -> None:
    """Finish a checkpoint with plausible contents. `more`: other fields of contents.json."""
    written = folder.collect_rank_files(config, range(ranks))
    fields: dict[str, Any] = {
        "version": checkpoints.VERSION,
        "position": folder.at,
        "attempt": folder.attempt,
        "output_id": checkpoints.read_output_id(folder.output.root) or "",
        "tables": {"words": CheckpointTable(1, "adam")},
    }
    numbers = {"servers": 2, "shards": 60, "ranks": [[0.0, 0.0, 0.0]]}
    entries = {"files": written.files, "rows": written.rows}
    folder.publish(CheckpointContents(**fields | numbers | entries | more))


def write(
    output: Path,
    at: Position,
    attempt: int = 0,
    finish: bool = True,
    **more: Any,
) -> CheckpointFolder:
    """Write a checkpoint. `more`: fields of contents.json."""
    folder = CheckpointFolder(output, at, attempt)
    folder.create(100)
    part = folder.folder / PART
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(range(256)))
    rows = {"words": CheckpointRows([at.passes], [[0.5]])}
    folder.add_rank_files(0, RankFiles({PART: CheckpointFile(256, files.sha256_file(part))}, rows))
    if finish:
        config = output.parent / "trainer_config.py"
        config.write_text("LABEL = 'x'\n")
        publish(folder, config, **more)
    return folder


def prune(last: CheckpointFolder, keep: int, best: Collection[Position] = ()) -> list[str]:
    return checkpoints.prune_checkpoints(last.output, last.attempt, keep, best)


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir())


def flips(path: Path) -> Iterator[bytes]:
    """Yield the content of `path` with one bit flipped, for each byte in turn."""
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        yield bytes(flipped)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def make_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def copy_from_another_run(folder: Path) -> None:
    other = folder.parents[1] / "other"
    for output, own in ((folder.parent, "a" * 16), (other, "b" * 16)):
        output.mkdir(exist_ok=True)
        files.write_json(OutputPaths(output).run_json, {"outputId": own})
    write(other, NEWEST)
    shutil.rmtree(folder)
    shutil.copytree(other / folder.name, folder)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "done").unlink(), None),
        (lambda folder: (folder / PART).write_bytes(b"short"), f"{PART} has 5 bytes, but was saved with 256"),
        (lambda folder: (folder / PART).unlink(), f"{PART} is missing"),
        (make_link, "it is a symbolic link"),
        (lambda folder: checkpoints.reject(folder, "rows differ", 3), "rejected by an earlier load: rows differ"),
        *(
            (lambda folder, content=content: (folder / "rejected.json").write_bytes(content), "rejected by an earlier")
            for content in (b"", b"\xff\xfe", b"[]", b"{}", b'{"reason": 1}')
        ),
        (lambda folder: (folder / "contents.json").unlink(), "contents.json is missing"),
        (lambda folder: (folder / "contents.json").write_text("not json"), "is not JSON"),
        (lambda folder: (folder / "contents.json").write_text("{}"), "its format is None, and .* reads 7"),
        (lambda folder: (folder / "contents.json").write_text('{"script": 2}'), "its format is 2, and .* reads 1"),
        (copy_from_another_run, "has outputId b+, but run.json next to the folder has a+: the checkpoint was copied"),
        (lambda folder: folder.rename(folder.with_name("pass-99999")), "describes the end of pass 2, not the end of"),
    ],
)  # fmt: skip
def test_an_unusable_checkpoint_is_skipped_not_counted_by_pruning_and_its_reason_is_logged(
    output: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], reason: str | None
) -> None:
    last = write(output, OLDER)
    write(output, NEWEST)
    damage(output / NEWEST.folder)
    caplog.clear()
    assert newest_checkpoint(output) == OLDER
    assert prune(last, 1) == []
    (output / OLDER.folder / "done").unlink()
    if reason is None:
        assert newest_checkpoint(output) is None
        return
    assert "skipped checkpoint pass-" in caplog.text
    with pytest.raises(
        DataError, match=f"no usable checkpoint.*; refusing to start from scratch(.|\n)*{reason}"
    ) as error:
        newest_checkpoint(output)
    assert "start from scratch, with any new text in startFromScratch" in str(error.value)


@pytest.mark.slow
def test_a_flipped_bit_in_contents_json_is_harmless_or_makes_only_that_checkpoint_unusable(
    output: Path,
) -> None:
    write(output, OLDER)
    write(output, NEWEST)
    path = output / NEWEST.folder / "contents.json"
    as_saved, size, unusable = checkpoints.read_contents(path.parent), path.stat().st_size, 0
    for content in flips(path):
        path.write_bytes(content)
        found = newest_checkpoint(output)
        if found == NEWEST:  # white space, or the name of the checksum
            assert checkpoints.read_contents(path.parent) == as_saved
        else:
            assert found == OLDER
            unusable += 1
    assert unusable > 0.7 * size


def test_contents_without_checksum_are_usable_and_unreadable_ones_end_only_this_pod(output: Path) -> None:
    """Launchers before the checksum wrote such a file; test_hostile_files.py tests contents with wrong values."""
    write(output, NEWEST)
    path = output / NEWEST.folder / "contents.json"
    intact: dict[str, Any] = json.loads(path.read_text())
    intact.pop("checksum")
    path.write_text(json.dumps(intact))
    assert newest_checkpoint(output) == NEWEST
    path.write_text("{")
    with pytest.raises(LauncherError, match=r"contents\.json") as caught:
        checkpoints.read_contents(path.parent)
    assert caught.value.exit_code == EXIT_UNFIT, "the next attempt resumes from the checkpoint before"


@pytest.mark.parametrize(
    ("call", "path"),
    [("list", "*/output"), ("stat", "*/done"), ("stat", "*/shard-*"), ("open", "*/contents.json")],
)
def test_a_temporary_error_while_checkpoints_are_looked_for_is_retried(
    output: Path, monkeypatch: pytest.MonkeyPatch, call: str, path: str
) -> None:
    write(output, OLDER)
    monkeypatch.setattr(files, "RETRY_WAITS", (0.0,))
    with fail_calls(call, path, errno.ESTALE, 1) as fault:
        assert newest_checkpoint(output) == OLDER
        assert fault.hits == 1
    with fail_calls(call, path, errno.ESTALE), pytest.raises(StorageFailedError):
        newest_checkpoint(output)


def test_read_output_id_uses_the_copy_of_a_damaged_run_record(output: Path) -> None:
    output.mkdir(exist_ok=True)
    OutputPaths(output).run_json.write_text("{")
    assert checkpoints.read_output_id(output) is None
    OutputPaths(output).run_copy.write_text('{"outputId": "here"}')
    assert checkpoints.read_output_id(output) == "here"


def test_create_without_free_space_raises_before_anything_is_written(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    with pytest.raises(
        StorageError,
        match=r"no space left for the checkpoint of the end of pass 4: 1,053,576 bytes .* 1,000 are free",
    ):
        CheckpointFolder(output, Position(4), 0).create(5000)
    assert not list(output.iterdir())


def test_create_removes_the_unfinished_folders_of_this_attempt_and_of_earlier_ones(output: Path) -> None:
    for attempt in (1, 2, 5):
        write(output, Position(2, 7), attempt, finish=False)
    assert names(output) == [".pass-00002-batch-0000007.attempt-5.tmp"], (
        "create removes those of earlier attempts"
    )
    other = output / ".run.json.1.tmp"
    other.touch()
    write(output, Position(4), 4)
    assert ".pass-00002-batch-0000007.attempt-5.tmp" in names(output), "those of later attempts stay"
    (output / ".pass-00001.script.tmp").mkdir()  # an earlier launcher's, of a script
    write(output, Position(3), 5)
    assert names(output) == sorted([other.name, "pass-00002", "pass-00003"])


def test_pruning_removes_only_usable_checkpoints_older_than_the_newest_few_and_keeps_the_best(
    output: Path,
) -> None:
    for at in (Position(1), Position(2), Position(2, 5), Position(3), Position(4)):
        last = write(output, at)
    (output / "pass-00000" / "done").unlink()
    checkpoints.reject(output / "pass-00003", "rows differ", 0)
    (output / "model").mkdir()
    assert prune(last, 2) == ["pass-00001"]
    assert names(output) == ["model", "pass-00000", "pass-00002", "pass-00002-batch-0000005", "pass-00003"]
    write(output, Position(5))
    assert prune(last, 1, [Position(2, 5), Position(9)]) == ["pass-00002"]
    assert newest_checkpoint(output) == Position(5)


def test_a_checkpoint_of_an_earlier_launcher_is_skipped_and_kept(output: Path) -> None:
    write(output, OLDER)
    last = write(output, NEWEST, version=6)
    assert newest_checkpoint(output) == OLDER
    assert "its format is 6, and this launcher reads 7. Only the image with that launcher can" in str(
        checkpoints.unusable_reason(output / NEWEST.folder)
    )
    assert prune(last, 1) == []


def test_a_checkpoint_whose_removal_is_interrupted_is_no_checkpoint(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the removal of an old checkpoint, then that of a rejected one that is replaced."""
    write(output, OLDER)
    last = write(output, NEWEST)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", Mock(side_effect=OSError(errno.EIO, "")))
        with pytest.raises(StorageFailedError):
            prune(last, 1)
    assert checkpoints.finished_checkpoints(output) == [NEWEST]
    checkpoints.reject(output / NEWEST.folder, "rows differ", 0)
    replacing = write(output, NEWEST, 1, finish=False)
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_path", Mock(side_effect=OSError(errno.EIO, "")))
        with pytest.raises(StorageFailedError):
            publish(replacing, output.parent / "trainer_config.py")
    assert checkpoints.finished_checkpoints(output) == []


@pytest.mark.parametrize("kind", ["rejected", "link", "file"])
def test_a_new_checkpoint_replaces_what_is_unusable_under_its_final_name(
    output: Path, tmp_path: Path, kind: str
) -> None:
    write(output, OLDER)
    write(tmp_path / "elsewhere", NEWEST)
    there = tmp_path / "elsewhere" / NEWEST.folder
    if kind == "rejected":
        write(output, NEWEST)
        checkpoints.reject(output / NEWEST.folder, "rows differ", 0)
    elif kind == "link":
        (output / NEWEST.folder).symlink_to(there)
    else:
        (output / NEWEST.folder).touch()
    assert newest_checkpoint(output) == OLDER
    last = write(output, NEWEST, 1)
    assert (there / "done").is_file()
    assert newest_checkpoint(output) == NEWEST
    assert prune(last, 1) == [OLDER.folder]


def test_contents_list_the_files_of_all_ranks_and_a_missing_rank_prevents_done(output: Path) -> None:
    folder = write(output, Position(2, 7), finish=False)
    config = output.parent / "c.py"
    config.touch()
    with pytest.raises(StorageFailedError, match=r"rank-1.json is missing"):
        publish(folder, config, 2)
    assert checkpoints.finished_checkpoints(output) == []
    folder = write(output, Position(2, 8), finish=False)
    rows = {"words": CheckpointRows([9], [[0.25]])}
    folder.add_rank_files(1, RankFiles(checkpoints.write_file(folder.folder, "params.npz", np.savez), rows))
    publish(folder, config, 2)
    found = checkpoints.read_contents(OutputPaths(output).checkpoint(Position(2, 8)))
    assert found.position == Position(2, 8)
    assert found.rows == {"words": CheckpointRows([2, 9], [[0.5], [0.25]])}
    assert {"params.npz", PART, "c.py", "path.txt"} == set(found.files)


@pytest.mark.parametrize("name", ["params.npz", ".c.py.*", ".path.txt.*", ".contents.json.*", ".done.*"])
def test_files_of_trainer_0_are_synced_to_disk_before_the_checkpoint_exists(output: Path, name: str) -> None:
    """The tables' files are synced when they are read back (server_tables.py)."""
    config = output.parent / "c.py"
    config.write_text("LABEL = 'x'\n")
    done: list[bool] = []
    with fail_calls(
        "fsync", f"*/{name}", then=lambda: done.append(bool(checkpoints.finished_checkpoints(output)))
    ):
        folder = write(output, Position(1), finish=False)
        folder.add_rank_files(1, RankFiles(checkpoints.write_file(folder.folder, "params.npz", np.savez), {}))
        publish(folder, config, 2)
    assert done == [False]


def test_check_files_finds_changed_bytes_of_the_same_length(output: Path) -> None:
    write(output, Position(1))
    folder = output / "pass-00000"
    contents = checkpoints.read_contents(folder)
    assert checkpoints.check_files(folder, [PART], contents.files) is None
    (folder / PART).write_bytes(bytes(256))
    assert newest_checkpoint(output) == Position(1), "its size is unchanged"
    changed = f"the content of {PART} has changed since it was saved (its sha256 differs)"
    assert checkpoints.check_files(folder, [PART], contents.files) == changed
    assert checkpoints.check_files(folder, ["params.npz"], contents.files) is not None, (
        "a missing file is a fault"
    )


def settings(passes: int, keep_best: str = "", patience: int = 0) -> TrainSettings:
    return cast("TrainSettings", SimpleNamespace(passes=passes, keep_best=keep_best, patience=patience))


def make_model(output: Path, checkpoint: str) -> None:
    (output / "model").mkdir(exist_ok=True)
    for name in checkpoints.MODEL_FILES:
        (output / "model" / name).write_text("{}")
    files.write_json(output / "model" / "model.json", {"checkpoint": checkpoint})


def test_a_run_is_complete_with_its_last_pass_and_its_model(output: Path) -> None:
    complete = FleetRuntime().is_complete
    write(output, Position(1, 50))
    write(output, Position(2))
    assert not complete(output, settings(2))
    make_model(output, "pass-00001")
    assert complete(output, settings(2))
    write(output, Position(2, 50))
    assert not complete(output, settings(3))
    assert complete(output, settings(2))
    write(output, Position(3))
    assert not complete(output, settings(3)), "the model is of an earlier pass"


def test_a_run_that_ended_early_is_complete_until_patience_or_passes_are_raised(output: Path) -> None:
    complete = FleetRuntime().is_complete
    scores = CheckpointScores("auc", [[2, 0.8], [3, None], [4, 0.7]])
    for number in (2, 3, 4):
        write(output, Position(number), scores=scores)
    make_model(output, "pass-00003")
    assert not complete(output, settings(9, "auc", 2)), "the model is of the last pass"
    make_model(output, "pass-00001")
    assert complete(output, settings(9, "auc", 2))
    assert complete(output, settings(4, "auc"))
    assert not complete(output, settings(9, "auc", 3))
    assert not complete(output, settings(9, "error", 2)), "another metric has no scores yet"
    assert not complete(output, settings(4)), "the model must be of the last pass"
    shutil.rmtree(output / "pass-00001")
    assert complete(output, settings(9, "auc", 2)), "the model is there, and its checkpoint is not needed"
