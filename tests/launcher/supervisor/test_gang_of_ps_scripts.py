"""Gangs on loopback that run a user's script for parameter servers (runtime ps), without Paddle and with it."""

from __future__ import annotations

import gzip
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.paths import Position
from tests.launcher.supervisor.loopback_gang import HERE, REPO, WITH_PADDLE, LoopbackGang

pytestmark = pytest.mark.slow


PAGE = REPO / "docs" / "how-to" / "parameter-server-script.md"

SAVE_AGAIN = """        again = f"{run.output}/checkpoints/{run.checkpoint.name}"
        fleet.save_persistables(exe, again)
"""
LOG_SLOWLY = """            print(f"epoch {epoch} step {step}", flush=True)
            __import__("time").sleep(0.1)
"""


def build_gang(root: Path, script: str = "", **changes: Any) -> LoopbackGang:
    """Return a gang of two pods that runs a script without data, by default the fake one."""
    usual = {
        "trainers": 2,
        "runtime": "ps",
        "servers": 2,
        "config_file": "mine/train.py",
        "rendezvous_seconds": 30,
        "data_digest": "none",
        "passes": 1,
    }
    gang = LoopbackGang(root, **{**usual, **changes})
    (gang.job / "mine" / "train.py").write_text(script or (HERE / "fake_ps_script.py").read_text())
    return gang


def test_servers_are_spread_over_the_pods_and_stopped_after_the_last_trainer(tmp_path: Path) -> None:
    with build_gang(tmp_path, servers=3, processes_per_pod=2, CONF_PADDLE_PORTS_NUM="4") as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        assert gang.read_json("run.json")["state"] == "complete"
        assert gang.running_pids() == [], "Paddle's servers never exit by themselves"
        first, second = gang.addresses
        servers = [gang.read_json(f"server-{number}.json") for number in range(3)]
        assert {one["PADDLE_PSERVERS_IP_PORT_LIST"] for one in servers} == {
            f"{first}:7164,{second}:7164,{first}:7165"
        }
        trainers = [gang.read_json(f"trainer-{number}.json") for number in range(4)]
        assert {one["PADDLE_TRAINER_ENDPOINTS"] for one in [*trainers, *servers]} == {
            f"{first}:7166,{first}:7167,{second}:7166,{second}:7167"
        }
        own = [f"{one['POD_IP']}:{one['PADDLE_PORT']}" for one in trainers]
        assert ",".join(own) == trainers[0]["PADDLE_TRAINER_ENDPOINTS"]
        assert {one["PADDLE_GLOO_HTTP_ENDPOINT"] for one in [*trainers, *servers]} == {f"{first}:7168"}
        assert {(one["PADDLE_TRAINERS_NUM"], one["PADDLE_WITH_GLOO"]) for one in trainers} == {("4", "1")}
        assert [one.get("PADDLE_TRAINER_ID") for one in servers] == [None] * 3
        assert len({one["PADDLE_LAUNCHER_PROGRESS_FILE"] for one in trainers[:2]}) == 2
        assert not any(one.get("PADDLE_LAUNCHER_PROGRESS_FILE") for one in servers)
        assert "server 2" in (gang.output / "node_0" / "server-1.log").read_text()


def test_a_script_may_stop_its_servers_before_its_last_trainer_exits(tmp_path: Path) -> None:
    with build_gang(tmp_path, fake={"stops": True}, timings={"early_pserver_exit": 30.0}) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 0), gang.pod_log(0)


def test_an_exception_is_the_cause_of_the_restart_and_the_traceback_is_in_the_message(tmp_path: Path) -> None:
    with build_gang(tmp_path, fake={"raise": 1}, restarts=1) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        [restart] = gang.read_json("run.json")["restarts"]
        assert "trainer exited with exit code 1" in restart["cause"]
        assert "ValueError: bad row in step 1" in restart["cause"]


def test_after_sigterm_trainers_still_reach_all_servers(tmp_path: Path) -> None:
    """A node that is drained: the script of all ranks may save a checkpoint, which needs every server."""
    changes = {"PADDLE_LAUNCHER_POD_NAME": "pod", "grace_seconds": 40}
    with build_gang(tmp_path, fake={"steps": 500}, **changes) as gang:
        gang.start().wait_until(lambda: "step 1" in gang.read_log(0) and "step 1" in gang.read_log(1))
        gang.processes[0].send_signal(signal.SIGTERM)
        gang.wait_until((gang.output / "asked-1.txt").exists)
        assert [(gang.output / f"asked-{number}.txt").read_text() for number in range(2)] == ["2", "2"]
        gang.wait_until(lambda: gang.processes[0].poll() is not None)
        gang.wait_until(lambda: not gang.find_pids(1, "train.py"))


@pytest.mark.paddle
@pytest.mark.long  # tests/e2e/test_ps_script.py kills it in two pods
def test_a_killed_trainer_resumes_with_identical_tables(tmp_path: Path) -> None:
    """The page's script in one pod with one server, which here also saves the restored tables again."""
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for line, added in {
        "        fleet.load_model(str(run.checkpoint), mode=0)\n": SAVE_AGAIN,
        "            run.report(epoch, step + 1, 10, loss=float(value), samples=16)\n": LOG_SLOWLY,
    }.items():
        assert script.count(line) == 1
        script = script.replace(line, line + added)
    settings = {**WITH_PADDLE, "trainers": 1, "servers": 1, "restarts": 1, "passes": 3}
    with build_gang(tmp_path, script, **settings) as gang:
        gang.start().wait_until(
            lambda: (gang.output / Position(1).folder / "done").exists() and "epoch 1" in gang.read_log(0),
            seconds=200,
        )
        os.kill(gang.find_pids(0, "TRAINING_ROLE=TRAINER")[0], signal.SIGKILL)
        assert gang.wait_for_exit(300) == [0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        resumed = Position(run["resume"]["pass"]).folder
        tables = read_tables(gang.output / resumed)
        assert len(tables) == 2
        assert read_tables(gang.output / "checkpoints" / resumed) == tables, "saved again after the restore"
        assert read_tables(gang.output / Position(3).folder) != tables


def read_tables(folder: Path) -> dict[str, list[bytes]]:
    """Return the rows of each table that Paddle's servers saved, sorted: table number → lines."""
    tables: dict[str, list[bytes]] = {}
    for file in folder.glob("0*/part-*"):
        tables.setdefault(file.parent.name, []).extend(gzip.decompress(file.read_bytes()).splitlines())
    return {name: sorted(lines) for name, lines in tables.items()}
