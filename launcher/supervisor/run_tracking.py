"""Send a run's metrics to TensorBoard and MLflow (`tracking`), from the files that the run writes in any case.

Rank 0's launcher uses `RunTracking`, a thread that starts this module as a helper process whenever there is something
new. A tracking server that is slow or dead neither delays nor fails the run: metrics that were not sent are sent by a
later try (`Timings.track`), at the end, or by the next run of the job.

This module calls MLflow's REST API itself, with seven kinds of requests. MLflow's client, mlflow-skinny, would add 30
packages to the image, and by default it blocks for minutes when the server is down.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.io import files, run_record
from launcher.io.helper_protocol import HelperSpec, main, python_environ
from launcher.log import log
from launcher.metrics import parse_metrics, pass_table
from launcher.paths import OutputPaths
from launcher.schema import RunFile, read_fields
from launcher.settings import TrainSettings
from launcher.supervisor.helper_processes import run_helper
from launcher.supervisor.timings import Timings

PENDING = ".tracking-pending"
"""Name of a file that an output folder contains as long as the final state of its run was not sent."""
REQUEST_SECONDS = 20.0
"""Time limit for one request to MLflow."""
METRICS_AT_ONCE, PARAMS_AT_ONCE = 1000, 100
LONGEST_PARAM = 6000
"""METRICS_AT_ONCE, PARAMS_AT_ONCE and LONGEST_PARAM are limits of MLflow's request log-batch: the number of metrics,
the number of parameters, and the characters of a parameter's value (mlflow/utils/validation.py of 3.17)."""
OUTPUT_TAG = "paddle-training.output"
"""Name of a run's tag in MLflow. Later calls find the run by this tag; otherwise each call would create another run."""
STATUS = {"complete": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
"""`state` of run.json → status of the run in MLflow; any other state is RUNNING."""
ARTIFACTS = ("report.html", "curve.png", "model/score.json")
"""Files that are sent to MLflow at the end. The model is not sent: `training.exportTo` copies it to a bucket."""


class RunTracking:
    """Sends the metrics of a run to its trackers while the run trains, in a thread of its own."""

    def __init__(self, settings: TrainSettings, timings: Timings, is_lost: Callable[[], bool]) -> None:
        """Create the object; it sends nothing before `start`.

        Args:
            settings: the settings of the run.
            timings: limits of time.
            is_lost: returns whether this pod lost the output lease. Then nothing is sent any more, because sending
                writes to the output folder, which may belong to another run.
        """
        self._settings, self._timings, self._is_lost = settings, timings, is_lost
        self._output = OutputPaths(settings.layout.output)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send_changes, name="tracking", daemon=True)
        self._failures = 0

    def start(self) -> None:
        """Start the thread that sends metrics; do nothing if no tracker is set in `tracking`."""
        if self._settings.tensorboard or self._settings.mlflow_uri:
            self._thread.start()

    def finish(self) -> None:
        """Send the final state of the run, for at most `Timings.track_end` seconds.

        Call this after the final state was written to run.json.
        """
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(self._timings.track_end)

    def _send_changes(self) -> None:
        sent: object = None
        while not self._end.is_set():
            seen = self._read_change()
            if seen != sent and self._send(self._timings.track_request):
                sent = seen
            self._end.wait(self._timings.track * 2 ** min(self._failures, 5))
        self._send(self._timings.track_end)

    def _read_change(self) -> object:
        """Return a value that changes with metrics.csv and with the state of the run.

        The value is None if metrics.csv does not exist or a file cannot be read. Before the first other value, nothing
        is sent, except at the end of the run.
        """
        try:
            state = read_fields(RunFile, run_record.read(self._output)[0] or {}).state
            status = self._output.metrics_csv.stat()
        except (LauncherError, OSError):
            return None
        return state, status.st_size, status.st_mtime_ns

    def _send(self, seconds: float) -> bool:
        """Run the helper process; return whether everything was sent. After the loss of the output lease, do nothing.

        Of several failures in a row, only the first one is logged.
        """
        if self._is_lost():
            return False
        s = self._settings
        request = {
            "output": str(self._output.root),
            "runs": str(s.layout.runs),
            "tensorboard": s.tensorboard,
            "uri": s.mlflow_uri,
            "experiment": s.mlflow_experiment or s.job_name,
            "name": s.run_id,
        }
        spec = HelperSpec("tracking", "launcher.supervisor.run_tracking", request, python_environ(s.environ))
        try:
            (self._output.root / PENDING).touch()  # the helper, which removes it, may be killed at any time
            run_helper(spec, s.work, self._timings, time.sleep, seconds=seconds, show_log=False)
        except (LauncherError, OSError) as error:
            if not self._failures:
                log.warning(
                    "the run is not affected, but its metrics were not sent to the trackers; they are sent later: %s",
                    error,
                )
            self._failures += 1
            return False
        if self._failures:
            log.info("the trackers have the run's metrics again")
        self._failures = 0
        return True


def _track(request: Mapping[str, Any]) -> dict[str, Any]:
    """Send the metrics of this run, and of earlier runs whose final state was not sent yet, to the trackers; return {}.

    The helper process calls this.
    """
    output, runs = Path(request["output"]), Path(request["runs"])
    earlier = (runs / name for name in files.list_names(runs) if not (runs / name).is_symlink())
    for folder in [*(each for each in earlier if (each / PENDING).is_file()), output]:
        _track_output(OutputPaths(folder), request)
    return {}


def _track_output(output: OutputPaths, request: Mapping[str, Any]) -> None:
    record = read_fields(RunFile, run_record.read(output)[0] or {})
    content = files.read_bytes(output.metrics_csv) or b""
    passes = pass_table(parse_metrics(content.decode(errors="replace")))
    pending = output.root / PENDING
    if request["tensorboard"]:
        write_events(output.root / "tensorboard", record, passes)
    if request["uri"]:
        MlflowRun(request["uri"], os.environ).send(output, record, passes, request)
    if record.state in STATUS:
        pending.unlink(missing_ok=True)


def list_values(
    record: RunFile, passes: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float, float, int]]:
    """Yield (name, value, Unix time, step) of each metric; the step is the number of finished passes.

    The time is the start of the run plus the duration of the passes up to this one, so every call yields the same time
    for a metric.
    """
    when = record.started
    for row in passes:
        when += row["seconds"]
        for name, value in row.items():
            if name not in ("pass", "ranks", "samples", "seconds") and value is not None:
                yield name, float(value), when, row["pass"] + 1


def write_events(folder: Path, record: RunFile, passes: Sequence[Mapping[str, Any]]) -> None:
    """Append the metrics that no earlier call has written to TensorBoard's event file in `folder`.

    TensorBoard follows a growing file. The same metrics always make the same bytes, so the new bytes can be appended.
    If a pass was trained again and its metrics differ, the file is written anew.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import masked_crc32c

    events = [Event(wall_time=record.started, file_version="brain.Event:2")]
    for name, value, when, step in list_values(record, passes):
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        events.append(Event(wall_time=when, step=step, summary=summary))
    made = b""
    for event in events:
        data = event.SerializeToString()
        size = struct.pack("<Q", len(data))
        made += size + struct.pack("<I", masked_crc32c(size)) + data + struct.pack("<I", masked_crc32c(data))
    path = folder / f"events.out.tfevents.{int(record.started)}.{record.output_id}"
    folder.mkdir(exist_ok=True)
    written = files.read_bytes(path) or b""
    if not made.startswith(written):  # a pass was trained again after a restart
        files.write_atomically(path, made)
    else:
        with path.open("ab") as file:
            file.write(made[len(written) :])


class MlflowRun:
    """One run on an MLflow server, over its REST API.

    Its methods raise OSError if the server cannot be reached or rejects a request. They do not try again.
    """

    def __init__(self, uri: str, environ: Mapping[str, str]) -> None:
        """Read the credentials from the variables of MLflow's client in `environ`.

        If the variables contain a user name, the user and the password are used, and the token is not.
        """
        self._uri, self._headers = uri.rstrip("/"), {"Content-Type": "application/json"}
        user, token = environ.get("MLFLOW_TRACKING_USERNAME"), environ.get("MLFLOW_TRACKING_TOKEN")
        if user:
            pair = f"{user}:{environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"

    def send(
        self,
        output: OutputPaths,
        record: RunFile,
        passes: Sequence[Mapping[str, Any]],
        request: Mapping[str, Any],
    ) -> None:
        """Create the run if it is absent, and send all metrics, the settings and the state.

        After the end of the run, send the files of ARTIFACTS, too. The server drops metrics that it already has.
        `request` has the names of the run (`name`) and of its `experiment`.
        """
        experiment = self._find_experiment(request["experiment"])
        run = self._find_run(experiment, record, record.run_id or request["name"])
        run_id = run["info"]["run_id"]
        params = [
            {"key": key, "value": text[:LONGEST_PARAM]}
            for key, value in sorted(record.fingerprint.items())
            if (text := value if isinstance(value, str) else json.dumps(value))
        ]
        known = {one["key"] for one in run["data"].get("params", [])}  # a param is immutable
        new = [one for one in params if one["key"] not in known]
        for at in range(0, len(new), PARAMS_AT_ONCE):
            self._post("runs/log-batch", run_id=run_id, params=new[at : at + PARAMS_AT_ONCE])
        metrics = [
            {"key": key, "value": value, "timestamp": int(when * 1000), "step": step}
            for key, value, when, step in list_values(record, passes)
        ]
        for at in range(0, len(metrics), METRICS_AT_ONCE):
            self._post("runs/log-batch", run_id=run_id, metrics=metrics[at : at + METRICS_AT_ONCE])
        state = STATUS.get(record.state, "RUNNING")
        if state != "RUNNING":
            self._send_artifacts(run["info"].get("artifact_uri", ""), output)
        ended = {"end_time": int((record.finished or time.time()) * 1000)} if state != "RUNNING" else {}
        self._post("runs/update", run_id=run_id, status=state, **ended)

    def _find_experiment(self, name: str) -> str:
        """Return the id of the experiment `name`; create the experiment if it is absent."""
        query = urllib.parse.urlencode({"experiment_name": name})
        try:
            found = self._call("GET", f"experiments/get-by-name?{query}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return str(self._post("experiments/create", name=name)["experiment_id"])
        return str(found["experiment"]["experiment_id"])

    def _find_run(self, experiment: str, record: RunFile, name: str) -> dict[str, Any]:
        """Return MLflow's run for the output of `record`; create a run with this `name` if there is none."""
        wanted = f"tags.`{OUTPUT_TAG}` = '{record.output_id}'"
        found = self._post("runs/search", experiment_ids=[experiment], filter=wanted, max_results=1)
        if found.get("runs"):
            return dict(found["runs"][0])
        tags = {
            OUTPUT_TAG: record.output_id,
            "paddle-training.job": name,
            "paddle-training.program": str(record.fingerprint.get("program", "")),
        }
        created = self._post(
            "runs/create",
            experiment_id=experiment,
            run_name=name,
            start_time=int(record.started * 1000),
            tags=[{"key": key, "value": value} for key, value in tags.items()],
        )
        return dict(created["run"])

    def _send_artifacts(self, place: str, output: OutputPaths) -> None:
        """Send the files of ARTIFACTS through the server; do nothing if the server does not store artifacts itself.

        `place` is the address of the run's artifacts.
        """
        if not place.startswith("mlflow-artifacts:"):
            return
        folder = urllib.parse.urlsplit(place).path.strip("/")
        for name in ARTIFACTS:
            if content := files.read_bytes(output.root / name):
                path = f"api/2.0/mlflow-artifacts/artifacts/{folder}/{Path(name).name}"
                self._open("PUT", path, content, self._headers | {"Content-Type": "application/octet-stream"})

    def _post(self, path: str, **values: Any) -> dict[str, Any]:
        return self._call("POST", path, json.dumps(values).encode())

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        answer = self._open(method, f"api/2.0/mlflow/{path}", body, self._headers)
        return dict(json.loads(answer or b"{}"))

    def _open(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        request = urllib.request.Request(f"{self._uri}/{path}", body, dict(headers), method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:  # noqa: S310 - checked by the chart
            return bytes(answer.read(1 << 24))


if __name__ == "__main__":
    main(_track)
