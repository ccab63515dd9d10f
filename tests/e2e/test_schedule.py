"""Test runs of a schedule on the local cluster: new data each, the model of the run before, and latest.json."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.io import files
from local.cluster.daemon_configs import HOST_ADDRESS
from testkit.local_cluster import CHART, POLL, Cluster, Training
from testkit.waiting import until

pytestmark = pytest.mark.e2e

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-west-2"}


@pytest.fixture
def bucket() -> Iterator[Any]:
    """Return an empty bucket of an S3 server (moto) that the cluster's pods can reach."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(HOST_ADDRESS, 0, verbose=False)
    server.start()
    endpoint = f"http://{HOST_ADDRESS}:{server.get_host_and_port()[1]}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-west-2"}
    bucket = boto3.resource("s3", endpoint_url=endpoint, **keys).Bucket("models")
    bucket.create(CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield bucket
    server.stop()


def add_day(folder: Path, number: int) -> None:
    """Write day `number`, a twentieth of the example's rows, to the folder of the source."""
    data = yaml.safe_load((CHART / "examples" / "quick_start.yaml").read_text())["data"]
    with zipfile.ZipFile(folder.parent / data["source"].removeprefix("file://")) as wheel:
        head, *lines = wheel.read(data["member"]).split(b"\n")
    day = lines[number::20]  # the rows are sorted by class
    path = folder / f"day-{number}.csv"
    files.write_atomically(path, b"\n".join([head, *day, b""]))
    path.chmod(0o644)


def jobs(training: Training) -> list[str]:
    """Return the names of the namespace's Jobs, oldest first."""
    found = (job["metadata"] for job in training.cluster.get("jobs", training.namespace))
    return [meta["name"] for meta in sorted(found, key=lambda meta: meta["creationTimestamp"])]


@pytest.mark.seconds(100)
def test_each_run_trains_new_data_from_the_model_of_the_run_before_and_exports_its_own(
    train: Callable[..., Training], cluster: Cluster, bucket: Any
) -> None:
    """The CronJob starts the first run, and `kubectl create job --from` the second, so that the test is short."""
    training = train(
        "quick_start",
        trainers=2,
        training={
            "passes": 1,
            "schedule": "* * * * *",
            "initModelPath": "previous",
            "exportTo": "s3://models/nightly",
        },
        extraEnv=[{"name": "AWS_ENDPOINT_URL", "value": bucket.meta.client.meta.endpoint_url}],
        extraEnvFrom=[{"secretRef": {"name": "s3"}}],
    )
    name, there = training.namespace, ("-n", training.namespace)
    sources = training.job.parent / "sources" / name
    sources.mkdir()
    cluster.apply("Secret", "s3", name, stringData=KEYS)

    def wait_for(run: str) -> dict[str, Any]:
        """Wait until the newest run is complete; check its record and latest.json, and return the record."""
        ended = cluster.launcher("wait", *there, "--timeout", "240", check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr + training.last_log_lines()
        record, made = training.record(), training.manifest()
        assert (record["runId"], record["state"]) == (run, "complete")
        assert made["madeBy"]["job"] == run
        latest = json.loads(bucket.Object(f"nightly/{name}/latest.json").get()["Body"].read())
        assert (latest["runId"], latest["to"]) == (run, f"s3://models/nightly/{name}/{run}/")
        return record

    try:
        add_day(sources, 0)
        training.upgrade({"data": {"source": f"file://{name}", "sha256": "", "member": ""}})
        [first] = until(lambda: jobs(training), "the CronJob's first Job", 100, POLL)
        training.upgrade({"scheduling": {"suspend": True}})
        assert wait_for(first)["initModel"] == ""
        lines = training.manifest()["lines"]

        add_day(sources, 1)
        cluster.kubectl("create", "job", "second", f"--from=cronjob/{name}", *there)
        assert wait_for("second")["initModel"] == f"{name}/runs/{first}"
        assert training.manifest()["lines"] > 1.5 * lines
        assert "reusedFrom" not in training.manifest()
        before = json.loads((training.output / "before.json").read_text())
        assert before["from"] == f"{name}/runs/{first}"
        assert before["score"]["error"] < 0.6, (
            "of three classes: the first run's model, before the second trains"
        )
        assert jobs(training) == [first, "second"]
    finally:
        for path in sources.iterdir():
            path.unlink()
        sources.rmdir()
