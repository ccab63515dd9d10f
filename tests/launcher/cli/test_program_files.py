"""Tests of what is sent of a program's folder, and of how its script is found, with folders like real repositories."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from launcher.cli import uploads
from launcher.cli.errors import UsageError
from launcher.cli.program_files import choose_file, find_runtime, list_files
from launcher.errors import SettingsError
from launcher.io.files import folder_sha256
from launcher.io.program_folders import find_program_folder
from launcher.io.tar_stream import SUMS, write_tar
from testkit.written_files import write_files

SERVERS = "from paddle.distributed import fleet\nif fleet.is_server():\n    fleet.run_server()\n"


def make(folder: Path, names: str) -> Path:
    """Write empty files with these names, which spaces separate, into `folder`; return it."""
    return write_files(folder, dict.fromkeys(names.split(), ""))


def names(folder: Path) -> list[str]:
    """Return the names of the files that are sent."""
    return [name for name, _ in list_files(folder)]


def test_ignored_hidden_and_generated_files_are_not_sent(tmp_path: Path, capsys) -> None:
    make(
        tmp_path,
        "train.py tools/run.py data.bin keep.log a.log tools/big.log tools/own.txt .git/HEAD out/model.bin",
    )
    make(tmp_path, "venv/pyvenv.cfg venv/x.txt __pycache__/x.pyc tried-model/script-output/a.txt")
    make(tmp_path, "results/mine/run.json results/mine/status.json")
    ignored = {".gitignore": "*.log\n!keep.log\n/out/\ndata.bin\n", ".launcherignore": "!data.bin\n"}
    write_files(tmp_path, {**ignored, "tools/.gitignore": "own.txt\n!big.log\n"})
    assert names(tmp_path) == ["data.bin", "keep.log", "tools/big.log", "tools/run.py", "train.py"]
    shown = capsys.readouterr().err
    assert all(f"{name} was " in shown for name in ("tried-model", "mine")), (
        "nothing of a repository is left out in silence"
    )


def test_what_gitignore_names_is_reported_because_it_may_be_data(tmp_path: Path, capsys) -> None:
    repo = make(tmp_path / "repo", "train.py a.log train_data/1.txt big/1.txt")
    (repo / ".gitignore").write_bytes(b"\xef\xbb\xbftrain_data/\r\n*.log\r\n")
    (repo / ".launcherignore").write_text("big/\n")
    assert [name for name, _ in uploads.plan_program(repo).entries] == ["train.py"]
    message = capsys.readouterr().err
    assert "because .gitignore names them: train_data/, a.log. If" in message and "big" not in message
    (repo / ".launcherignore").write_text("!train_data/\n!*.log\n")  # as the message says
    assert [name for name, _ in uploads.plan_program(repo).entries] == [
        "a.log",
        "big/1.txt",
        "train.py",
        "train_data/1.txt",
    ]
    assert capsys.readouterr().err == ""


def test_a_link_inside_the_folder_is_sent_as_what_it_leads_to(tmp_path: Path) -> None:
    repo = write_files(tmp_path / "repo", {"train.py": "x = 1\n", "deploy/lib/a.py": "y = 2\n"})
    (repo / "lib").symlink_to("deploy/lib")
    (repo / "main.py").symlink_to("train.py")
    upload = uploads.plan_program(repo, check=False)
    assert [name for name, _ in upload.entries] == ["deploy/lib/a.py", "lib/a.py", "main.py", "train.py"]
    with (tmp_path / "sent.tar").open("wb") as out:
        write_tar(out, upload.entries)
    with tarfile.open(tmp_path / "sent.tar") as tar:
        assert {member.type for member in tar} == {tarfile.REGTYPE}
        tar.extractall(tmp_path / "sent", filter="data")
    (tmp_path / "sent" / SUMS).unlink()
    assert upload.values["training.programSha256"] == folder_sha256(tmp_path / "sent"), (
        "as the pods compute it"
    )


@pytest.mark.parametrize("target", ["../../outside", "../../outside/x.py", "/etc/passwd", ".."])
def test_a_link_that_cannot_be_sent_is_rejected_unless_it_is_ignored(tmp_path: Path, target: str) -> None:
    why = "a folder that contains it" if target == ".." else "leads out of the folder"
    make(tmp_path / "outside", "x.py")
    repo = make(tmp_path / "repo", "train.py sub/a.py")
    (repo / "sub" / "link").symlink_to(target)
    with pytest.raises(UsageError, match=f"(?s)sub/link is a symbolic link that .*{why}.*launcherignore"):
        list_files(repo)
    (repo / "sub" / ".launcherignore").write_text("link\n")
    assert names(repo) == ["sub/a.py", "train.py"]


def test_a_submodule_that_was_not_fetched_is_named(tmp_path: Path, capsys) -> None:
    repo = make(tmp_path / "repo", "train.py libs/here/a.py")
    modules = '[submodule "a"]\n\tpath = libs/here\n[submodule "b"]\n\tpath = libs/gone\n'
    (repo / ".gitmodules").write_text(modules)
    uploads.plan_program(repo)
    [line] = capsys.readouterr().err.splitlines()
    assert "libs/gone is empty" in line and "git submodule update --init" in line


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("PaddleSeg", "PaddleSeg"),
        ("My Line", "My-Line"),
        ("2024", "program-2024"),
        ("output", "program-output"),
        ("x" * 80, "x" * 63),
        ("推荐", "program-1452de"),
        ("推荐.csv", "program-97acfe.csv"),
        ("", "program-e3b0c4"),
    ],
)
def test_every_folder_and_file_has_a_valid_name_on_the_storage(name: str, stored: str) -> None:
    assert uploads.make_storage_name(name, "program") == stored


def test_a_name_that_the_storage_rejects_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", "train.py a\\b.txt")
    with pytest.raises(UsageError, match=r"cannot be sent: a name must have no backslash.*launcherignore"):
        list_files(repo)


@pytest.mark.parametrize(
    ("files", "chosen", "expected"),
    [
        (["trainer_config.py", "train.py", "a.py"], "", "trainer_config.py"),
        (["setup.py", "train.py", "utils.py"], "", "train.py"),
        (["setup.py", "main.py"], "", "main.py"),
        (["setup.py", "tools/train.py"], "tools/train.py", "tools/train.py"),
        (["setup.py", "tools/train.py"], "tools.train", "tools.train"),
        (["tools/__main__.py"], "tools", "tools"),
        (["train.py"], "paddlenlp.run", "paddlenlp.run"),
    ],
)
def test_the_script_is_found(tmp_path: Path, files: list[str], chosen: str, expected: str) -> None:
    assert choose_file(tmp_path, files, chosen) == expected


def test_the_script_may_be_given_as_a_path_from_here(tmp_path: Path, monkeypatch) -> None:
    make(tmp_path / "repo", "tools/train.py")
    monkeypatch.chdir(tmp_path)
    for chosen in ("./tools/train.py", "repo/tools/train.py", str(tmp_path / "repo" / "tools" / "train.py")):
        assert choose_file(Path("repo"), ["tools/train.py"], chosen) == "tools/train.py"


def test_a_file_in_place_of_the_folder_is_rejected_with_the_command(tmp_path: Path) -> None:
    make(tmp_path / "repo", "train.py")
    with pytest.raises(SettingsError, match=r"is a file, but .*Fix: .*/repo --script train\.py"):
        find_program_folder(tmp_path / "repo" / "train.py")


@pytest.mark.parametrize(
    ("files", "chosen", "message"),
    [
        (["run.sh", "train.py"], "run.sh", r"(?s)run.sh is no Python file.*--script.*candidates: train.py"),
        (["a.py", "scripts/run.sh"], "scripts/run.sh", "scripts/run.sh is no Python file"),
        (["train.ipynb", "a.py"], "train.ipynb", "jupyter nbconvert"),
        (["tools/train.py"], "tools.trian", "has no file tools.trian that is sent"),
        (["train.py"], "train.main", "has no file train.main that is sent"),
        (["setup.py", "tools/train.py", "tools/eval.py"], "", "(?s)no .py files at its top.*tools/train.py"),
        (
            ["a.py", "b.py", "deep/run_ps.py"],
            "",
            "(?s)several .py files.*--script.*a.py, b.py, deep/run_ps.py",
        ),
        (["readme.md"], "", "has no .py file"),
        (["a.py"], "tools/train.py", r"(?s)has no file tools/train.py that is sent.*candidates: a.py"),
    ],
)
def test_without_a_single_candidate_the_candidates_are_listed(
    tmp_path: Path, files: list[str], chosen: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose_file(tmp_path, files, chosen)


@pytest.mark.parametrize(
    ("text", "name", "runtime"),
    [
        (SERVERS, "train", "ps"),
        ("class Main:\n    def run(self):\n        fleet.init_worker()\n", "tools/static_ps_trainer", "ps"),
        ("import paddle\nfleet.init(is_collective=True)\n", "train", "collective"),
        ("import paddle.distributed.fleet as f\nf.init_worker()\n", "train", "ps"),
        ("from paddle.distributed.fleet import run_server\nrun_server()\n", "train", "ps"),
        ("pool.init_worker()\nself.rpc.run_server()\n", "train", "collective"),
        (SERVERS + "fleet.init(is_collective=True)\n", "train", "collective"),
        # paddle.Model, argparse, pandas and urllib
        ("inputs = [1]\nnetwork = optimizer = metrics = None\n", "train", "collective"),
        ("from urllib import parse\nCOLUMNS, LABEL = 'a b', 'c'\ndef inputs(): ...\n", "train", "collective"),
        ("COLUMNS = LABEL = ''\nfrom other import inputs, parse\ndef network(x): ...\n", "mine", "fleet"),
        ("", "trainer_config", "fleet"),
    ],
)
def test_the_runtime_is_recognized(tmp_path: Path, text: str, name: str, runtime: str) -> None:
    write_files(tmp_path, {f"{name}.py": text})
    assert find_runtime(tmp_path / f"{name}.py") == runtime
