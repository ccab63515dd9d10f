"""Tests of runtime ps: the processes of each pod, their variables and ports, and messages about Paddle's servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher import script_main
from launcher.runtimes import load_runtime
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt
from launcher.settings import SCRIPT_RUNTIMES, TrainSettings, settings_document
from tests.launcher.supervisor.loopback_gang import pod_environ

RUNTIME = load_runtime("ps")
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def attempt(tmp_path: Path, rank: int = 0, servers: int = 4, **env: object) -> RankAttempt:
    """Return an attempt of three pods with two trainers each."""
    values = {
        "JOB_PATH": str(tmp_path),
        "PADDLE_LAUNCHER_WORK_DIR": str(tmp_path / "work"),
        "JOB_COMPLETION_INDEX": str(rank),
        "runtime": "ps",
        "config_file": "mine/train.py",
        "trainers": 3,
        "servers": servers,
        "processes_per_pod": 2,
        **env,
    }
    return RankAttempt(rank, HOSTS, TrainSettings.from_environ(pod_environ(**values)), 0, None, "/s/0/secret")


@pytest.mark.parametrize(
    ("servers", "in_pods"), [(1, [1, 0, 0]), (3, [1, 1, 1]), (4, [2, 1, 1]), (7, [3, 2, 2])]
)
def test_each_server_has_its_own_entry_of_the_list(tmp_path: Path, servers: int, in_pods: list[int]) -> None:
    """Paddle finds the number of a server by its address in the list; two servers must not have the same."""
    found = [RUNTIME.pservers(attempt(tmp_path, rank, servers)) for rank in range(3)]
    assert list(map(len, found)) == in_pods
    ends = [f"{spec.env['POD_IP']}:{spec.env['PADDLE_PORT']}" for specs in found for spec in specs]
    [listed] = {spec.env["PADDLE_PSERVERS_IP_PORT_LIST"] for specs in found for spec in specs}
    assert sorted(listed.split(",")) == sorted(ends)
    assert [end.partition(":")[0] for end in listed.split(",")] == [HOSTS[s % 3] for s in range(servers)]


def test_ports_of_servers_trainers_and_gloo_differ(tmp_path: Path) -> None:
    def ports(specs: list[ProcessSpec]) -> list[int]:
        return [int(spec.env["PADDLE_PORT"]) for spec in specs]

    here = attempt(tmp_path)
    assert ports(RUNTIME.pservers(here)) == [7164, 7165]
    assert ports(RUNTIME.trainers(here)) == [7166, 7167]
    assert {spec.env["PADDLE_GLOO_HTTP_ENDPOINT"] for spec in RUNTIME.trainers(here)} == {"10.0.0.1:7168"}
    assert ports(RUNTIME.trainers(attempt(tmp_path, 1))) == [7166, 7167], "the same ports in all pods"


def test_variables_of_the_pod_that_describe_a_distribution_do_not_reach_the_script(tmp_path: Path) -> None:
    env = {
        "PADDLE_TRAINER_ID": "7",
        "PADDLE_HETER_TRAINER_IP_PORT_LIST": "a:1",
        "PADDLE_MASTER": "b:2",
        "HF_HOME": "/h",
    }
    here = attempt(tmp_path, **env)
    for spec in [*RUNTIME.pservers(here), *RUNTIME.trainers(here)]:
        assert spec.env["HF_HOME"] == "/h"
        assert not {"PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_MASTER"} & set(spec.env)
    assert [spec.env.get("PADDLE_TRAINER_ID") for spec in RUNTIME.pservers(here)] == [None, None]
    assert [spec.env["PADDLE_TRAINER_ID"] for spec in RUNTIME.trainers(attempt(tmp_path, 2))] == ["4", "5"]


def test_all_processes_run_the_script_and_only_servers_do_not_end_themselves(tmp_path: Path) -> None:
    here = attempt(tmp_path, args=["--lr=0.1"])
    servers, trainers = RUNTIME.pservers(here), RUNTIME.trainers(here)
    argv = (sys.executable, "-u", script_main.__file__, "train.py", "--lr=0.1")
    assert {spec.argv for spec in [*servers, *trainers]} == {argv}
    assert [spec.ends_itself for spec in [*servers, *trainers]] == [False, False, True, True]
    assert [spec.env["TRAINING_ROLE"] for spec in [*servers, *trainers]] == ["PSERVER"] * 2 + ["TRAINER"] * 2
    assert [spec.name for spec in [*servers, *trainers]] == [
        "pserver 0",
        "pserver 1",
        "trainer 0",
        "trainer 1",
    ]


@pytest.mark.parametrize("runtime", SCRIPT_RUNTIMES)
def test_a_runtime_of_scripts_is_one_to_the_supervisor(runtime: str) -> None:
    assert load_runtime(runtime).is_user_script


def test_the_document_for_loopback_has_as_many_servers_as_pods() -> None:
    values = {"runtime": "ps", "port": 7164, "peerPort": None, "trainers": 3}
    document = settings_document({**values, "training": {"servers": None, "processesPerPod": 2}})
    assert (document["training"]["servers"], document["peerPort"]) == (3, 7164 + 1 + 2 + 1)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("Exception: SelectedRows DO NOT supprt lod", "remove weight_decay"),
        ("NotFoundError: no kernel get_tensor_from_selected_rows", "remove grad_clip"),
        (
            "RuntimeError: (NotFound) The kernel `unregistered` is not registered.",
            "use paddle.optimizer.SGD or Adam",
        ),
        (
            "ValueError: The dense optimizer in PS is only supported SGD or Adam!",
            "use paddle.optimizer.SGD or Adam",
        ),
        ("ShapeError: The last dimensions of the 'Ids' tensor must be 1. But", "shape [-1, 1]"),
        ("MemoryError", "resources.limits.memory"),
    ],
)
def test_what_paddles_servers_do_not_support_is_explained(line: str, fix: str) -> None:
    """The lines are those of PaddlePaddle 2.6.2."""
    meaning = next(each for each in RUNTIME.log_meanings if each.search(line))
    assert fix in meaning.why


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("mine/tools/train.py", ["tools/train.py"]),
        ("mine/tools.train", ["-m", "tools.train"]),
    ],
)
@pytest.mark.parametrize("runtime", SCRIPT_RUNTIMES)
def test_a_script_is_a_file_or_a_module_with_any_arguments(
    tmp_path: Path, runtime: str, config: str, words: list[str]
) -> None:
    arguments = [
        "-c",
        "configs/a.yml",
        "-o",
        "Global.epochs=2",
        "--out={output_dir}/x",
        "{'a': 1}",
        "$(JOB_NAME)",
        "",
    ]
    here = attempt(tmp_path, runtime=runtime, config_file=config, args=arguments)
    output = here.settings.layout.output
    expected = [*words, "-c", "configs/a.yml", "-o", "Global.epochs=2", f"--out={output}/x", "{'a': 1}"]
    [first, *_] = load_runtime(runtime).trainers(here)
    assert first.argv[-len(expected) - 2 :] == (*expected, "$(JOB_NAME)", "")
    assert first.cwd == here.settings.work.program
