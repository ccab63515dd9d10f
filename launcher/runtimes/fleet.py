"""Runtime `fleet`, the default: PaddlePaddle 2.6.2's parameter server, as `python -m launcher.trainer`.

A pserver is a parameter server process: it holds a part of the model's tables, which the trainers read and
update. Meaning of the settings that were flags of the PaddlePaddle binary of 2017 (runtime v1):

port            first pserver port of each pod
portsNum        pserver processes per pod, on the ports port … port+portsNum-1; each has a part of each table
portsNumSparse  number of reserved ports after these; no process uses them. The trainers rendezvous (with the
                library gloo) through the launcher of rank 0, on peerPort
gradientNum     the trainers that a synchronous step waits for: always all of them
trainerCount    worker threads of one trainer; each processes whole batches
nic             the network interface whose address each rank gives to the others, for pservers and trainers
"""

from __future__ import annotations

import sys
from pathlib import Path

from launcher import metrics
from launcher.io import checkpoints, files
from launcher.io.helper_protocol import HelperSpec, python_environ
from launcher.paths import OutputPaths
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt, Runtime
from launcher.schema import to_json
from launcher.settings import TrainSettings
from launcher.trainer import process_settings

PADDLE_VARIABLES = (
    "PADDLE_PS",
    "PADDLE_TRAINER",
    "PADDLE_GLOO",
    "PADDLE_WITH_GLOO",
    "PADDLE_PORT",
    "TRAINING_ROLE",
)
"""Prefixes of variables that configure Paddle's roles. Such variables of the pod must not reach Paddle."""
CONVERT_BYTES = 16 << 20
"""The trainer itself parses a shard that is smaller than this: loading the program in another process would take longer
than parsing the shard."""
THREADS = {
    # One compute thread per call: trainerCount sets the number of a trainer's threads.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Paddle saves tables with more threads nevertheless. Without this setting those that wait for gzip would
    # spin: a fifth of the CPU time of a test that saves and loads several times.
    "KMP_BLOCKTIME": "0",
}
SEE_SERVERS = (
    "Fix: if this repeats, see the servers' logs: python -m launcher logs --role pserver --rank RANK"
)
MEANINGS = tuple(
    LogMeaning(text, SEE_SERVERS, is_fatal=True)
    for text in ("fleet pull sparse failed", "resquest cmd_id:", "Set max_body_size to allow bigger messages")
)
"""Lines that Paddle 2.6.2 logs (with this typo) when a server did not answer a trainer, or when one of the two dropped
a message that was too long (launcher/trainer/paddle_internals.py). After such a line Paddle still continues, and waits
300 s in each try. A successful run logs none of these texts."""
QUIET = {"GLOG_minloglevel": "1"}  # Paddle's messages about every flush would interrupt the lines of dots


class FleetRuntime(Runtime):
    """Describes the pserver and trainer processes of PaddlePaddle 2.6.2; the supervisor starts them."""

    trainer_waits = True  # so that pservers and trainers load Paddle at the same time
    # A checkpoint that a stop needs is complete before the order to stop, and an incomplete one is never restored.
    has_nothing_to_save = True
    log_meanings = MEANINGS
    reports_progress = True

    def check(self, settings: TrainSettings) -> None:
        """Check nothing: pservers and trainers themselves reject an image or node that cannot work."""

    def fork_server(self, settings: TrainSettings) -> ProcessSpec:
        """Return the process that imports Paddle once, and then forks pservers and trainers."""
        return ProcessSpec(
            name="fork server",
            role="fork-server",
            argv=(*trainer_command(), "fork-server"),
            env=base_environment(settings) | QUIET,
            cwd=settings.work_dir,
            log=settings.work.log("fork-server.log"),
        )

    def conversion(self, settings: TrainSettings, rank: int) -> HelperSpec | None:
        """Return the helper that parses this rank's rows; None if the shard is so small that the trainer parses it."""
        data_dir, program_dir = settings.work.data, settings.work.program
        if (data_dir / "train.txt").stat().st_size < CONVERT_BYTES:
            return None
        request = {
            "data": str(data_dir),
            "config": str(program_dir / settings.config_file),
            "options": list(settings.args),
            "records": str(settings.work.records),
            "rank": rank,
        }
        environment = base_environment(settings)
        return HelperSpec("parser", "launcher.trainer.conversion", request, environment)

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the parameter server processes of this rank, one for each pserver port."""
        return [
            _describe_process(attempt, server, port)
            for server, port in enumerate(attempt.settings.pserver_ports)
        ]

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the one trainer process of this rank."""
        # Paddle requires a port, but a trainer does not listen on it.
        return [_describe_process(attempt, -1, attempt.settings.peer_port)]

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether the run in `output_dir` is complete.

        A run is complete if it has trained all passes or early stopping ended it, and output/model was exported
        from the right checkpoint (the best one with `training.keepBest`, else the newest).
        """
        made = checkpoints.model_checkpoint(OutputPaths(output_dir).model)
        newest = checkpoints.newest_checkpoint(output_dir) if made else None
        if newest is None:
            return False
        metric = settings.keep_best
        scores = checkpoints.scores_by(
            checkpoints.read_contents(OutputPaths(output_dir).checkpoint(newest)), metric
        )
        if newest.passes < settings.passes and not metrics.stops_early(metric, scores, settings.patience):
            return False
        source = checkpoints.choose_model_checkpoint(output_dir, metric, scores, newest.passes, made)
        return source is None or source.folder == made


def trainer_command() -> tuple[str, ...]:
    """Return the command line of pservers and trainers. The settings of a process say which of them it is."""
    return (sys.executable, "-m", "launcher.trainer")


def base_environment(settings: TrainSettings) -> dict[str, str]:
    """Return the environment variables that all processes with Paddle have, also the fork server.

    They are the variables of the pod without those that begin with PADDLE_VARIABLES, the variables of `python_environ`,
    and the numbers of threads (THREADS). The addresses of ranks are not among them.
    """
    own = {k: v for k, v in settings.environ.items() if not k.startswith(PADDLE_VARIABLES)}
    return python_environ(own, settings.program_packages) | THREADS


def _describe_process(attempt: RankAttempt, server: int, port: int) -> ProcessSpec:
    """Write the JSON file with a process's settings, and return the description of the process.

    `ProcessSettings` reads the file and explains its fields. `server` is the number of the pserver in its pod; -1 for
    the trainer.
    """
    s, rank = attempt.settings, attempt.rank
    name, variables = f"pserver {server}", {"TRAINING_ROLE": "PSERVER"}
    if server < 0:
        name = "trainer"
        variables = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(rank)}
    path = s.work_dir / f"process-{name.replace(' ', '-')}.json"
    values = {"rank": rank, "server": server, "hosts": list(attempt.hosts), "attempt": attempt.attempt}
    world = list(attempt.world or range(len(attempt.hosts)))
    values |= {"world": world, "trainers": len(world), "gradient_num": len(world), "max_trainers": s.shards}
    # Rank 0 has replaced `previous`, so that all ranks load the same model.
    values |= {"resume": to_json(attempt.resume), "store": attempt.store, "init_model": s.init_model}
    files.write_json(path, values)
    # Every process must get the servers in the same order.
    servers = [f"{host}:{each}" for host in attempt.hosts for each in s.pserver_ports]
    variables |= {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers),
        "PADDLE_TRAINERS_NUM": str(len(world)),
        "POD_IP": attempt.host,
        "PADDLE_PORT": str(port),
        process_settings.VARIABLE: str(path),
    }
    return attempt.describe_process(
        "trainer" if server < 0 else "pserver",
        max(server, 0),
        name=name,
        argv=trainer_command(),
        env=base_environment(s) | QUIET | variables,
        cwd=s.work_dir,
        ready_ports=() if server < 0 else (port,),
    )
