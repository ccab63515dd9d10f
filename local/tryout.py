"""`make try`: an example trained at once by three launchers on loopback, without root, Kubernetes or tools.

The same launcher, runtime, programs and command line as in the pods. Missing is what the cluster adds:
pods on several nodes, their replacement, the chart. Each rank has an address of its own in 127/8; rank 0 is
found by the address in `run.lock`, as in a cluster whose DNS is away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from launcher import runtimes
from launcher.cli.recipe import merged
from launcher.errors import LauncherError
from launcher.gang.agent import Agent
from launcher.gang.network import Network
from launcher.settings import TrainSettings
from launcher.timings import Timings
from local import data, say, served, stack
from local.errors import LocalError
from local.files import need_space
from local.paths import CLONE, cache

CHART = CLONE / "charts" / "paddle-training"
GRACE_SECONDS = 5  # for the cause of a failed run to reach its status file
END_SECONDS = 90  # for the launchers to end once they are told to; with a compiler beside them that is slow
MINUTES = 60


class Loopback(Network):
    """One rank's network: an address of its own, and no names."""

    def __init__(self, address: str) -> None:
        self.bind_host = address

    def resolve(self, name: str) -> list[str]:
        """No pod has a name here."""
        return [name] if name[0].isdecimal() else []

    def interfaces(self) -> dict[str, list[str]]:
        """`lo`, with this rank's address."""
        return {"lo": [self.bind_host]}


def values(config: str) -> dict[str, Any]:
    """The example's values over the chart's defaults."""
    files = CHART / "values.yaml", CLONE / stack.EXAMPLES / f"{config}.yaml"
    defaults, own = (yaml.safe_load(file.read_text("utf-8")) for file in files)
    return merged(defaults, own)


def environment(v: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """What the chart tells the pods of both Jobs, as far as it is not the cluster's (templates/_training.tpl,
    _data_spec.tpl); a test holds it against what helm renders."""
    training, source, trainers = v["training"], v["data"], v["trainers"]
    config_dir, _, config_file = training["config"].partition("/")
    told: dict[str, Any] = {
        "JOB_NAME": v["jobName"],
        "JOB_PATH": folder / "shared",
        "JOB_NAMESPACE": "try",
        "PADDLE_LAUNCHER_RELEASE": "try",
        "PADDLE_LAUNCHER_K8S_JOB": f"{v['jobName']}-try",
        "PADDLE_LAUNCHER_DATA_DIGEST": "try",
        "PADDLE_LAUNCHER_SERVICE": "try",
        "TRAIN_CONFIG_DIR": config_dir,
        "PADDLE_LAUNCHER_CONFIG_FILE": config_file or "trainer_config.py",
        "CONF_PADDLE_NIC": "lo",
        "CONF_PADDLE_PORT": v["port"],
        "CONF_PADDLE_PORTS_NUM": v["portsNum"],
        "CONF_PADDLE_PORTS_NUM_SPARSE": v["portsNumSparse"],
        "CONF_PADDLE_GRADIENT_NUM": trainers,
        "TRAINER_COUNT": v["trainerCount"],
        "PADDLE_LAUNCHER_TRAINERS": trainers,
        "PADDLE_LAUNCHER_RUNTIME": v["runtime"],
        "PADDLE_LAUNCHER_MODE": training["mode"],
        "PADDLE_LAUNCHER_PASSES": training["passes"],
        "PADDLE_LAUNCHER_BATCH_SIZE": training["batchSize"],
        "PADDLE_LAUNCHER_LOG_PERIOD": training["logPeriod"],
        "PADDLE_LAUNCHER_EXTRA_ARGS": _json(training["extraArgs"]),
        "PADDLE_LAUNCHER_RESTARTS": training["restarts"],
        "OUT_DIR": folder / "shared" / v["jobName"],
        "SPLIT_COUNT": trainers,
        **{
            f"PADDLE_LAUNCHER_DATA_{key}": source[name]
            for key, name in {
                "SOURCE": "source",
                "SHA256": "sha256",
                "MEMBER": "member",
                "FORMAT": "format",
                "DELIMITER": "delimiter",
                "ENCODING": "encoding",
                "SEED": "seed",
                "TEST_FRACTION": "testFraction",
            }.items()
        },
        "PADDLE_LAUNCHER_DATA_HEADER": str(source["header"]).lower(),
        "PADDLE_LAUNCHER_DATA_TABLES": _json(source["tables"]),
        "PADDLE_LAUNCHER_DATA_COLUMNS": _json(source["columns"]),
    }
    return {key: str(value) for key, value in told.items()}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))  # as helm writes it


def run(config: str, live: bool = True) -> None:
    """Trains the example, shows how it goes, and says where its model and curve are.

    live: it has the terminal to itself; else what it shows are lines among those of other steps.

    Raises `LocalError` when the data cannot be had, or the training fails.
    """
    stack.check_config(config)
    folder = cache() / "try" / config
    need_space(cache(), 2, "make try")
    shutil.rmtree(folder, ignore_errors=True)
    env = dealt(config, folder)
    job = Path(env["OUT_DIR"])
    say.note(f"three launchers on loopback, each with a pserver and a trainer; their logs are in {folder}")
    with _ranks(env, folder, int(env["SPLIT_COUNT"])) as ranks:
        _wait(job, folder, ranks, live)
    with _person("results", job, live=live) as shown:
        shown.wait()
    say.done(f"model:  {job / 'output' / 'model'}")
    say.done(f"curve:  {job / 'output' / 'curve.png'}")
    served.show(job)
    say.note(f"the same on a Kubernetes of three nodes, from nothing: make demo CONFIG={config}")


def dealt(config: str, folder: Path) -> dict[str, str]:
    """The environment of the example's launchers; its data lie in shards below the new `folder`, as its data
    Job deals them.

    Raises `LocalError` when the data cannot be had.
    """
    sources = cache() / "try" / "sources"
    data.ensure_example(config, sources)
    (folder / "shared").mkdir(parents=True)
    (folder / "shared" / "sources").symlink_to(sources)
    own = {
        key: value for key, value in os.environ.items() if not key.startswith(("PADDLE_", "JOB_", "CONF_"))
    }
    env = {**own, **environment(values(config), folder), "PYTHONPATH": str(CLONE)}
    with say.step(f"{config}: the data, dealt to {env['SPLIT_COUNT']} shards"):
        _launch("prepare", env, folder)
    return env


def _launch(command: str, env: Mapping[str, str], folder: Path) -> None:
    log = folder / f"{command}.log"
    with log.open("wb") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "launcher", command],
            env={**env, "PADDLE_LAUNCHER_TERMINATION_LOG": str(folder / f"{command}.end")},
            stdout=out,
            stderr=out,
            check=False,
        )
    if ended.returncode:
        raise LocalError(f"`launcher {command}` ended with {ended.returncode}:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def _ranks(env: Mapping[str, str], folder: Path, trainers: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The launchers of all ranks; whatever happens, they and their processes have ended behind it."""
    net = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"  # two of them may run at once
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(trainers):
            address = f"{net}.{rank + 1}"
            own = {
                "JOB_COMPLETION_INDEX": str(rank),
                "PADDLE_LAUNCHER_POD_NAME": f"rank-{rank}",
                "PADDLE_LAUNCHER_POD_IP": address,
                "PADDLE_LAUNCHER_NODE_NAME": "this machine",
                "PADDLE_LAUNCHER_WORK_DIR": str(folder / f"work-{rank}"),
                "PADDLE_LAUNCHER_TERMINATION_LOG": str(folder / f"rank-{rank}.end"),
            }
            (folder / f"work-{rank}").mkdir()
            with (folder / f"rank-{rank}.log").open("wb") as log:
                argv = [sys.executable, "-m", "local.tryout", address]
                ranks.append(subprocess.Popen(argv, env={**env, **own}, stdout=log, stderr=log))
        yield ranks
    finally:
        # A good end needs a moment: rank 0 draws the curve and tells the others.
        deadline = time.monotonic() + END_SECONDS
        for process in ranks:
            if sys.exc_info()[0] is not None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(job: Path, folder: Path, ranks: list[subprocess.Popen[bytes]], live: bool) -> None:
    """Shows the run until it is over. Of a launcher that fails before, its last words are told."""
    with _person("wait", job, "--timeout", str(MINUTES * 60), live=live) as watching:
        while watching.poll() is None:
            time.sleep(0.2)
            if not any(process.poll() for process in ranks):
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                watching.wait(GRACE_SECONDS)  # it tells the cause itself, once the run has one
            if watching.poll() is None:
                ends = [folder / f"rank-{rank}.end" for rank, p in enumerate(ranks) if p.poll()]
                raise LocalError("\n".join(end.read_text().strip() for end in ends if end.exists()))
    if watching.returncode:
        raise LocalError(f"the training failed; its message is above, and the launchers' logs in {folder}")


@contextlib.contextmanager
def _person(command: str, job: Path, *words: str, live: bool) -> Iterator[subprocess.Popen[str]]:
    """One of the person's commands; it has ended behind the block, and all of its lines are told."""
    argv = [sys.executable, "-m", "launcher", command, "--path", str(job), *words]
    own = {**os.environ, "PYTHONPATH": str(CLONE)}
    piped = None if live else subprocess.PIPE
    with subprocess.Popen(
        argv, cwd=CLONE, env=own, text=True, stdout=piped, stderr=piped and subprocess.STDOUT
    ) as child:
        teller = None if live else threading.Thread(target=_tell, args=(child.stdout,))
        if teller:
            teller.start()
        try:
            yield child
        finally:
            child.kill()  # `results` and a `wait` that ended well are over
            if teller:
                teller.join()


def _tell(lines: IO[str]) -> None:
    for line in lines:
        say.note(line.rstrip())


def main() -> int:
    """One rank, as a process of its own; its address is the only argument."""
    try:
        settings = TrainSettings.from_environ(dict(os.environ))
        return Agent(settings, runtimes.load(settings.runtime), Loopback(sys.argv[1]), Timings()).run()
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the rank's log
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
