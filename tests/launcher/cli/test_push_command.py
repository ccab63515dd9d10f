"""`push`: upload a program or a data file to a job's folder."""

import os
import stat

import pytest

from launcher.io.files import folder_sha256

from .conftest import names


def make_program(folder):
    folder.mkdir()
    (folder / "trainer_config.py").write_text("from complete_program import *\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    return folder


def test_push_uploads_a_program_and_prints_its_values(cli, job_folder, tmp_path):
    odd = os.fsdecode(b"caf\xe9.txt")  # not valid UTF-8
    (make_program(tmp_path / "mine") / odd).write_text("x")
    (tmp_path / "mine" / ".hidden").write_text("x")
    code, out, err = cli("push", tmp_path / "mine", "--path", job_folder)
    assert code == 0, err
    assert "training.config=mine/trainer_config.py" in out
    assert f"training.programSha256={folder_sha256(job_folder / 'mine')}" in out
    assert names(job_folder / "mine") == [odd, "trainer_config.py"]
    assert stat.S_IMODE((job_folder / "mine").stat().st_mode) & 0o055 == 0o055


@pytest.mark.parametrize(
    "start", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# \xe9\n"], ids=["byte order mark", "latin-1"]
)
def test_push_accepts_every_encoding_of_python_files(cli, job_folder, tmp_path, start):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_bytes(start + b"print(1)\n")
    code, _, err = cli("push", tmp_path / "mine", "--path", job_folder)
    assert code == 0, err


def test_push_sends_a_folder_of_files_as_a_source(cli, job_folder, tmp_path):
    contents = {"cat/1.png": b"1", "labels/1.txt": b"", ".DS_Store": b"x", "__pycache__/x.pyc": b"x"}
    for name, content in contents.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(content)
    code, out, err = cli("push", "--source", tmp_path / "images", "--path", job_folder)
    assert code == 0, err
    sent = job_folder.parent / "sources" / "images"
    assert names(sent) == ["cat", "labels"]
    assert (sent / "labels" / "1.txt").is_file()
    for value in ("data.source=file://images", "data.format=files", f"data.sha256={folder_sha256(sent)}"):
        assert value in out
    (tmp_path / "images" / "link").symlink_to("cat")
    code, _, err = cli("push", "--source", tmp_path / "images", "--path", job_folder)
    assert (code, "link is a link to a folder or to nothing; nothing was sent" in err) == (64, True)
