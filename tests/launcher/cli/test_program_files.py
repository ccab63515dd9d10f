"""Tests of what is sent of a program's folder, and of how its script is found, with folders like real repositories."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from launcher.cli import uploads
from launcher.cli.errors import UsageError
from launcher.cli.program_files import choose_file, find_runtime, list_files
from launcher.io.files import folder_sha256
from launcher.io.tar_stream import SUMS, write_tar

SERVERS = "from paddle.distributed import fleet\nif fleet.is_server():\n    fleet.run_server()\n"


def make(folder: Path, **texts: str) -> Path:
    """Write files into `folder`; a name has `__` for a slash and no suffix for a .py file."""
    for name, text in texts.items():
        path = folder / (name.replace("__", "/") + ("" if "." in name else ".py"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    """Return the names of the files that are sent."""
    return [name for name, _ in list_files(folder)]


def test_ignored_hidden_and_generated_files_are_not_sent(tmp_path: Path) -> None:
    make(
        tmp_path,
        train="",
        tools__run="",
        **{"data.bin": "", "keep.log": "", "a.log": "", "tools__big.log": ""},
    )
    make(tmp_path, **{"venv__pyvenv.cfg": "", "venv__x.txt": "", "out__model.bin": "", "tools__own.txt": ""})
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_text("")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/out/\ndata.bin\n")
    (tmp_path / ".launcherignore").write_text("!data.bin\n")
    (tmp_path / "tools" / ".gitignore").write_text("own.txt\n!big.log\n")
    assert names(tmp_path) == ["data.bin", "keep.log", "tools/big.log", "tools/run.py", "train.py"]


def test_a_link_inside_the_folder_is_sent_as_what_it_leads_to(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", train="x = 1\n", deploy__lib__a="y = 2\n")
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
    make(tmp_path / "outside", x="")
    repo = make(tmp_path / "repo", train="", sub__a="")
    (repo / "sub" / "link").symlink_to(target)
    with pytest.raises(UsageError, match=f"(?s)sub/link is a symbolic link that .*{why}.*launcherignore"):
        list_files(repo)
    (repo / "sub" / ".launcherignore").write_text("link\n")
    assert names(repo) == ["sub/a.py", "train.py"]


def test_a_name_that_the_storage_rejects_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", train="")
    (repo / "a\\b.txt").write_text("")
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


@pytest.mark.parametrize(
    ("files", "chosen", "message"),
    [
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
        ("class Main:\n    def run(self):\n        fleet.init_worker()\n", "tools__static_ps_trainer", "ps"),
        ("import paddle\nfleet.init(is_collective=True)\n", "train", "collective"),
        ("inputs = {}\ndef parse(line): ...\n", "mine", "fleet"),
        ("", "trainer_config", "fleet"),
    ],
)
def test_the_runtime_is_recognized(tmp_path: Path, text: str, name: str, runtime: str) -> None:
    make(tmp_path, **{name: text})
    assert find_runtime(tmp_path / f"{name.replace('__', '/')}.py") == runtime
