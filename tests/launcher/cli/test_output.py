"""What commands print: JSON alone with `-o json`, escaped control characters, full disks and closed pipes."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.commands import results
from launcher.cli.errors import describe_os_error, storage_failure
from launcher.cli.terminal import escape_controls, print_blocks
from launcher.errors import EXIT_STORAGE, StorageError
from testkit.written_files import write_files

from .conftest import update_json

MAIN = "import sys; from launcher.__main__ import main; sys.exit(main(sys.argv[1:]))"
ROOT = Path(__file__).resolve().parents[3]
NOISE = """
import atexit, ctypes, logging, os, subprocess, sys, threading, warnings
def noise(where):
    print("printed by", where)
    sys.stdout.write("written\\n"); sys.__stdout__.write("original\\n"); sys.__stdout__.flush()
    os.write(1, b"descriptor\\n"); os.system("echo child"); subprocess.run(["echo", "other child"])
    ctypes.CDLL(None).puts(b"from C"); ctypes.CDLL(None).fflush(None)
    warnings.warn("a warning")
    logging.getLogger().addHandler(logging.StreamHandler(sys.stdout)); logging.error("logged")
    thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
noise("import")
atexit.register(noise, "exit")
"""


def run(*argv: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in the clone; return how it ended, with its stdout and stderr as text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, *map(str, argv)], cwd=ROOT, text=True, timeout=120, check=False, **pipes
    )


def test_stdout_has_only_the_json_whatever_prints_there() -> None:
    code = f"""
from launcher.cli import terminal
terminal.reserve_stdout()
exec({NOISE!r}, {{}})
terminal.print_json({{"a": float("nan"), "b": "\\x9b\\u202e\\x7f\\udce9"}})
exec({NOISE!r}, {{}})
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"a": None, "b": "\x9b\u202e\x7f\udce9"}
    assert done.stdout.isascii()
    for text in ("by import", "written", "original", "descriptor", "child", "from C", "logged", "thread"):
        assert text in done.stderr


def test_commands_print_json_to_the_descriptor_of_stdout(job: Path) -> None:
    done = run("-c", f"{NOISE}\n{MAIN}", "status", "--path", job, "-o", "json")
    before = done.stdout.partition("\n{")[0].partition("\n[")[0]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.removeprefix(before)), (
        "what was printed before the command is not the command's"
    )
    assert "printed by exit" in done.stderr


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b1A\u202ename\u2066\r\b\x7f"


def hostile(job: Path) -> None:
    """Put control characters into all texts of a job's files that are shown."""
    output = job / "output"
    status = json.loads((output / "status.json").read_text())
    for rank in status["ranks"]:
        rank |= {"pod": HOSTILE, "node": HOSTILE, "state": HOSTILE}
    restarts = [{"attempt": 0, "cause": HOSTILE, "at": 1.0}]
    update_json(
        output / "status.json", runId=HOSTILE, cause=HOSTILE, ranks=status["ranks"], restarts=restarts
    )
    fingerprint = {"trainers": 3, HOSTILE: HOSTILE, "args": [f"--{HOSTILE}={HOSTILE}"]}
    changes = {"runId": HOSTILE, "score": {HOSTILE: 0.5}, "exported": {"to": HOSTILE}, "config": HOSTILE}
    update_json(output / "run.json", restarts=restarts, fingerprint=fingerprint, **changes)
    (output / "program.json").write_text(json.dumps({"files": {HOSTILE: HOSTILE}}))
    (output / "metrics.csv").write_text(
        "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_\x1b[2J\u202e\n0,0,0,1,1,1,1,1\n"
    )
    (output / "node_0" / "train.log").write_text(f"{HOSTILE}\nsecond line\n")


CONTROLS = set(HOSTILE) - set("]0;title[2J1Aname")


@pytest.mark.parametrize(
    ("argv", "state"),
    [
        *(((name,), "complete") for name in ("status", "wait", "results", "runs", "compare")),
        (("clean", "--keep", "0"), "complete"),
        (("wait", "-o", "json"), "complete"),
        (("wait",), "failed"),
    ],
)
def test_control_characters_of_files_are_printed_as_escapes(
    cli: Any, job: Path, argv: tuple[str, ...], state: str
) -> None:
    hostile(job)
    update_json(job / "output" / "status.json", state=state)
    write_files(job / "runs", {f"a{HOSTILE}/run.json": '{"started": 1}'})
    code, out, err = cli(argv[0], "--path", job, *argv[1:])
    assert "\\u001b" in (err if state == "failed" else out + err), (code, err)
    assert (code == 1, CONTROLS & set(out + err)) == (state == "failed", set())


def on_terminal(*argv: object) -> str:
    """Run a command with a terminal as stdout; return what it prints."""
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", "launcher", *map(str, argv)]
    with subprocess.Popen(words, cwd=ROOT, stdout=follower, stderr=subprocess.PIPE) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                block = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            shown += block
        process.wait(60)
    os.close(leader)
    return shown.decode()


def test_a_log_is_escaped_on_a_terminal_and_unchanged_in_a_pipe(cli: Any, job: Path) -> None:
    hostile(job)
    assert cli("logs", "--path", job)[1] == f"{HOSTILE}\nsecond line\n"
    shown = on_terminal("logs", "--path", job)
    assert "\\u001b[2J" in shown and "second line" in shown
    assert not CONTROLS - {"\r"} & set(shown)
    shown = on_terminal("status", "--path", job)
    assert "\\u001b" in shown
    assert "\x1b]0;" not in shown and "\u202e" not in shown
    assert "\x1b[32mcomplete" in shown, "its own colours stay"


def test_a_log_on_a_terminal_is_the_same_for_every_size_of_its_blocks(capsys: Any, monkeypatch: Any) -> None:
    log = "caf\u00e9\r\n10 %\r20 %\nend".encode() + b"\xc3"
    for size in range(1, len(log) + 1):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_blocks(log[at : at + size] for at in range(0, len(log), size))
        assert capsys.readouterr().out == "caf\u00e9\n10 %\n20 %\nend\ufffd"


def test_text_of_users_stays_readable() -> None:
    text = "naïve 表 😀\u200d🚒\tcolumn\nnext \u0645\u06cc\u200c\u062e"
    assert escape_controls(text) == text


COMMANDS = [("status",), ("logs",), ("status", "-o", "json")]
"""One command for each way to print: text, the bytes of a file, and JSON."""


@pytest.mark.parametrize("argv", COMMANDS)
def test_a_full_disk_behind_stdout_has_its_exit_code(job: Path, argv: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run("-m", "launcher", argv[0], "--path", job, *argv[1:], stdout=full)
    assert done.returncode == EXIT_STORAGE, done.stderr
    assert done.stderr.startswith("error: No space left on device. Fix: free space on this disk")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("argv", [*COMMANDS, ("--help",)])
def test_a_closed_pipe_ends_a_command_as_it_ends_other_tools(job: Path, argv: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    path = () if argv[0] == "--help" else ("--path", job)
    done = run("-m", "launcher", argv[0], *path, *argv[1:], stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("closed", "argv"),
    [
        *((closed, ("status",)) for closed in ("2>&-", ">&- 2>&-")),
        *((">&-", argv) for argv in (("logs",), ("status", "-o", "json"))),
    ],
)
def test_a_stdout_or_stderr_that_is_closed_is_no_bug(job: Path, closed: str, argv: tuple[str, ...]) -> None:
    shell = f"import os, sys; os.execvp('sh', ['sh', '-c', 'exec \"$@\" {closed}', 'sh', *sys.argv[1:]])"
    done = run("-c", shell, sys.executable, "-m", "launcher", *argv, "--path", job)
    assert (done.returncode, bool(done.stdout), done.stderr) == (0, closed == "2>&-", "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_target_of_results(cli: Any, job: Path, monkeypatch: Any, number: int) -> None:
    def save(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(results, "save_tar", save)
    code, _, err = cli("results", "--path", job, "--to", job / "to")
    assert (code, (job / "to").exists()) == (EXIT_STORAGE, False)
    assert f"{os.strerror(number)}: {job}/to. Fix: free space on this disk" in err


def test_a_full_disk_or_storage_has_its_exit_code_and_the_fix_of_its_machine() -> None:
    error = StorageError("no space left while writing tried-model (0 bytes free). Fix: delete runs/")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    failure = describe_os_error(error)
    assert str(failure).startswith(
        "no space left while writing tried-model (0 bytes free). Fix: free space on this"
    ), "not that of a pod"
    temporary = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    through_a_pod = (
        storage_failure("/home/jobpath/sources has 5 bytes free, but 6 are needed"),
        storage_failure("No space left on device: /x. Fix: y"),
    )
    for full in (failure, describe_os_error(temporary), *through_a_pod):
        assert full.exit_code == EXIT_STORAGE
    assert storage_failure("No such file or directory: /x").exit_code == 3


@pytest.mark.parametrize("name", ["typer", "rich", "yaml", "kubernetes"])
def test_a_missing_package_of_the_command_line_is_one_message(job: Path, name: str) -> None:
    without = f"import sys; sys.modules[{name!r}] = None; {MAIN}"
    done = run("-c", without, "status", *(() if name == "kubernetes" else ("--path", job)))
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    message = f"error: this command needs the Python package {name}, which is not installed. Fix: pip install '.' in"
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
