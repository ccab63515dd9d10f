"""`make plan` estimates pods, memory, disk, hours and dollars from rates that users can override."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aws import hourly_cost, training_estimate
from aws.__main__ import app
from aws.stack_access import CommandError

RATES = training_estimate.read_rates()
JOB = training_estimate.TrainingJob(rows=1e9, gigabytes=250, passes=3, ids=5e7)
HEADER = "pass,rank,attempt,samples,seconds,samples_per_second,train_loss\n"
NODE = "nodes.instanceTypes=[m6i.large]"

Plan = Callable[..., training_estimate.Estimate]


@pytest.fixture
def plan(dev) -> Plan:
    """Return a function that estimates `job` on m6i.large nodes of stack dev with changed settings and rates."""

    def estimate(
        pods: int, *changes: str, job: training_estimate.TrainingJob = JOB, **rates: float
    ) -> training_estimate.Estimate:
        settings = dev(NODE, *changes).settings
        return training_estimate.estimate_training(job, settings, pods, {**RATES, **rates})

    return estimate


def test_estimate_twice_the_pods_halves_hours_except_data_and_messages(plan: Plan) -> None:
    # With these rates the network never limits the training.
    three, six = (plan(pods, wire_row=1, wire_batch=1) for pods in (3, 6))
    assert six.hours["data"] == three.hours["data"]
    for step in ("copying shards", "parsing", "saving checkpoints"):
        assert six.hours[step] / three.hours[step] == 0.5
    slower = six.train.row_us / three.train.row_us
    assert six.hours["training"] / three.hours["training"] == pytest.approx(slower / 2)
    assert six.work_gib == pytest.approx(three.work_gib / 2)
    assert six.disk_gib - six.work_gib == training_estimate.SYSTEM_GIB
    assert six.train.memory_gib < three.train.memory_gib


def test_estimate_large_batches_reduce_message_cost() -> None:
    """Each batch costs a message to every server, and the transfer of the dense parameters."""
    rates = {**RATES, "message_us": 300}
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
    room = training_estimate.node_type(dev(NODE).settings).usable
    pods = training_estimate.least_pods(JOB, room, RATES)
    one = (room.memory - RATES["base_mb"] * 1e6) / RATES["id_bytes"]
    assert (pods - 1) * one < JOB.ids <= pods * one
    assert training_estimate.least_pods(training_estimate.TrainingJob(1, 1, 1, 0), room, RATES) == 1
    with pytest.raises(CommandError, match="a pod needs 9000 MB"):
        training_estimate.least_pods(JOB, room, {**RATES, "base_mb": 9000})


def test_estimate_rows_per_second_follow_tighter_of_cpu_and_network(plan: Plan) -> None:
    """An m6i.large has 0.781 Gbit/s all the time: 97.6 MB/s in each direction."""
    narrow, wide, many = plan(3), plan(1, "nodes.instanceTypes=[m6i.8xlarge]"), plan(120)
    assert (narrow.train.limit, wide.train.limit, many.train.limit) == ("network", "CPU", "CPU")
    assert narrow.train.network_mb == pytest.approx(97.6, rel=0.001)
    moved = JOB.rows * JOB.passes / 3 * training_estimate.bytes_per_row(JOB.batch, RATES) * 2 / 3
    assert narrow.hours["training"] == pytest.approx(moved / 97.625e6 / 3600)
    assert many.train.network_mb < 97


@pytest.mark.parametrize(
    ("pods", "changes", "share"),
    [
        (30, [], 0),
        (30, ["nodes.singleZone=false"], 1 / 2),
        (30, ["nodes.singleZone=false", "network.zones=3"], 2 / 3),
        # Of three pods, two are in one zone: 4 of 9 pairs of trainer and server are in different zones.
        (3, ["nodes.singleZone=false"], 4 / 9),
        (1, ["nodes.singleZone=false"], 0),
    ],
)
def test_estimate_traffic_between_zones_is_charged_at_both_ends(
    plan: Plan, pods: int, changes: list[str], share: float
) -> None:
    found = plan(pods, *changes).dollars["traffic between zones"]
    assert found.most == pytest.approx(15.6e3 * share * 0.02)


def test_estimate_more_data_workers_shorten_the_wait_of_the_nodes(plan: Plan) -> None:
    one, ten = (plan(30, job=dataclasses.replace(JOB, workers=workers)) for workers in (1, 10))
    part = "nodes, while data is prepared"
    assert one.hours["data"] == pytest.approx(10 * ten.hours["data"])
    assert one.dollars[part].most == pytest.approx(10 * ten.dollars[part].most)
    assert one.dollars[part].most == pytest.approx(30 * (0.096 + 50 * 0.08 / 730) * 250e9 / 50e6 / 3600)


def test_estimate_training_pods_prepare_data_as_fast_as_network_and_file_system_allow(plan: Plan) -> None:
    def hours(pods: int, **rates: float) -> float:
        job = dataclasses.replace(JOB, workers=0)
        return plan(pods, job=job, **{"efs_write_mb": 1e6, **rates}).hours["data"]

    assert hours(30) == pytest.approx(250e9 / 30 / 50e6 / 3600)
    assert hours(60) == pytest.approx(hours(30) / 2)
    assert hours(30, split_mb=200) == pytest.approx(250e9 / 30 / 97.625e6 / 3600), "the node's bandwidth"
    assert hours(30, efs_write_mb=1070) == hours(60, efs_write_mb=1070) == pytest.approx(250e3 / 1070 / 3600)


def test_advice_training_pods_prepare_data_unless_one_pod_must_read_it(dev, plan: Plan) -> None:
    def advice(**changed: Any) -> tuple[str, training_estimate.Estimate]:
        job = dataclasses.replace(JOB, **changed)
        found = plan(30, job=job)
        return "\n".join(training_estimate.advice(job, dev(NODE).settings, found, RATES)), found

    text, slow = advice(workers=1)
    none, fast = advice(workers=0)
    assert f"Fix: data.preparedBy: trainingPods, with which the data takes {fast.hours['data']:.2f} h" in text
    assert f"the run ${fast.total:.2f} instead of ${slow.total:.2f}" in text
    assert "preparedBy" not in none
    for workers in (0, 1):
        text, found = advice(workers=workers, is_one_stream=True)
        assert found.hours == slow.hours
        assert "Fix: provide the rows as text below s3://" in text


def test_read_job_one_pod_reads_https_archives_checked_and_small_sources() -> None:
    def readers(source: str, gigabytes: float, pods: int = 30, **changed: Any) -> int:
        data = {"workers": 20, "source": source, "member": "", "sha256": "", "preparedBy": "dataJob"}
        values = {"training": {"batchSize": 512, "keepCheckpoints": 2}, "data": data | changed}
        job = training_estimate.read_job(values, rows=1, gigabytes=gigabytes, passes=1, ids=1)
        assert (job.batch, job.checkpoints) == (512, 2)
        return job.readers(pods)

    assert readers("s3://bucket/rows", 250) == readers("file://rows", 250) == 20
    assert readers("s3://bucket/rows", 250, preparedBy="trainingPods", workers=1) == 30
    assert readers("s3://bucket/rows", 1) == 4, "parts of 256 MiB"
    assert readers("s3://bucket/rows", 10, pods=300) == 8, "parts of 4 MiB per trainer"
    assert readers("https://example.com/rows.csv", 250) == 1
    assert readers("s3://bucket/rows.zip", 250, member="rows") == 1
    assert readers("s3://bucket/rows", 250, sha256="0" * 64) == 1


def test_estimate_dollars_are_the_sum_of_all_parts(dev, plan: Plan) -> None:
    price = hourly_cost.read_prices()
    job = training_estimate.TrainingJob(1e9, 100, 1, 0)
    found = plan(5, "storage.backup=true", job=job)
    hours = sum(found.hours.values())
    stack = hourly_cost.cost_items(dev("nodes.desired=5", "nodes.max=5").settings)
    stored = 100 * (price["gb_month"]["EFS storage"] + price["gb_month"]["EFS backups"]) / 730
    hourly = hourly_cost.total_per_hour(stack).most + stored
    assert found.total.most == pytest.approx(hours * hourly + 100 * 0.09)
    assert found.total.least == found.total.most
    unsaved = plan(5, "storage.throughput=bursting", job=job)
    lower = hours * 100 * price["gb_month"]["EFS backups"] / 730 + 100 * 0.09
    assert found.total.most - unsaved.total.most == pytest.approx(lower)
    local, remote = (
        plan(5, job=dataclasses.replace(job, source=source))
        for source in ("file://rows", "https://example.com/rows")
    )
    assert (found.stored_gb, local.stored_gb) == (100, 200)
    assert local.dollars["EFS reads and writes"].most == pytest.approx(100 * (0.09 + 0.03))
    assert remote.dollars["NAT data"].most == pytest.approx(4.5)


def test_estimate_spot_nodes_cost_a_range(plan: Plan) -> None:
    low, high = hourly_cost.read_prices()["spot"]
    part = "nodes, after that"
    fixed, spot = (plan(30, f"nodes.capacity={kind}") for kind in ("ON_DEMAND", "SPOT"))
    hours = sum(fixed.hours.values()) - fixed.hours["data"]
    disks = 30 * 50 * 0.08 / 730 * hours
    assert fixed.dollars[part].least == fixed.dollars[part].most
    assert spot.dollars[part].least - disks == pytest.approx((fixed.dollars[part].most - disks) * low)
    assert spot.dollars[part].most - disks == pytest.approx((fixed.dollars[part].most - disks) * high)


def test_rates_file_overrides_defaults_and_unknown_key_raises(tmp_path: Path) -> None:
    own = tmp_path / "rates.yaml"
    own.write_text("train_us: 106\n")
    assert training_estimate.read_rates(own) == {**RATES, "train_us": 106}
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


def test_finished_run_cost_and_rate_match_estimate(dev, plan: Plan, results: Path) -> None:
    settings = dev(NODE).settings
    run = training_estimate.cost_of_run(results, settings, RATES)
    assert (run.pods, run.hours) == (2, 0.5)
    stack = hourly_cost.total_per_hour(hourly_cost.cost_items(settings, 2)).most
    assert run.dollars.most == pytest.approx(0.5 * stack)
    again = plan(2, job=training_estimate.TrainingJob(1e7, 1, 1, 0), train_us=run.train_us)
    assert again.hours["training"] * 3600 == pytest.approx(1000)
    assert run.network_share == pytest.approx(5000 * 5200 / 2 / 97.625e6)
    spread = dev(NODE, "nodes.singleZone=false").settings
    apart = training_estimate.cost_of_run(results, spread, RATES)
    assert apart.dollars.most - run.dollars.most == pytest.approx(1e7 * 5200 / 2 / 1e9 * 0.02)


def test_finished_run_cost_of_running_training_raises(dev, results: Path) -> None:
    (results / "run.json").write_text(json.dumps({"started": 1000.0, "finished": None}))
    with pytest.raises(CommandError, match="not the folder of a finished run"):
        training_estimate.cost_of_run(results, dev().settings, RATES)


def test_plan_of_gpu_nodes_says_that_it_does_not_use_gpus(dev) -> None:
    asked = ["plan", "--stack", "dev", "--rows", "1e9", "--gb", "250", "--ids", "1e6"]
    said = "includes the price of the GPUs of g6.xlarge, but not their speed"
    gpus = CliRunner().invoke(app, [*asked, "--set", "nodes.instanceTypes=[g6.xlarge]"])
    assert gpus.exit_code == 0, gpus.output
    assert said in " ".join(gpus.output.split())
    assert "GPUs" not in CliRunner().invoke(app, asked).output


def test_plan_command_starts_with_needed_pods(dev, results: Path) -> None:
    asked = ["plan", "--stack", "dev", "--set", NODE, "--gb", "250"]
    few = CliRunner().invoke(app, [*asked, "--rows", "1e9", "--ids", "1e6"])
    many = CliRunner().invoke(app, [*asked, "--rows", "1e9", "--ids", "1e9"])
    assert [few.output.splitlines()[1].split()[n] for n in (-6, -4, -2)] == ["3", "6", "12"]
    room = training_estimate.node_type(dev(NODE).settings).usable
    least = training_estimate.least_pods(dataclasses.replace(JOB, ids=1e9), room, RATES)
    assert str(least) in many.output.splitlines()[1].split()
    assert CliRunner().invoke(app, [*asked, "--rows", "0"]).exit_code == 1
    for part in (
        "workDir.sizeLimit",
        "network each way",
        "limited by",
        "nodes, while data is prepared",
        "data.preparedBy dataJob; pods that prepare the data: 1.",
        "Fix: provide the rows as text below s3://",
    ):
        assert part in few.output
    assert "traffic between zones, $" in few.output
    assert "Spot prices vary" not in few.output
    spent = CliRunner().invoke(app, [*asked, "--after", str(results)])
    assert "2 pods for 0.50 h" in spent.output
