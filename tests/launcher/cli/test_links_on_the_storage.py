"""Commands with --path, and the same commands in the reader pod, follow no link below the storage's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import reader_commands, shared_options
from launcher.io.open_below import ReaderError, open_file
from testkit.written_files import write_files

from .conftest import Cli
from .fake_cluster import FakeCluster

SECRET = "root:x:0:0"


@pytest.fixture
def outside(job: Path, tmp_path: Path) -> Path:
    """Create a copy of the job's folder outside of the storage, with SECRET in each text, and data files."""
    folder = tmp_path / "host" / "job"
    shutil.copytree(job, folder)
    for log in folder.rglob("*.log"):
        log.write_text(SECRET)
    write_files(folder.parent, {"sources/rows.csv": SECRET})
    os.utime(folder.parent / "sources" / "rows.csv", (1, 1))
    return folder


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def replace_by_link(path: Path, target: Path, *, relative: bool) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent) if relative else target)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(
    ("linked", "argv"),
    [
        ("runs", ("clean", "--keep", "0", "--yes")),
        ("runs/quick-start-aaaa", ("clean", "--keep", "0", "--yes")),
        ("output", ("clean", "--keep", "0", "--yes")),
        ("output", ("status",)),
        ("output/status.json", ("status",)),
        ("output/run.json", ("wait",)),
        ("output/node_0", ("status",)),
        ("output/node_0/train.log", ("status",)),
        ("output", ("results",)),
        ("output/model", ("results", "--to", "copied")),
        ("output/node_1", ("results", "--to", "copied")),
        ("output/node_1/train.log", ("logs", "--role", "trainer", "--rank", "1")),
        ("output/node_1", ("logs", "--role", "trainer", "--rank", "1")),
        ("output/node_1/attempt-0", ("logs", "--role", "trainer", "--rank", "1", "--attempt", "0")),
        ("output/node_1/server.log", ("logs", "--role", "pserver", "--rank", "1", "--follow")),
        ("runs", ("runs",)),
        ("runs/quick-start-bbbb/run.json", ("compare", "quick-start-aaaa", "quick-start-bbbb")),
        ("output", ("logs",)),
    ],
)
def test_no_command_follows_a_link_or_removes_what_is_behind_it(
    cli: Cli, job: Path, outside: Path, here: Path, *, linked: str, argv: tuple[str, ...], relative: bool
) -> None:
    replace_by_link(job / linked, outside / linked, relative=relative)
    before = tree(outside)
    code, out, err = cli(*argv, "--path", job)
    assert tree(outside) == before
    assert SECRET not in out
    assert code == 3, (out, err)
    assert f"{job / linked} is a symbolic link" in err
    assert err.count("Fix: ") == 1
    assert list((here / "copied").rglob("*")) == []


def test_clean_removes_a_link_among_the_data_files_and_keeps_its_target(
    cli: Cli, job: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, sources = FakeCluster(job.parent), job.parent / "sources"
    monkeypatch.setattr(shared_options, "connect", lambda *_: cluster)
    cluster.add_release()
    sources.symlink_to(outside.parent / "sources")
    cli.fail(3, "sources is a symbolic link", "clean", "--yes")
    sources.unlink()
    sources.mkdir()
    for name, target in (("old.csv", "rows.csv"), ("old", ".")):
        (sources / name).symlink_to(outside.parent / "sources" / target)
        os.utime(sources / name, (1, 1), follow_symlinks=False)
    assert cli("clean", "--yes")[0] == 0
    assert list(sources.iterdir()) == []
    assert (outside.parent / "sources" / "rows.csv").read_text() == SECRET


def test_a_jobs_folder_that_is_a_link_is_not_opened_by_its_name(cli: Cli, job: Path, outside: Path) -> None:
    """--path may be a link, because the user gives it; a folder that --job selects on the storage may not."""
    (job.parent / "evil").symlink_to(outside)
    cli.fail(64, "no such job", "clean", "--job", "evil", "--yes", "--path", job)
    cli.fail(3, f"{job.parent / 'evil'} is a symbolic link", "runs", "--path", job, "--job", "evil")
    assert [cli(command, "--path", job.parent / "evil")[0] for command in ("runs", "status")] == [0, 0]
    assert outside.is_dir()


def test_push_does_not_write_through_a_link(cli: Cli, job: Path, outside: Path, here: Path) -> None:
    (here / "rows.csv").write_text("a,b\n")
    (job.parent / "sources").symlink_to(outside.parent / "sources")
    before = tree(outside.parent)
    cli.fail(3, "sources is a symbolic link", "push", "--source", "--force", here / "rows.csv", "--path", job)
    assert tree(outside.parent) == before
    assert (outside.parent / "sources" / "rows.csv").read_text() == SECRET
    program = write_files(here / "mine", {"train.py": "import os\n"})
    (job / "mine").symlink_to(outside)
    cli.fail(3, f"{job / 'mine'} is a symbolic link", "push", "--force", program, "--path", job)
    assert tree(outside.parent) == before


def test_a_checkpoint_is_not_requested_behind_a_link_and_the_reader_prints_one_sentence(
    job: Path, outside: Path
) -> None:
    replace_by_link(job / "output", outside / "output", relative=False)
    command = [sys.executable, "-m", "launcher", "reader", "checkpoint", "--root", str(job), "--wait", "1"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "output is a symbolic link" in done.stderr
    assert not (outside / "output" / ".checkpoint-request").exists()


def test_sizes_and_sums_are_those_of_links_and_not_of_their_targets(tmp_path: Path) -> None:
    write_files(tmp_path, {"host/big": b"x" * 10_000})
    (tmp_path / "root" / "runs").mkdir(parents=True)
    (tmp_path / "root" / "runs" / "file").symlink_to(tmp_path / "host" / "big")
    (tmp_path / "root" / "runs" / "folder").symlink_to(tmp_path / "host")
    assert reader_commands.measure_sizes(tmp_path / "root", ["runs"])["runs"] < 1000
    sums = reader_commands.compute_sums(tmp_path / "root" / "runs", len(str(tmp_path / "host" / "big")))
    assert set((sums or {}).values()) == {""}


def test_a_link_that_replaces_a_folder_during_the_removal_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"root/job/runs/old/file": "x", "host/old/file": "x"})
    runs = tmp_path / "root" / "job" / "runs"

    def swap(_: int) -> str:
        runs.rename(runs.with_name("moved"))
        runs.symlink_to(tmp_path / "host")
        return "token"

    monkeypatch.setattr(reader_commands.secrets, "token_hex", swap)
    assert reader_commands.remove_paths(tmp_path / "root", ["job/runs/old"]) == {"job/runs/old": 1}
    assert list(runs.with_name("moved").iterdir()) == []
    assert (tmp_path / "host" / "old" / "file").read_text() == "x"


def test_a_named_pipe_in_place_of_a_log_is_an_error_and_no_endless_wait(cli: Cli, job: Path) -> None:
    log = job / "output" / "node_0" / "train.log"
    log.unlink()
    os.mkfifo(log)
    cli.fail(3, "train.log is not a regular file", "logs", "--role", "trainer", "--path", job)


def test_a_name_that_is_no_path_below_the_folder_is_rejected(tmp_path: Path) -> None:
    """`test_only_a_name_that_is_a_path_below_a_folder_is_safe` has the other names."""
    with pytest.raises(ReaderError, match="is not a path below"):
        open_file(tmp_path, "a/../b")


def test_names_with_any_other_characters_are_accepted(tmp_path: Path) -> None:
    for name in ("ünïcode name", os.fsdecode(b"caf\xe9"), "a\nb", "..a", "a..", "~", "%2e%2e"):
        (tmp_path / name).write_text(name, errors="surrogateescape")
        with open_file(tmp_path, name) as file:
            assert file.read().decode(errors="surrogateescape") == name
