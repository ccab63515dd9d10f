"""Tests of runtime v1: the command lines of PaddlePaddle's tutorial of 2017, argument by argument."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import SettingsError
from launcher.paths import Position
from launcher.runtimes.runtime_protocol import RankAttempt
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from testkit.written_files import write_script
from tests.launcher.supervisor.loopback_gang import pod_environ


def gang(rank: int = 0, resume: Position | None = None, **env: str) -> RankAttempt:
    s = TrainSettings.from_environ(
        pod_environ(runtime="v1", JOB_NAME="paddle-cluster-job", TRAINER_COUNT="4", **env)
    )
    return RankAttempt(
        rank=rank,
        hosts=("192.168.129.66", "192.168.223.143", "192.168.129.71"),
        settings=s,
        attempt=0,
        resume=resume,
    )


def test_the_trainer_command_is_that_of_the_tutorial_with_num_gradient_servers() -> None:
    here = gang()
    spec = V1Runtime().trainers(here)[0]
    assert spec.argv == (
        "paddle", "train",
        "--nics=eth0", "--port=7164",
        "--ports_num=2", "--comment=paddle_process_by_paddle",
        "--pservers=192.168.129.66,192.168.223.143,192.168.129.71",
        "--ports_num_for_sparse=2", "--config=./trainer_config.py",
        "--trainer_count=4", "--num_passes=10", "--use_gpu=0",
        "--log_period=50", "--dot_period=10", "--saving_period=1",
        "--local=0", "--trainer_id=0",
        "--save_dir=/home/jobpath/paddle-cluster-job/output",
        "--num_gradient_servers=3",
    )  # fmt: skip
    assert spec.cwd == here.settings.work.program
    assert spec.log == here.settings.work.log("train.log")
    assert spec.copy == Path("/home/jobpath/paddle-cluster-job/output/node_0/train.log")


def test_the_pserver_is_one_process_that_listens_on_dense_and_sparse_ports() -> None:
    (spec,) = V1Runtime().pservers(gang(rank=2))
    assert spec.argv == (
        "paddle", "pserver", "--nics=eth0", "--port=7164", "--ports_num=2",
        "--comment=paddle_process_by_paddle", "--ports_num_for_sparse=2", "--num_gradient_servers=3",
    )  # fmt: skip
    assert spec.ready_ports == (7164, 7165, 7166, 7167)
    assert spec.ends_itself is False
    assert spec.log.name == "server.log"
    assert spec.copy is not None
    assert spec.copy.parent.name == "node_2"


def test_a_resume_starts_after_the_saved_pass_and_trains_the_remaining_ones() -> None:
    argv = V1Runtime().trainers(gang(resume=Position(7)))[0].argv
    assert "--start_pass=7" in argv
    assert "--num_passes=3" in argv


def test_extra_arguments_are_passed_on_at_the_end() -> None:
    argv = V1Runtime().trainers(gang(args=["--parallel_nn=1", "--seed=a b"]))[0].argv
    assert argv[-2:] == ("--parallel_nn=1", "--seed=a b")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (None, "no `paddle` on PATH"),
        ("echo 'usage: paddle [version]'; exit 0", "`paddle pserver` is not a command"),
        ("echo '-nics -port -ports_num'; exit 1", None),  # gflags' --help exits with 1
    ],
)
def test_an_image_without_the_binary_or_its_sub_commands_is_rejected_before_the_start(
    tmp_path: Path, script: str | None, error: str | None
) -> None:
    if script is not None:
        write_script(tmp_path / "paddle", f"#!/bin/sh\n{script}\n")
    settings = replace(gang().settings, environ={"PATH": str(tmp_path)})
    with pytest.raises(SettingsError, match=error) if error else contextlib.nullcontext():
        V1Runtime().check(settings)


def test_newest_checkpoint_returns_the_last_pass_with_done(tmp_path: Path) -> None:
    runtime = V1Runtime()
    assert runtime.newest_checkpoint(tmp_path) is None
    for number in (0, 2, 10):
        (tmp_path / f"pass-{number:05d}").mkdir()
        (tmp_path / f"pass-{number:05d}" / "done").touch()
    (tmp_path / "pass-00011").mkdir()
    assert runtime.newest_checkpoint(tmp_path) == Position(11)
    assert runtime.is_complete(tmp_path, gang(passes=11).settings)
    assert not runtime.is_complete(tmp_path, gang(passes=12).settings)
