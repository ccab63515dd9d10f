"""The default runtime: PaddlePaddle 2.6.2's parameter server, as `python -m launcher.worker` in both roles.

What the old binary's flags mean here:
port           the first pserver of each pod listens here
portsNum       pserver processes a pod, on port … port+portsNum-1; each holds its share of every table, dense
               and sparse (the old binary: threads of one process)
portsNumSparse starts no process: its ports are kept, and the first of them on rank 0 is where the trainers
               meet (gloo's key-value store), so at least 1
gradientNum    the trainers that a synchronous step waits for: always all of them
trainerCount   worker threads of one trainer: each takes whole batches
nic            the network interface that the trainers talk to each other over
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launcher import best, files
from launcher.errors import SettingsError, setting
from launcher.layout import Output, Position
from launcher.runtimes.base import Gang, ProcessSpec
from launcher.settings import TrainSettings
from launcher.worker import outputs

PADDLE_OWN = (
    "PADDLE_PS",
    "PADDLE_TRAINER",
    "PADDLE_GLOO",
    "PADDLE_WITH_GLOO",
    "PADDLE_PORT",
    "TRAINING_ROLE",
)
"""Variables of Paddle's contract: what a pod's environment says of them must not leak in."""
CONVERT_BYTES = 16 << 20
"""A smaller shard is parsed in a second or two: less than a process needs that loads the program for it."""
THREADS = {
    # One compute thread a call: trainerCount is what sets a trainer's threads.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Paddle saves tables with more threads all the same. Those that wait for others, which wait for gzip,
    # would turn meanwhile: a fifth of the processor time of a test that saves and loads a few times.
    "KMP_BLOCKTIME": "0",
}
FATAL = ("fleet pull sparse failed", "resquest cmd_id:", "Set max_body_size to allow bigger messages")
"""What Paddle 2.6.2 logs (spelt so) when a server did not answer a trainer's request, and when either dropped
a message that was too long (launcher/worker/limits.py). It goes on all the same: async waits 300 s a try, geo
trains on without the others. A run that ends well logs none of them."""
QUIET = {"GLOG_minloglevel": "1"}  # Paddle's notes on every flush would tear the lines of dots
PSERVER = QUIET | {"TRAINING_ROLE": "PSERVER"}
TRAINER = QUIET | {"TRAINING_ROLE": "TRAINER"}
PACKAGES = Path(__file__).parent.parent.parent


class FleetRuntime:
    """`runtime: fleet`."""

    trainer_waits = True  # and so pservers and trainers load Paddle at the same time
    fatal_lines: tuple[str, ...] = FATAL

    def check(self, settings: TrainSettings) -> None:
        """Raises `SettingsError` with one line for each setting that cannot work."""
        faults = []
        if settings.patience and not settings.keep_best:
            faults.append(
                setting(
                    "training.patience (PADDLE_LAUNCHER_PATIENCE)",
                    settings.patience,
                    "0 without training.keepBest",
                    "it counts the passes that do not improve that metric",
                    "Set training.keepBest to a test metric of the program, or leave training.patience out",
                )
            )
        if settings.ports_num_sparse < 1:
            faults.append(
                setting(
                    "portsNumSparse (CONF_PADDLE_PORTS_NUM_SPARSE)",
                    settings.ports_num_sparse,
                    "at least 1",
                    "with runtime fleet the first of these ports is where the trainers meet",
                    "Set portsNumSparse to 1 or more",
                )
            )
        if faults:
            raise SettingsError("\n".join(faults))

    def fork_server(self, settings: TrainSettings) -> ProcessSpec:
        """The import of Paddle is most of a process' start, and most of its memory."""
        return ProcessSpec(
            name="fork server",
            role="forks",
            argv=(*command(), "fork-server"),
            env=base(settings) | QUIET,
            cwd=settings.work_dir,
            log=settings.work.log("fork-server.log"),
        )

    def conversion(
        self, settings: TrainSettings, rank: int, data_dir: Path, program_dir: Path
    ) -> ProcessSpec | None:
        """Every row through parse(), once; a small shard is left to the trainer, which has all loaded."""
        if (data_dir / "train.txt").stat().st_size < CONVERT_BYTES:
            return None
        about = {
            "data": str(data_dir),
            "config": str(program_dir / settings.config_file),
            "options": list(settings.extra_args),
            "records": str(settings.work.records),
            "rank": rank,
            "test": (data_dir / "test.txt").is_file(),
        }
        return ProcessSpec(
            name="parser",
            role="convert",
            argv=(sys.executable, "-m", "launcher.worker.convert", json.dumps(about)),
            env=base(settings),
            cwd=settings.work_dir,
            log=settings.work.log("parse.log"),
        )

    def pservers(self, gang: Gang) -> list[ProcessSpec]:
        """One process a dense port."""
        return [self._pserver(gang, server, port) for server, port in enumerate(gang.settings.pserver_ports)]

    def _pserver(self, gang: Gang, server: int, port: int) -> ProcessSpec:
        copy = Output(gang.output_dir).server_log(gang.rank, server)
        return ProcessSpec(
            name=f"pserver {server}",
            role="pserver",
            argv=command(),
            env=environment(gang, server) | PSERVER | {"PADDLE_PORT": str(port)},
            cwd=gang.work_dir,
            log=gang.settings.work.log(copy.name),
            copy=copy,
            ready_ports=(port,),
        )

    def trainer(self, gang: Gang) -> ProcessSpec:
        """The trainer; Paddle wants a port of it too, though nothing of ours uses it."""
        own = TRAINER | {
            "PADDLE_TRAINER_ID": str(gang.rank),
            "PADDLE_PORT": str(gang.settings.sparse_ports[0]),
        }
        copy = Output(gang.output_dir).train_log(gang.rank)
        return ProcessSpec(
            name="trainer",
            role="trainer",
            argv=command(),
            env=environment(gang, -1) | own,
            cwd=gang.work_dir,
            log=gang.settings.work.log(copy.name),
            copy=copy,
        )

    def newest_save(self, output_dir: Path) -> Position | None:
        """The newest save that has `done`, all its files, and was not refused. Raises `DataError`."""
        return outputs.newest_save(output_dir)

    def complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether training ended, by passes or patience, and the model is of the right checkpoint."""
        made = outputs.model_checkpoint(Output(output_dir).model)
        newest = outputs.newest_save(output_dir) if made is not None else None
        if newest is None:
            return False
        metric = settings.keep_best
        scores = outputs.scores(outputs.contents(Output(output_dir).save(newest)), metric)
        if newest.passes < settings.passes and not best.ends_early(metric, scores, settings.patience):
            return False
        source = outputs.model_source(output_dir, metric, scores, newest.passes, made or "")
        return not made or source is None or source.folder == made


def command() -> tuple[str, ...]:
    """Both roles run the same module; the environment says which."""
    return (sys.executable, "-m", "launcher.worker")


def endpoints(gang: Gang) -> str:
    """Every pserver of the job, in the one order that all processes share."""
    return ",".join(f"{host}:{port}" for host in gang.hosts for port in gang.settings.pserver_ports)


def base(settings: TrainSettings) -> dict[str, str]:
    """What is known of a process' environment before the gang has met. Paddle reads some when loaded."""
    own = {k: v for k, v in settings.environ.items() if not k.startswith(PADDLE_OWN)}
    search = [str(PACKAGES), *filter(None, own.get("PYTHONPATH", "").split(":"))]
    return own | THREADS | {"PYTHONPATH": ":".join(dict.fromkeys(search)), "PYTHONUNBUFFERED": "1"}


def environment(gang: Gang, server: int) -> dict[str, str]:
    """The whole environment of a process, without what its role decides. `server` is -1 for the trainer."""
    path = worker_file(gang, server)
    files.write_json(path, worker_settings(gang, server))
    return base(gang.settings) | {
        "PADDLE_PSERVERS_IP_PORT_LIST": endpoints(gang),
        "PADDLE_TRAINERS_NUM": str(gang.settings.gradient_num),
        "POD_IP": gang.host,
        "PADDLE_LAUNCHER_WORKER": str(path),
    }


def worker_file(gang: Gang, server: int) -> Path:
    """On the pod's own disk, one a process."""
    return gang.work_dir / ("worker-trainer.json" if server < 0 else f"worker-pserver-{server}.json")


def worker_settings(gang: Gang, server: int) -> dict[str, object]:
    """What `launcher/worker/settings.py` reads. Pure."""
    s = gang.settings
    return {
        "rank": gang.rank,
        "trainers": gang.trainers,
        "server": server,
        "mode": s.mode,
        "nic": s.nic,
        "store_host": gang.hosts[0],
        "store_port": s.sparse_ports[0],
        "trainer_count": s.trainer_count,
        "batch_size": s.batch_size,
        "passes": s.passes,
        "log_period": s.log_period,
        "dot_period": s.dot_period,
        "saving_period": s.saving_period,
        "save_every_batches": s.save_every_batches,
        "save_every_minutes": s.save_every_minutes,
        "keep_saves": s.keep_saves,
        "delta_saves": s.delta_saves,
        "keep_best": s.keep_best,
        "patience": s.patience,
        "attempt": gang.attempt,
        "resume": None if gang.resume is None else [gang.resume.passes, gang.resume.batches],
        "init_from": s.init_from,
        "job_path": str(s.job_path),
        "config_file": s.config_file,
        "options": list(s.extra_args),
        "data_dir": str(gang.data_dir),
        "program_dir": str(gang.program_dir),
        "output_dir": str(gang.output_dir),
        "work_dir": str(gang.work_dir),
    }
