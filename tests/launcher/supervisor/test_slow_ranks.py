"""A slow rank and a bad node are named: rank 0's judgement, and a gang on loopback with one slow rank."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli.run_files import JobFiles
from launcher.cli.run_view import build_folder_view
from launcher.schema import RankStatus, StatusFile, TrainerProgress, read_fields
from launcher.supervisor.coordinator.members import Member
from launcher.supervisor.coordinator.run_writer import (
    RunFilesWriter,
    describe_slow_ranks,
    mark_slow_ranks,
    render_metrics,
)
from launcher.supervisor.node_check import describe_bad_nodes
from launcher.supervisor.peers.messages import MemberState, NodeSpeeds, Plan
from launcher.supervisor.progress import combine_progress
from tests.launcher.reporting.test_notifications import Hook
from tests.launcher.supervisor.gang_members import member
from tests.launcher.supervisor.loopback_gang import LoopbackGang

GOOD = NodeSpeeds(processor=30.0, disk=150.0, network=400.0, round_trips=1500.0)


def mark(*seconds: float | None) -> list[RankStatus]:
    """Return the ranks with these seconds per step, marked."""
    return mark_slow_ranks(
        [RankStatus(rank=n, node=f"node-{n}", step_seconds=each) for n, each in enumerate(seconds)]
    )


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ((0.1, 0.1, 0.151), [2]),
        ((0.1, 0.1, 0.149), []),
        ((0.1, 9.0), []),
        ((0.1, 9.0, None), []),
        ((0.1, 0.1, 0.1, 9.0, None), [3]),
        ((None, None, None), []),
    ],
)
def test_a_rank_is_slow_at_one_and_a_half_times_the_median_of_at_least_three(
    seconds: tuple[float | None, ...], slow: list[int]
) -> None:
    ranks = mark(*seconds)
    assert [rank.rank for rank in ranks if rank.is_slow] == slow
    assert all(f"rank {number} on node node-{number}: " in describe_slow_ranks(ranks) for number in slow)
    assert bool(describe_slow_ranks(ranks)) == bool(slow)
    page = render_metrics(StatusFile(ranks=ranks), None).decode()
    for rank in ranks:
        labels = f'{{node="node-{rank.rank}",rank="{rank.rank}"}}'
        assert f"paddle_training_rank_slow{labels} {float(rank.is_slow)}" in page
        assert f"paddle_training_rank_step_seconds{labels} {rank.step_seconds or 'NaN'}" in page


def test_a_pod_is_as_slow_as_its_slowest_process() -> None:
    found = [read_fields(TrainerProgress, {"step_seconds": each}) for each in (0.2, 0.5, "x")]
    assert combine_progress(found).step_seconds == 0.5


def measured(*speeds: NodeSpeeds | None) -> list[Member]:
    """Return members that measured these speeds, after they were sent to rank 0 as JSON."""
    members = [member(rank, node=f"node-{rank}", node_speeds=each) for rank, each in enumerate(speeds)]
    return [
        Member(MemberState.from_json(json.loads(json.dumps(each.state.to_json(0))), 0)) for each in members
    ]


def changed(**values: float) -> NodeSpeeds:
    return NodeSpeeds(**{**vars(GOOD), **values})


@pytest.mark.parametrize(
    ("speeds", "bad"),
    [
        ((GOOD, GOOD, GOOD), {}),
        ((None, None, None), {}),
        ((GOOD, changed(processor=15.0), GOOD), {1: "processor 15 MB/s compressed (median of the ranks 30)"}),
        ((GOOD, changed(processor=16.0), GOOD), {}),
        ((GOOD, changed(processor=1.0)), {}),
        ((GOOD, None, GOOD, changed(disk=0.0), GOOD), {3: "disk 0 MB/s (median of the ranks 150)"}),
        ((changed(disk=900.0), changed(disk=201.0), changed(disk=900.0)), {}),
        # Rank 1's pod is slow, so rank 0 reads from it slowly, and it reads slowly from rank 2.
        (
            (changed(network=50.0), changed(network=50.0), GOOD),
            {1: "network 50 MB/s (median of the ranks 400)"},
        ),
        ((changed(round_trips=19.0), changed(round_trips=15.0)), {0: "round trips 19", 1: "round trips 19"}),
        ((changed(network=0.0, round_trips=0.0),), {}),
    ],
)
def test_a_node_is_bad_at_half_the_median_or_below_a_limit(
    speeds: tuple[NodeSpeeds | None, ...], bad: dict[int, str]
) -> None:
    text = describe_bad_nodes(measured(*speeds))
    assert bool(text) == bool(bad)
    for rank in range(len(speeds)):
        assert (f"on node node-{rank}): {bad.get(rank, '')}" in text) == (rank in bad), text


def test_a_node_of_an_elastic_run_is_bad_by_the_order_of_its_attempt() -> None:
    """Rank 1 coordinates, so it reads from rank 0, and rank 0 from rank 2: the pod of rank 0 is slow."""
    slow = changed(network=50.0)
    plan = Plan(attempt=3, world=(1, 0, 2), incarnations=("i1", "i0", "i2"))
    here = SimpleNamespace(
        _read_plan=lambda: (plan, measured(slow, slow, GOOD, changed(disk=0.0))),
        _settings=SimpleNamespace(trainers=4),
        _slow_ranks="",
        warning=None,
    )
    text = RunFilesWriter._read_warnings(here)
    named = [f"rank {rank} " in (text or "") for rank in range(4)]
    assert named == [True, False, False, False], f"rank 3 does not train any more: {text}"


SCRIPT = """
import os, time
from launcher.io import step_clock
from launcher.program import ScriptRun
step_clock.LEAST_SECONDS = 1.0
run = ScriptRun()
for step in range(100000):
    slow = run.rank == 2 and not os.path.exists(run.output / "recovered")
    time.sleep(0.1 if slow else 0.02)
    with run.waiting():
        time.sleep(0.01 if slow else 0.09)
    run.report(0, step + 1, 100000, loss=1.0, samples=1)
"""


@pytest.mark.slow
def test_a_slow_rank_and_a_node_with_a_slow_network_are_shown_and_users_are_notified(tmp_path: Path) -> None:
    """All ranks do the same number of steps a second, as with an exchange of gradients, until rank 2 recovers."""
    settings = {
        "runtime": "collective",
        "config_file": "mine/train.py",
        "source_digest": "s1",
        "rendezvous_seconds": 30,
        "SLOW_NETWORK": 1,
    }
    with (
        contextlib.closing(Hook()) as hook,
        LoopbackGang(tmp_path, node_check=True, PADDLE_LAUNCHER_WEBHOOK=hook.url, **settings) as gang,
    ):
        (gang.job / "mine" / "train.py").write_text(SCRIPT)
        gang.start()

        def marks() -> list[Any]:
            status = gang.read_json("status.json") if (gang.output / "status.json").exists() else {}
            return [rank["isSlow"] for rank in status.get("ranks", ()) if rank["stepSeconds"]]

        gang.wait_until(lambda: marks() == [False, False, True])
        status = read_fields(StatusFile, gang.read_json("status.json"))
        view = build_folder_view("job", JobFiles(status=status))
        assert any("rank 2 on node node-2: 0.1" in note for note in view.notes), view.notes
        assert "rank 2 on node node-2" in gang.pod_log(0)
        (gang.output / "recovered").touch()
        gang.wait_until(lambda: marks() == [False, False, False])
        warning = gang.read_json("status.json")["warning"]
        assert "Slow ranks" not in warning
        assert "on node node-1): round trips 1" in warning
        assert "on node node-0): round trips" not in warning, "its other connection is fast"
        gang.wait_until(
            lambda: warning in {each["cause"] for each in hook.accepted if each["event"] == "warned"}
        )
        for rank in range(3):
            assert gang.pod_log(rank).count("node check: processor ") == 1
            assert "no answer" not in gang.pod_log(rank)
        gang.processes[0].send_signal(signal.SIGKILL)
