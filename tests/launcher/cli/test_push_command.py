"""`push`: upload a program or a data file to a job's folder."""

import os
import stat

import pytest

from launcher.io.files import folder_sha256
from testkit.written_files import write_files

from .conftest import names


def test_push_uploads_a_program_and_prints_its_values(cli, job_folder, tmp_path):
    odd = os.fsdecode(b"caf\xe9.txt")  # not valid UTF-8
    program = {
        "trainer_config.py": "from complete_program import *\n",
        "__pycache__/x.pyc": "x",
        ".hidden": "x",
    }
    write_files(tmp_path / "mine", {**program, odd: "x"})
    out = cli.succeed("push", tmp_path / "mine", "--path", job_folder)
    assert "training.config=mine/trainer_config.py" in out
    assert f"training.programSha256={folder_sha256(job_folder / 'mine')}" in out
    assert names(job_folder / "mine") == [odd, "trainer_config.py"]
    assert stat.S_IMODE((job_folder / "mine").stat().st_mode) & 0o055 == 0o055


@pytest.mark.parametrize(
    "start", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# \xe9\n"], ids=["byte order mark", "latin-1"]
)
def test_push_accepts_every_encoding_of_python_files(cli, job_folder, tmp_path, start):
    write_files(tmp_path / "mine", {"train.py": start + b"print(1)\n"})
    cli.succeed("push", tmp_path / "mine", "--path", job_folder)


def test_push_sends_a_folder_of_files_as_a_source(cli, job_folder, tmp_path):
    contents = {"cat/1.png": "1", "labels/1.txt": "", ".DS_Store": "x", "__pycache__/x.pyc": "x"}
    write_files(tmp_path / "images", contents)
    out = cli.succeed("push", "--source", tmp_path / "images", "--path", job_folder)
    sent = job_folder.parent / "sources" / "images"
    assert names(sent) == ["cat", "labels"]
    assert (sent / "labels" / "1.txt").is_file()
    for value in ("data.source=file://images", "data.format=files", f"data.sha256={folder_sha256(sent)}"):
        assert value in out
    (tmp_path / "images" / "link").symlink_to("cat")
    cli.fail(
        64,
        "link is a link to a folder or to nothing; nothing was sent",
        "push",
        "--source",
        tmp_path / "images",
        "--path",
        job_folder,
    )
