"""`push`: upload a program or a data file to a job's folder."""

import os
import stat

import pytest

from launcher.io.files import folder_sha256

from .conftest import names

COMPLETE_PROGRAM = """
COLUMNS, LABEL = ("text", "label"), "label"
def inputs(job): ...
def parse(row, job): ...
try:
    from other import network
except ImportError:
    def network(inputs, job): ...
def metrics(prediction, label): ...
optimizer = None
"""


def make_program(folder):
    folder.mkdir()
    (folder / "trainer_config.py").write_text(COMPLETE_PROGRAM)
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


def test_push_for_another_job_uploads_to_that_jobs_folder(cli, job_folder, tmp_path):
    program = make_program(tmp_path / "mine")
    assert cli("push", program, "--path", job_folder, "--job", "next-job")[0] == 0
    assert names(job_folder.parent / "next-job" / "mine") == ["trainer_config.py"]
    code, _, err = cli("push", program, "--path", job_folder, "--job", "../x")
    assert code == 64
    assert "--job" in err


@pytest.mark.parametrize("name", ["output", "runs", "tables", "sources", "0", ".x", "a b"])
def test_push_rejects_reserved_and_invalid_names(cli, job_folder, tmp_path, name):
    code, _, err = cli("push", make_program(tmp_path / name), "--path", job_folder)
    assert code == 64
    assert "Fix: rename your folder or file" in err


def test_push_rejects_an_incomplete_program_unless_no_check_is_given(cli, job_folder, tmp_path):
    program = make_program(tmp_path / "mine")
    (program / "trainer_config.py").write_text(COMPLETE_PROGRAM.replace("def metrics", "def others"))
    code, _, err = cli("push", program, "--path", job_folder)
    assert code == 64
    assert "metrics(prediction, label)" in err
    assert "network(" not in err
    assert not (job_folder / "mine").exists()
    assert cli("push", program, "--no-check", "--path", job_folder)[0] == 0


@pytest.mark.parametrize("files", [("fit.py",), ("train.py", "network.py")])
def test_push_accepts_a_script_for_runtime_collective(cli, job_folder, tmp_path, files):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in files:
        (folder / name).write_text(
            "import sys\nprint(sys.argv)\nnetwork, metrics = [], {}\n"
        )  # names of programs
    code, out, _ = cli("push", folder, "--path", job_folder)
    assert (code, f"training.config=mine/{files[0]}" in out) == (0, True)
    (folder / "other.py").write_text("")
    (folder / "train.py").unlink(missing_ok=True)
    code, _, err = cli("push", folder, "--path", job_folder)
    assert (code, "a script for runtime collective to train.py" in err) == (64, True)


def test_push_rejects_folders_that_are_not_programs(cli, job_folder, tmp_path):
    empty, broken = tmp_path / "empty", make_program(tmp_path / "broken")
    empty.mkdir()
    (broken / "trainer_config.py").write_text("def x(:\n")
    assert "no .py file" in cli("push", empty, "--path", job_folder)[2]
    assert "trainer_config.py, line 1" in cli("push", broken, "--path", job_folder)[2]
    linked = make_program(tmp_path / "linked")
    for target, kind in (("/etc/passwd", "file"), ("/etc", "folder")):
        (linked / "data").symlink_to(target)
        message = cli("push", linked, "--path", job_folder)[2]
        assert "is a symbolic link" in message
        assert f"replace the link with the {kind} itself" in message
        (linked / "data").unlink()
    assert not any((job_folder / name).exists() for name in ("empty", "broken", "linked"))


def test_an_equal_file_is_not_sent_again_and_a_different_one_is_rejected(cli, job_folder, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("1,a\n")
    push = ("push", "--path", job_folder, "--source", file)
    assert cli(*push)[0] == 0
    stored = job_folder.parent / "sources" / "rows.csv"
    before = stored.stat().st_ino
    code, out, err = cli(*push)
    assert (code, stored.stat().st_ino) == (0, before)
    assert "nothing to send" in err
    assert "data.source=file://rows.csv" in out
    assert "data.sha256=" in out
    for other in ("2,b\n", "a longer one\n"):
        file.write_text(other)
        code, _, err = cli(*push)
        assert code == 3
        assert "exists already with other content; nothing was sent" in err
        assert stored.read_text() == "1,a\n"
    assert cli(*push, "--force")[0] == 0
    assert stored.read_text() == "a longer one\n"


@pytest.mark.parametrize(
    "start", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# \xe9\n"], ids=["byte order mark", "latin-1"]
)
def test_push_accepts_every_encoding_of_python_files(cli, job_folder, tmp_path, start):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_bytes(start + b"print(1)\n")
    code, _, err = cli("push", tmp_path / "mine", "--path", job_folder)
    assert code == 0, err
