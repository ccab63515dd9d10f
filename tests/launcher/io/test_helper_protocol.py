"""Tests of the helper side of the protocol, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.io.helper_protocol import python_environ

pytestmark = pytest.mark.slow

HELPER = """
import time
from launcher.errors import DataError
from launcher.io.helper_protocol import main

def work(request):
    print("started", flush=True)
    time.sleep(request.get("sleep", 0))
    if "fail" in request:
        raise DataError(request["fail"])
    return {"sum": sum(request["numbers"])}

main(work)
"""


def start(answer: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", HELPER, str(answer)],
        env=python_environ(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def send(process: subprocess.Popen[bytes], request: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("request_", "answer", "code"),
    [
        ({"numbers": [1, 2]}, {"result": {"sum": 3}}, 0),
        ({"fail": "row 7 is wrong"}, {"error": "row 7 is wrong"}, 65),
        ({}, {"error": "KeyError: 'numbers'"}, 70),
    ],
)
def test_the_answer_has_the_result_or_the_error(
    tmp_path: Path, request_: dict[str, object], answer: dict[str, object], code: int
) -> None:
    with start(tmp_path / "answer.json") as process:
        send(process, request_)
        assert process.wait(60) == code
    assert json.loads((tmp_path / "answer.json").read_text()) == answer


def test_an_answer_that_cannot_be_written_keeps_the_exit_code_and_is_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error may be that the disk of the answer is full."""
    with start(tmp_path / "absent" / "answer.json") as process:
        send(process, {"fail": "row 7 is wrong"})
        assert process.wait(60) == 65
    assert "error: row 7 is wrong" in capfd.readouterr().err


def test_a_helper_whose_launcher_dies_is_killed(tmp_path: Path) -> None:
    with start(tmp_path / "answer.json") as process:
        send(process, {"numbers": [], "sleep": 600})
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"started\n"
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL
    assert not (tmp_path / "answer.json").exists()


def test_a_helper_without_a_request_exits_when_its_launcher_dies(tmp_path: Path) -> None:
    with start(tmp_path / "answer.json") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 143
