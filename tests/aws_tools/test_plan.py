"""`make plan` reckons pods, memory, disk, hours and dollars, from rates that can be corrected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aws import cost, plan
from aws.__main__ import app
from aws.stack import CommandError

JOB = plan.Job(rows=1e9, gigabytes=250, passes=3, ids=5e7)
HEADER = "pass,rank,attempt,samples,seconds,samples_per_second,train_loss\n"


def test_twice_the_pods_take_half_of_all_hours_but_the_data_jobs_and_for_messages(dev) -> None:
    settings, rates = dev("nodes.instanceTypes=[m6i.large]").settings, plan.rates()
    three, six = (plan.plan(JOB, settings, pods, rates) for pods in (3, 6))
    assert six.hours["data"] == three.hours["data"]
    assert {six.hours[s] / three.hours[s] for s in ("parsing", "saves")} == {0.5}
    slower = six.train.row_us / three.train.row_us
    assert six.hours["training"] / three.hours["training"] == pytest.approx(slower / 2)
    assert six.disk_gib - plan.SYSTEM_GIB == pytest.approx((three.disk_gib - plan.SYSTEM_GIB) / 2)
    assert six.train.memory_gib < three.train.memory_gib


def test_many_pods_want_large_batches(dev) -> None:
    """Each batch is a message to every server, and brings the dense parameters."""
    rates = {**plan.rates(), "message_us": 300}
    small, large = (plan.load(300, 2, plan.Job(1, 1, 1, 3e9, batch), rates) for batch in (256, 8192))
    added = [each.row_us - rates["train_us"] for each in (small, large)]
    assert added == pytest.approx([299 * rates["message_us"] / batch for batch in (256, 8192)])
    assert large.rows > 2 * small.rows
    assert large.network_mb / large.rows < small.network_mb / small.rows
    alone = plan.load(1, 2, plan.Job(1, 1, 1, 1e7), rates)
    assert (alone.network_mb, alone.row_us) == (0, rates["train_us"])
    assert small.memory_gib == alone.memory_gib, "as many ids in each"


def test_the_tables_decide_the_least_number_of_pods(dev) -> None:
    room, rates = plan.node(dev("nodes.instanceTypes=[m6i.large]").settings), plan.rates()
    pods = plan.least_pods(JOB, room, rates)
    one = (room.memory - rates["base_mb"] * 1e6) / rates["id_bytes"]
    assert (pods - 1) * one < JOB.ids <= pods * one
    assert plan.least_pods(plan.Job(1, 1, 1, 0), room, rates) == 1
    with pytest.raises(CommandError, match="a pod needs 9000 MB"):
        plan.least_pods(JOB, room, {**rates, "base_mb": 9000})


def test_dollars_are_the_hours_at_the_price_of_a_node_a_pod_and_what_efs_moves(dev) -> None:
    settings, rates = dev("nodes.instanceTypes=[m6i.large]").settings, plan.rates()
    found = plan.plan(plan.Job(1e9, 100, 1, 0), settings, 5, rates)
    hourly = cost.total(
        list(cost.parts(dev("nodes.instanceTypes=[m6i.large]", "nodes.desired=5", "nodes.max=5").settings))
    )
    assert found.dollars == pytest.approx(sum(found.hours.values()) * hourly + 100 * 0.09)


def test_ones_own_rates_win_and_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "rates.yaml"
    own.write_text("train_us: 106\n")
    assert plan.rates(own) == {**plan.rates(), "train_us": 106}
    for wrong in ("train: 1", "train_us: 0", "train_us: many", "- 1"):
        own.write_text(wrong)
        with pytest.raises(CommandError, match=f"RATES={own}"):
            plan.rates(own)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two ranks, one pass of 1,000 s each, in a run of half an hour."""
    (tmp_path / "run.json").write_text(
        json.dumps({"started": 1000.0, "finished": 2800.0, "fingerprint": {"batchSize": 256}})
    )
    rows = "".join(f"0,{rank},0,5000000,1000,5000,0.5\n" for rank in (0, 1))
    (tmp_path / "metrics.csv").write_text(HEADER + rows)
    return tmp_path


def test_a_run_costs_its_hours_and_gives_the_rate_that_a_plan_would_have_needed(dev, results: Path) -> None:
    settings = dev("nodes.instanceTypes=[m6i.large]").settings
    pods, hours, dollars, train_us = plan.spent(results, settings, plan.rates())
    assert (pods, hours) == (2, 0.5)
    assert dollars == pytest.approx(0.5 * cost.total(list(cost.parts(settings, 2))))
    corrected = {**plan.rates(), "train_us": train_us}
    again = plan.plan(plan.Job(1e7, 1, 1, 0), settings, 2, corrected)
    assert again.hours["training"] * 3600 == pytest.approx(1000)


def test_a_run_that_has_not_ended_is_told_in_one_sentence(dev, results: Path) -> None:
    (results / "run.json").write_text(json.dumps({"started": 1000.0, "finished": None}))
    with pytest.raises(CommandError, match="not the folder of a finished run"):
        plan.spent(results, dev().settings, plan.rates())


def test_the_table_begins_with_the_pods_that_the_stack_has_or_the_tables_need(dev, results: Path) -> None:
    asked = ["plan", "--stack", "dev", "--set", "nodes.instanceTypes=[m6i.large]", "--gb", "250"]
    few = CliRunner().invoke(app, [*asked, "--rows", "1e9", "--ids", "1e6"])
    many = CliRunner().invoke(app, [*asked, "--rows", "1e9", "--ids", "1e9"])
    assert [few.output.splitlines()[1].split()[n] for n in (-6, -4, -2)] == ["3", "6", "12"]
    least = plan.least_pods(
        plan.Job(1, 1, 1, 1e9), plan.node(dev("nodes.instanceTypes=[m6i.large]").settings), plan.rates()
    )
    assert str(least) in many.output.splitlines()[1].split()
    assert CliRunner().invoke(app, [*asked, "--rows", "0"]).exit_code == 1
    spent = CliRunner().invoke(app, [*asked, "--after", str(results)])
    assert "2 pods for 0.50 h" in spent.output
