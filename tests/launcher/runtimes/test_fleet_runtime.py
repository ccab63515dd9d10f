"""Tests of the command lines and environments that runtime fleet builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import SettingsError
from launcher.paths import Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.runtimes.runtime_protocol import RankAttempt
from launcher.trainer.process_settings import ProcessSettings
from testkit.pod_settings import chart_values
from tests.launcher.trainer.loopback_training import PROGRAMS, LoopbackTraining

RUNTIME = FleetRuntime()


def gang(tmp_path: Path, rank: int = 0, environ: dict[str, str] | None = None, **fields: Any) -> RankAttempt:
    data = [tmp_path / str(i) for i in range(2)]
    own = {"values": chart_values(**fields), "environ": environ or {}, "resume": Position(5)}
    return LoopbackTraining(tmp_path, data, PROGRAMS / "quick_start", **own).gang(rank)


def test_port_and_ports_num_decide_the_pservers_of_a_pod(tmp_path: Path) -> None:
    specs = RUNTIME.pservers(gang(tmp_path, 1, port=7164, ports_num=3))
    assert [spec.ready_ports for spec in specs] == [(7164,), (7165,), (7166,)]
    assert [spec.env["PADDLE_PORT"] for spec in specs] == ["7164", "7165", "7166"]
    assert [spec.log.name for spec in specs] == ["server.log", "server-1.log", "server-2.log"]
    assert {(spec.env["POD_IP"], spec.env["PADDLE_TRAINERS_NUM"]) for spec in specs} == {("127.0.0.2", "2")}


def test_every_process_has_the_same_list_of_servers_and_each_server_finds_itself_in_it(
    tmp_path: Path,
) -> None:
    lists = set()
    for rank in (0, 1):
        here = gang(tmp_path, rank, port=7164, ports_num=2)
        servers = RUNTIME.pservers(here)
        lists |= {spec.env["PADDLE_PSERVERS_IP_PORT_LIST"] for spec in [*servers, *RUNTIME.trainers(here)]}
        for spec in servers:
            own = f"{spec.env['POD_IP']}:{spec.env['PADDLE_PORT']}"
            assert own in spec.env["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    assert lists == {"127.0.0.1:7164,127.0.0.1:7165,127.0.0.2:7164,127.0.0.2:7165"}


def test_every_trainer_receives_the_store_of_rank_0_and_its_secret_path(tmp_path: Path) -> None:
    attempts = [gang(tmp_path, rank, ports_num_sparse=0) for rank in (0, 1)]
    for attempt in attempts:
        RUNTIME.check(attempt.settings)
        settings = ProcessSettings.from_environ(RUNTIME.trainers(attempt)[0].env)
        assert (settings.hosts[0], settings.store) == ("127.0.0.1", attempts[0].store)


def test_every_process_receives_the_model_that_rank_0_found_for_previous(tmp_path: Path) -> None:
    attempt = gang(tmp_path, init_model="previous")
    found = replace(attempt, settings=replace(attempt.settings, init_model="job/runs/a"))
    for spec in (*RUNTIME.trainers(found), *RUNTIME.pservers(found)):
        assert ProcessSettings.from_environ(spec.env).init_model == "job/runs/a"


def test_paddle_variables_of_the_pod_are_not_passed_on(tmp_path: Path) -> None:
    dirty = {
        "PADDLE_TRAINER_ID": "7",
        "PADDLE_GLOO_FS_PATH": "/x",
        "TRAINING_ROLE": "TRAINER",
        "HTTPS_PROXY": "p",
    }
    spec = RUNTIME.pservers(gang(tmp_path, environ=dirty))[0]
    assert spec.env["TRAINING_ROLE"] == "PSERVER"
    assert not {"PADDLE_TRAINER_ID", "PADDLE_GLOO_FS_PATH"} & set(spec.env)
    assert spec.env["HTTPS_PROXY"] == "p", "other variables of the pod are passed on"


def test_a_process_reads_the_settings_of_its_pod_and_attempt(tmp_path: Path) -> None:
    here = gang(tmp_path, 1, trainer_count=3, args=["--learning_rate=0.1"])
    settings = ProcessSettings.from_environ(RUNTIME.trainers(here)[0].env)
    assert (settings.rank, settings.trainers, settings.server, settings.trainer_count) == (1, 2, -1, 3)
    assert settings.args == ("--learning_rate=0.1",)
    assert (settings.resume, settings.attempt, settings.hosts) == (Position(5), 0, ("127.0.0.1", "127.0.0.2"))
    assert (settings.nic, settings.layout, settings.work) == ("lo", here.settings.layout, here.settings.work)


def test_a_process_started_by_hand_fails_with_what_it_needs(tmp_path: Path) -> None:
    for environ in ({}, {"PADDLE_LAUNCHER_PROCESS_FILE": str(tmp_path / "none.json")}):
        with pytest.raises(SettingsError, match=r"PADDLE_LAUNCHER_PROCESS_FILE is .* Fix: start `python -m"):
            ProcessSettings.from_environ(environ)
