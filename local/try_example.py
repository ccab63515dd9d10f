"""`make try`: train an example with three launchers on this machine, without root, Kubernetes or built tools.

Launcher, runtime, programs and commands are the same as in the pods. Only what a cluster adds is missing: pods on
several nodes, the replacement of failed pods, and the chart.
"""

from __future__ import annotations

import contextlib
import http
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from launcher.cli.releases import merge_values, read_defaults
from launcher.dataprep.csv_records import split_fields
from launcher.settings import read_document
from local import console, example_data, local_stack
from local.external_commands import LocalError, free_port, run_command
from local.files_and_locks import require_free_space
from local.launcher_gang import NO_GRACE, STOP_SECONDS, LauncherGang, first_port, job_environment
from local.launcher_image import ensure_collective_python
from local.paths import CLONE, cache

CAUSE_SECONDS = 5
"""Seconds that `launcher wait` has, after a launcher has failed, to print the cause from the status file."""
DEADLINE_MINUTES = 60
HOST = "127.0.0.1"
SERVER_SECONDS = 60
SHOWN = 100  # characters of the request that are printed


def example_values(config: str, folder: Path | None = None) -> dict[str, Any]:
    """Return the values of an example, merged over the chart's defaults.

    The example is the file `<config>.yaml` in `folder`; None: in the chart's folder of examples.
    """
    file = (folder or CLONE / local_stack.EXAMPLES) / f"{config}.yaml"
    example = yaml.safe_load(file.read_text("utf-8"))
    return merge_values(read_defaults(), example)


def run(config: str) -> None:
    """Train an example, show its progress, print where its model and curve are, and predict a test row.

    Raises:
        LocalError: there is no such example, the disk is full, the data cannot be fetched or split, or the training or
            the prediction failed.
    """
    local_stack.check_example_exists(config)
    folder = cache() / "try" / config
    require_free_space(cache(), 2, "make try")
    shutil.rmtree(folder, ignore_errors=True)
    env = prepare_example(config, folder)
    job = Path(env["OUT_DIR"])
    is_script = read_document(env)["runtime"] == "collective"
    python = ensure_collective_python() if is_script else Path(sys.executable)
    each = "a process of the script" if is_script else "a pserver and a trainer"
    console.info(f"three launchers on loopback, each with {each}; their logs are in {folder}")
    with LauncherGang(folder, env, python).start() as gang:
        _follow(job, gang)
        gang.wait(STOP_SECONDS)  # rank 0 still draws the curve
    _start_command("results", job).wait()
    console.success(f"model:  {job / 'output' / 'model'}")
    console.success(f"curve:  {job / 'output' / 'curve.png'}")
    print_prediction(config, job)
    console.info(f"to train it in a three-node Kubernetes cluster on this machine: make demo CONFIG={config}")


def print_prediction(config: str, job: Path) -> None:
    """Predict a test row with the finished model of an example, and print the answer. `job` is the job folder."""
    if example_values(config)["runtime"] == "collective":
        predict = CLONE / "launcher" / "programs" / config / "predict.py"
        print_script_prediction(job, predict)
    else:
        print_served_prediction(job)


def prepare_example(config: str, folder: Path, **changes: Any) -> dict[str, str]:
    """Fetch an example's data and split it into shards below the new folder `folder`, as the data Job does.

    `changes` are chart values that override values of the example, such as `trainers`.

    Returns:
        The environment of the example's launchers.

    Raises:
        LocalError: the data cannot be fetched or split.
    """
    sources = cache() / "try" / "sources"
    example_data.ensure_example_data(config, sources)
    (folder / "shared").mkdir(parents=True)
    (folder / "shared" / "sources").symlink_to(sources)
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("PADDLE_", "JOB_", "CONF_"))
    }
    env = {
        **inherited,
        **job_environment(
            folder / "shared", example_values(config), NO_GRACE, {"port": first_port()}, changes
        ),
        "PYTHONPATH": str(CLONE),
    }
    with console.timed_step(f"{config}: split the data into {env['SPLIT_COUNT']} shards"):
        _run_data_job(env, folder)
    return env


def _run_data_job(env: Mapping[str, str], folder: Path) -> None:
    log = folder / "prepare.log"
    with log.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "launcher", "prepare"],
            env={**env, "PADDLE_LAUNCHER_TERMINATION_LOG": str(folder / "prepare.end")},
            stdout=out,
            stderr=out,
            check=False,
        )
    if done.returncode:
        raise LocalError(
            f"`launcher prepare` exited with {done.returncode}. Fix: correct the cause in its log, then run make try "
            f"again:\n{log.read_text()[-2000:]}"
        )


def _follow(job: Path, gang: LauncherGang) -> None:
    """Show the progress of a run until the training has ended. `job` is the job folder of the run.

    Raises:
        LocalError: the training failed or was not complete after DEADLINE_MINUTES. The text is the cause that a
            launcher of `gang` reported, unless the command `launcher wait` has exited: this command has printed the
            cause.
    """
    with _start_command("wait", job, "--timeout", str(DEADLINE_MINUTES * 60)) as wait:
        try:
            while wait.poll() is None:
                time.sleep(0.2)
                if not gang.failed():
                    continue
                with contextlib.suppress(subprocess.TimeoutExpired):
                    wait.wait(CAUSE_SECONDS)
                if wait.poll() is None:
                    raise LocalError("\n".join(_failure(gang, rank) for rank in gang.failed()))
        finally:
            wait.kill()  # no effect on a command that has exited
    if wait.returncode:
        raise LocalError(
            f"the training failed; its message is above. Fix: correct the cause in the launchers' logs in {gang.folder}"
        )


def _failure(gang: LauncherGang, rank: int) -> str:
    """Return the cause that the launcher of `rank` reported for its failure.

    A killed launcher reports no cause. In this case, return its exit code and a fix.
    """
    return gang.termination(rank).strip() or (
        f"the launcher of rank {rank} exited with {gang.processes[rank].returncode}. Fix: for -9 (killed) free some "
        f"memory; else correct the cause in the launchers' logs in {gang.folder}"
    )


def _start_command(command: str, job: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the launcher command `command` for a job folder, such as `wait`. Its output goes to the terminal.

    `words` are further arguments.
    """
    argv = [sys.executable, "-m", "launcher", command, "--path", str(job), *words]
    return subprocess.Popen(argv, cwd=CLONE, env={**os.environ, "PYTHONPATH": str(CLONE)})


def _read_test_row(job: Path) -> list[str]:
    """Return the fields of the first row of the test set in a job's folder."""
    with (job / "test.txt").open(encoding="utf-8", errors="replace", newline="\n") as file:
        return split_fields(next(file))


def print_script_prediction(job: Path, predict: Path) -> None:
    """Predict the first test row with an example's script, and print the answer.

    `predict` is the path of the script. Its arguments are the model's folder and the text in the row's last column.

    Raises:
        LocalError: The script failed.
    """
    argv = [
        str(ensure_collective_python()),
        str(predict),
        str(job / "output" / "model"),
        _read_test_row(job)[-1],
    ]
    answer = run_command(argv, why=f"predicting a test row of {job.name}").strip()
    console.success(f"predict.py: {answer}")


def print_served_prediction(job: Path) -> None:
    """Serve the model in a job folder, send the first test row to the server, and print request and answer.

    The printed answer is the text of the program's `describe`. Without `describe` it is the prediction as JSON.

    Raises:
        LocalError: The server did not start or did not answer.
    """
    about = json.loads((job / "output" / "model" / "model.json").read_text("utf-8"))
    row = dict(zip(about["columns"], _read_test_row(job), strict=True))
    with (
        serve_model(job / "output" / "model") as (_, port),
        httpx.Client(base_url=f"http://{HOST}:{port}", timeout=SERVER_SECONDS, trust_env=False) as client,
    ):
        known = {column: row[column] for column in _read_json(client.get("/model"))["columns"]}
        answer = _read_json(client.post("/predict", json={"rows": [known]}))
    text = answer["words"][0] if answer["words"] else json.dumps(answer["predictions"][0])
    request = json.dumps(known, ensure_ascii=False)
    console.success(f"served: POST /predict {request if len(request) <= SHOWN else request[:SHOWN] + '…'}")
    console.success(f"answer: {text}")


@contextlib.contextmanager
def serve_model(model: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run `python -m launcher serve` during the block; yield the server's process id and its port on loopback.

    `options` are further options of the command.

    Raises:
        LocalError: The server did not start.
    """
    port = free_port()
    argv = [sys.executable, "-m", "launcher", "serve", "--model", str(model), "--port", str(port), *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, cwd=CLONE, env={**os.environ, "PYTHONPATH": str(CLONE)}, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + SERVER_SECONDS
            while not _is_listening(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    output = log.read().decode(errors="replace")[-2000:]
                    raise LocalError(
                        f"the model server (`python -m launcher serve --model {model}`), started for a sample "
                        f"prediction, did not answer. Fix: correct the cause in its output:\n{output}"
                    )
                time.sleep(0.01)
            yield process.pid, port
        finally:
            process.kill()
            process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _read_json(answer: httpx.Response) -> Any:
    if answer.status_code != http.HTTPStatus.OK:
        raise LocalError(
            f"{answer.request.method} {answer.request.url.path} of the served model returned HTTP status "
            f"{answer.status_code}: {answer.text}. Fix: correct the program's parse() or describe()"
        )
    return answer.json()
