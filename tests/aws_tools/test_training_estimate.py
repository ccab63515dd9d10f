"""`make plan` estimates pods, memory, disk, hours and dollars from rates that users can override."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aws import hourly_cost, training_estimate
from aws.__main__ import app
from aws.stack_access import CommandError

JOB = training_estimate.TrainingJob(rows=1e9, gigabytes=250, passes=3, ids=5e7)
HEADER = "pass,rank,attempt,samples,seconds,samples_per_second,train_loss\n"


def test_estimate_twice_the_pods_halves_hours_except_data_and_messages(dev) -> None:
    settings, rates = dev("nodes.instanceTypes=[m6i.large]").settings, training_estimate.read_rates()
    three, six = (training_estimate.estimate_training(JOB, settings, pods, rates) for pods in (3, 6))
    assert six.hours["data"] == three.hours["data"]
    assert {six.hours[s] / three.hours[s] for s in ("parsing", "saves")} == {0.5}
    slower = six.train.row_us / three.train.row_us
    assert six.hours["training"] / three.hours["training"] == pytest.approx(slower / 2)
    assert six.disk_gib - training_estimate.SYSTEM_GIB == pytest.approx(
        (three.disk_gib - training_estimate.SYSTEM_GIB) / 2
    )
    assert six.train.memory_gib < three.train.memory_gib


def test_estimate_large_batches_reduce_message_cost(dev) -> None:
    """Each batch costs a message to every server, and the transfer of the dense parameters."""
    rates = {**training_estimate.read_rates(), "message_us": 300}
    small, large = (
        training_estimate.pod_load(300, 2, training_estimate.TrainingJob(1, 1, 1, 3e9, batch), rates)
        for batch in (256, 8192)
    )
    added = [each.row_us - rates["train_us"] for each in (small, large)]
    assert added == pytest.approx([299 * rates["message_us"] / batch for batch in (256, 8192)])
    assert large.rows > 2 * small.rows
    assert large.network_mb / large.rows < small.network_mb / small.rows
    alone = training_estimate.pod_load(1, 2, training_estimate.TrainingJob(1, 1, 1, 1e7), rates)
    assert (alone.network_mb, alone.row_us) == (0, rates["train_us"])
    assert small.memory_gib == alone.memory_gib, "both have the same number of ids per pod"


def test_least_pods_depends_on_table_size(dev) -> None:
    room, rates = (
        training_estimate.usable_node(dev("nodes.instanceTypes=[m6i.large]").settings),
        training_estimate.read_rates(),
    )
    pods = training_estimate.least_pods(JOB, room, rates)
    one = (room.memory - rates["base_mb"] * 1e6) / rates["id_bytes"]
    assert (pods - 1) * one < JOB.ids <= pods * one
    assert training_estimate.least_pods(training_estimate.TrainingJob(1, 1, 1, 0), room, rates) == 1
    with pytest.raises(CommandError, match="a pod needs 9000 MB"):
        training_estimate.least_pods(JOB, room, {**rates, "base_mb": 9000})


def test_estimate_dollars_are_node_hours_and_efs_traffic(dev) -> None:
    settings, rates = dev("nodes.instanceTypes=[m6i.large]").settings, training_estimate.read_rates()
    found = training_estimate.estimate_training(
        training_estimate.TrainingJob(1e9, 100, 1, 0), settings, 5, rates
    )
    hourly = hourly_cost.total_per_hour(
        list(
            hourly_cost.cost_items(
                dev("nodes.instanceTypes=[m6i.large]", "nodes.desired=5", "nodes.max=5").settings
            )
        )
    )
    assert found.dollars == pytest.approx(sum(found.hours.values()) * hourly + 100 * 0.09)


def test_rates_file_overrides_defaults_and_unknown_key_raises(tmp_path: Path) -> None:
    own = tmp_path / "rates.yaml"
    own.write_text("train_us: 106\n")
    assert training_estimate.read_rates(own) == {**training_estimate.read_rates(), "train_us": 106}
    for wrong in ("train: 1", "train_us: 0", "train_us: many", "- 1"):
        own.write_text(wrong)
        with pytest.raises(CommandError, match=f"RATES={own}"):
            training_estimate.read_rates(own)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return the results folder of a run of half an hour: two ranks, one pass of 1,000 s each."""
    (tmp_path / "run.json").write_text(
        json.dumps({"started": 1000.0, "finished": 2800.0, "fingerprint": {"batchSize": 256}})
    )
    rows = "".join(f"0,{rank},0,5000000,1000,5000,0.5\n" for rank in (0, 1))
    (tmp_path / "metrics.csv").write_text(HEADER + rows)
    return tmp_path


def test_finished_run_cost_and_rate_match_estimate(dev, results: Path) -> None:
    settings = dev("nodes.instanceTypes=[m6i.large]").settings
    pods, hours, dollars, train_us = training_estimate.cost_of_run(
        results, settings, training_estimate.read_rates()
    )
    assert (pods, hours) == (2, 0.5)
    assert dollars == pytest.approx(
        0.5 * hourly_cost.total_per_hour(list(hourly_cost.cost_items(settings, 2)))
    )
    corrected = {**training_estimate.read_rates(), "train_us": train_us}
    again = training_estimate.estimate_training(
        training_estimate.TrainingJob(1e7, 1, 1, 0), settings, 2, corrected
    )
    assert again.hours["training"] * 3600 == pytest.approx(1000)


def test_finished_run_cost_of_running_training_raises(dev, results: Path) -> None:
    (results / "run.json").write_text(json.dumps({"started": 1000.0, "finished": None}))
    with pytest.raises(CommandError, match="not the folder of a finished run"):
        training_estimate.cost_of_run(results, dev().settings, training_estimate.read_rates())


def test_plan_command_starts_with_needed_pods(dev, results: Path) -> None:
    asked = ["plan", "--stack", "dev", "--set", "nodes.instanceTypes=[m6i.large]", "--gb", "250"]
    few = CliRunner().invoke(app, [*asked, "--rows", "1e9", "--ids", "1e6"])
    many = CliRunner().invoke(app, [*asked, "--rows", "1e9", "--ids", "1e9"])
    assert [few.output.splitlines()[1].split()[n] for n in (-6, -4, -2)] == ["3", "6", "12"]
    least = training_estimate.least_pods(
        training_estimate.TrainingJob(1, 1, 1, 1e9),
        training_estimate.usable_node(dev("nodes.instanceTypes=[m6i.large]").settings),
        training_estimate.read_rates(),
    )
    assert str(least) in many.output.splitlines()[1].split()
    assert CliRunner().invoke(app, [*asked, "--rows", "0"]).exit_code == 1
    spent = CliRunner().invoke(app, [*asked, "--after", str(results)])
    assert "2 pods for 0.50 h" in spent.output
