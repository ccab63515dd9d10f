"""API objects as the server sends them, cut to what is read, and a made-up job's folder."""

import copy
import io
import json
import os
import re
import shlex
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from launcher.cli import main
from launcher.cli.releases import ReleaseRun
from launcher.cli.run_display import status_screen
from launcher.cli.run_files import JobFiles
from launcher.cli.run_view import ClusterSnapshot, build_cluster_view
from launcher.io.files import write_atomically
from launcher.schema import DataFailure, ManifestFile, RunFile, StatusFile, read_fields
from testkit.written_files import write_files

K8S_JOB = "quick-start-1a2b3c4d"
DATA_JOB = "quick-start-data-99aa88bb"
DONE = ("Complete", "", "")
"""The condition of a complete Job, for `make_job`."""
FAILED = ("Failed", "PodFailurePolicy", "exit code 70")
OBJECTS = yaml.safe_load(Path(__file__).with_name("job.yaml").read_text())
RUN_JSON = OBJECTS["run_json"]


def make_pod(
    name, *, job=K8S_JOB, rank=None, phase="Running", made="2026-11-21T04:00:00Z", node="node1", **status
):
    labels = {"app.kubernetes.io/component": "training"}
    if rank is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(rank)
    owners = [{"kind": "Job", "name": job}]
    metadata = {"name": name, "labels": labels, "creationTimestamp": made, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase, **status}}


def make_job(name, *conditions, suspended=False, namespace="paddle", labels=None, **status):
    entries = [
        {"type": kind, "status": "True", "reason": why, "message": text} for kind, why, text in conditions
    ]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"suspend": suspended, "template": {"metadata": {}, "spec": {}}},
        "status": {"conditions": entries, **status},
    }


QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
JOB_STATES = {
    "running": make_job,
    "complete": lambda name: make_job(name, DONE),
    "failed": lambda name: make_job(name, FAILED),
    "suspended": lambda name: make_job(name, suspended=True),
    "admitted": lambda name: make_job(name, labels=QUEUE),
    "queued": lambda name: make_job(name, suspended=True, labels=QUEUE),
}


def make_status(**changed):
    """Return the status.json of a run that trains, with changes."""
    return {**copy.deepcopy(OBJECTS["status"]), **changed}


def make_idle(**changed):
    """Return a status.json in which no rank trains."""
    none = dict.fromkeys(("pass", "batch", "samplesPerSecond", "loss"))
    status = make_status()
    ranks = [{**entry, **none, "state": "idle"} for entry in status["ranks"]]
    return {**status, **none, "batches": None, "etaSeconds": None, "ranks": ranks, **changed}


def make_restarts(count):
    """Return restarts as in status.json, one each minute, whose causes contain log lines."""
    return [
        {
            "attempt": attempt,
            "cause": f"rank 1 (pod p1 on node2): trainer exited with SIGKILL, time {attempt}; the last lines "
            "of train.log:\n  [x] line",
            "at": 1795236798.0 + 60 * attempt,
        }
        for attempt in range(count)
    ]


def make_files(**raw):
    """Return JobFiles with these JSON objects; without a `manifest` the files count as not read."""
    shapes = {"status": StatusFile, "run": RunFile, "manifest": ManifestFile, "data_failure": DataFailure}
    parsed = {
        key: read_fields(shapes[key], value) if key in shapes and value else value
        for key, value in raw.items()
    }
    return JobFiles(**{"was_read": "manifest" in raw, **parsed})


def make_view(*jobs, pods=(), events=None, about=None, deleted=False, **files):
    """Return the view of a release whose data Job is complete and whose training Job runs, unless `jobs` replace them.

    `about` changes RUN_JSON. `deleted`: all Jobs were deleted. `files` are as for `make_files`.
    """
    run = ReleaseRun.from_json("paddle-training", "paddle", {**RUN_JSON, **(about or {})})
    standard = [make_job(run.k8s_job), *([make_job(run.k8s_data_job, DONE)] if run.k8s_data_job else [])]
    known = {job["metadata"]["name"]: job for job in (*standard, *jobs)}
    return build_cluster_view(
        ClusterSnapshot(run, {} if deleted else known, pods, events or {}, files=make_files(**files))
    )


def print_screen(view):
    """Return the lines that `status` prints."""
    text = io.StringIO()
    Console(file=text, width=1000).print(status_screen(view, now=1795236800.0))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def matches(text, pattern):
    """Return whether `text` is `pattern`, in which … stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), text, re.DOTALL)


def has_parts(value, parts):
    """Return whether a JSON value is `parts`, or has each of them at its key or index."""
    if not isinstance(parts, dict):
        return value == parts
    return all(has_parts(value[key], part) for key, part in parts.items())


def write_job_files(job, files):
    """Write files of a job, by name a text, or keys that replace those of the JSON object in the file."""
    for name, content in files.items():
        if isinstance(content, dict):
            update_json(job / name, **content)
        else:
            write_files(job, {name: content})


def run_step(cli, job, step, *options):
    """Run the command of a step of commands.yaml with more `options`, and compare what it does with the step."""
    words = shlex.split(step["run"].replace("JOB", str(job)))
    code, out, err = cli(*words, *(() if "--path" in words else options))
    assert code == step.get("code", 0), (step, out, err)
    for printed, texts in ((out, step.get("out", ())), (err, step.get("err", ()))):
        assert not [text for text in texts if text.replace("JOB", str(job)) not in printed], (step, printed)
    assert not [text for text in step.get("not", ()) if text in out + err], (step, out, err)
    assert out == step.get("stdout", out), step
    assert "json" not in step or has_parts(json.loads(out), step["json"]), (step, out)
    for folder, expected in step.get("files", {}).items():
        assert names(Path(os.path.normpath(job / folder))) == expected, step


METRICS_HEAD = "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_error\n"
METRICS = METRICS_HEAD + (
    "0,0,0,100,2.0,50,0.6,0.30\n"
    "0,1,0,300,3.0,100,0.2,\n"
    "1,0,0,100,2.0,50,0.5,0.25\n"
    "1,0,1,100,2.0,50,0.4,0.20\n"
    "1,1,1,100,2.0,50,0.2,\n"
)


def names(folder):
    """Return the names of a folder's entries, sorted."""
    return sorted(path.name for path in folder.iterdir())


def update_json(file, **changes):
    """Change keys of a JSON object in a file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def write_status(job: Path, **changed: object) -> None:
    """Write the status.json of a job's run as rank 0 does; the run trains unless `changed` says otherwise."""
    write_atomically(job / "output" / "status.json", json.dumps(make_status(**changed)))


DAY = 86400.0


def add_run(job: Path, name: str, days_ago: float, error: float, **fingerprint: object) -> None:
    """Create an earlier run: two passes in twenty minutes with three trainers."""
    ended = time.time() - days_ago * DAY
    record = {
        "runId": name,
        "state": "complete",
        "started": ended - 1200,
        "finished": ended,
        "score": {"error": error},
        "restarts": [],
        "fingerprint": {"trainers": 3, "batchSize": 64, "program": "a" * 64, **fingerprint},
    }
    rows = f"0,0,0,100,2.0,50,0.6,{error + 0.1}\n1,0,0,100,2.0,50,0.5,{error}\n"
    files = {"model/network": "x" * 1000, "run.json": json.dumps(record), "metrics.csv": METRICS_HEAD + rows}
    write_files(job / "runs" / name, files)


@pytest.fixture
def job_folder(tmp_path: Path) -> Path:
    """Create <JOB_PATH>/quick-start with a complete run."""
    manifest = {"dataDigest": "d" * 64, "splitCount": 3, "lines": 21000, "shards": []}
    run = {"runId": K8S_JOB, "state": "complete", "score": {"error": 0.2012}}
    files = {
        "manifest.json": json.dumps(manifest),
        "output/status.json": json.dumps(make_status(state="complete")),
        "output/run.json": json.dumps(run),
        "output/metrics.csv": METRICS,
        "output/model/model.pdmodel": bytes(range(256)) * 5000 + b"\r\n\0\xff",
    }
    for rank in range(3):
        files |= {
            f"output/node_{rank}/train.log": f"trainer {rank}\n",
            f"output/node_{rank}/server.log": f"server {rank}\n",
            f"output/node_{rank}/server-1.log": f"second server {rank}\n",
            f"output/node_{rank}/attempt-0/train.log": f"trainer {rank}, first attempt\n",
        }
    return write_files(tmp_path / "jobs" / "quick-start", files)


@pytest.fixture
def job(job_folder: Path) -> Path:
    """Create <JOB_PATH>/quick-start with a complete run and three earlier ones."""
    add_run(job_folder, "quick-start-aaaa", 1, 0.13, args=["--learning_rate=0.01"])
    add_run(job_folder, "quick-start-bbbb", 3, 0.12, args=["--learning_rate=0.03"])
    add_run(job_folder, "quick-start-cccc", 9, 0.15, args=["--learning_rate=0.01"])
    return job_folder


class Cli:
    """Runs commands of `python -m launcher` in this process."""

    def __init__(self, capture):
        self._capture = capture

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        """Run a command; return (exit code, stdout, stderr) as text."""
        code = main.run_command([str(part) for part in argv])
        out, err = self._capture.readouterr()
        return code, out.decode(), err.decode()

    def succeed(self, *argv: object) -> str:
        """Run a command that must exit with 0; return what it prints to stdout."""
        code, out, err = self(*argv)
        assert code == 0, err
        return out

    def fail(self, expected: int, text: str, *argv: object) -> None:
        """Run a command that must end with the exit code `expected` and a message with `text`, without a traceback."""
        code, _, err = self(*argv)
        assert (code, text in err, "Traceback" in err) == (expected, True, False), err


@pytest.fixture
def cli(capsysbinary, monkeypatch):
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    return Cli(capsysbinary)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
