"""Tests of the Pulumi stack `local`: its settings file, salt and examples."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from local import __main__ as commands
from local import local_stack
from local.external_commands import LocalError, run_command
from local.paths import CLONE
from testkit.written_files import write_files


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Return a copy of the stack's files with a separate state folder."""
    monkeypatch.setattr(local_stack, "PULUMI", tmp_path / "pulumi")
    monkeypatch.setattr(local_stack, "PASSPHRASE", tmp_path / "passphrase")
    monkeypatch.setattr(local_stack, "HOME", tmp_path / "home")
    made = tmp_path / "clone"
    (made / "local").mkdir(parents=True)
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml", "local/Pulumi.local.yaml"):
        shutil.copy(CLONE / name, made / name)
    shutil.copytree(CLONE / local_stack.EXAMPLES, made / local_stack.EXAMPLES)
    return made


@pytest.fixture
def stack(clone):
    """Create the stack; return the environment of `eval "$(make -s env)"`."""
    local_stack.ensure_stack_files(clone)
    env = {**os.environ, **local_stack.tool_environment()}
    local_stack.ensure_stack_exists(env, clone)
    return env


def pulumi(clone, env, *words):
    return run_command(["pulumi", *words, "--non-interactive"], why="the test", env=env, cwd=clone)


def write_lock(name, pid, hostname, **more):
    """Write a lock of the stack's state by this process, as pulumi does; return the folder of the locks."""
    folder = local_stack.PULUMI / ".pulumi/locks/organization/paddle-training/local"
    lock = json.dumps({"pid": pid, "hostname": hostname, **more})
    return write_files(folder, {f"{name}.json": lock})


def ended_process():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_only_locks_of_ended_processes_of_this_machine_are_removed(clone):
    ended, here = ended_process(), socket.gethostname()
    write_lock("ended", ended, here)
    write_lock("runs", os.getpid(), here)
    write_lock("elsewhere", ended, "other")
    folder = write_lock("odd", "1/..", here)
    (folder / "ended.json.attrs").touch()
    local_stack.ensure_stack_files(clone)
    assert sorted(path.stem for path in folder.iterdir()) == ["elsewhere", "odd", "runs"]


@pytest.mark.slow
def test_a_command_works_after_one_that_was_killed(clone, stack):
    about = {"username": "root", "timestamp": "2026-01-01T00:00:00Z"}
    write_lock("00000000-0000-0000-0000-000000000000", ended_process(), socket.gethostname(), **about)
    with pytest.raises(LocalError, match="locked by 1 lock"):
        pulumi(clone, stack, "refresh", "-s", "local", "--yes")
    local_stack.ensure_stack_files(clone)
    pulumi(clone, stack, "refresh", "-s", "local", "--yes")


@pytest.mark.slow
def test_write_settings_keeps_other_settings_and_comments_and_other_stacks_files(clone, stack):
    pulumi(
        clone, stack, "config", "set", "-s", "local", "--path", "paddle-training:valuesFiles[0]", "mine.yaml"
    )
    pulumi(clone, stack, "config", "set", "-s", "local", "--path", "paddle-training:values.trainers", "2")
    local_stack.ensure_stack_files(clone)
    assert local_stack.read_settings(clone)["valuesFiles"] == ["mine.yaml"]
    with pytest.raises(
        LocalError, match=r"valuesFiles in .* is \['mine.yaml'\], but the demo trains one of the examples"
    ):
        local_stack.read_stack_example(clone)

    local_stack.write_settings(
        stack, {"valuesFiles": [f"{local_stack.EXAMPLES}/ctr.yaml"], "kubeconfig.context": "other"}, clone
    )
    assert local_stack.read_stack_example(clone) == "ctr"
    assert local_stack.read_settings(clone)["kubeconfig"]["context"] == "other"
    assert local_stack.read_settings(clone)["values"]["trainers"] == 2, "what was not chosen stays"
    assert "# {launcher} is the digest" in local_stack.settings_file(clone).read_text(), "comments too"

    dev = (clone / "Pulumi.dev.yaml").read_text()
    pulumi(clone, stack, "stack", "init", "dev")
    assert (clone / "Pulumi.dev.yaml").read_text().startswith(dev.rstrip()), "but for its salt"
    assert pulumi(clone, stack, "config", "get", "-s", "dev", "paddle-training:target").strip() == "aws"


def test_the_salt_of_a_wiped_state_is_removed_from_the_stacks_file(clone, tmp_path):
    local_stack.ensure_stack_files(clone)
    kept = local_stack.settings_file(clone).read_text()
    local_stack.settings_file(clone).write_text(f"{kept}encryptionsalt: v1:a:b\n")
    local_stack.ensure_stack_files(clone)
    assert "encryptionsalt" in local_stack.settings_file(clone).read_text()
    (tmp_path / "passphrase").unlink()
    os.utime(local_stack.settings_file(clone), (0, 0))
    local_stack.ensure_stack_files(clone)
    assert local_stack.settings_file(clone).read_text() == kept


def test_an_unknown_example_raises_an_error_that_lists_the_examples():
    with pytest.raises(LocalError, match=r"CONFIG=vision .*ctr, quick_start, recommendation"):
        local_stack.check_example_exists("vision")


def test_env_without_root_has_only_path(monkeypatch, capsys):
    """`python -m launcher try` needs no more; the stack's files are below /var/lib."""
    folder = Mock(**{"mkdir.side_effect": PermissionError})
    monkeypatch.setattr(local_stack, "PULUMI", folder)
    commands.env()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("=")[0] for line in lines] == ["export PATH"]
    assert str(Path(sys.executable).parent) in lines[0]
