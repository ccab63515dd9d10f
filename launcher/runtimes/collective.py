"""Runtime `collective`: a user's own data-parallel script, with any PaddlePaddle or other library in the image.

Each pod runs `training.processesPerPod` processes of the script `training.config`, with the options
`training.extraArgs`. They get the variables that `python -m paddle.distributed.launch` and torchrun set, so that a
script for either needs no change (tested with Paddle's, docs/how-to/own-script.md). Paddle's variables are those of
`CollectiveController` in paddle/distributed/launch/controllers/collective.py (the same in 2.6 and 3.x).

Ports of each pod:

port + k                  the endpoint of process k (gloo does not listen on it, NCCL's set-up may)
port + processesPerPod    on rank 0: where process 0 listens for all others
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from launcher.errors import setting_error
from launcher.io import files, run_record, script_checkpoints
from launcher.io.checkpoint_checks import find_newest_usable
from launcher.io.helper_protocol import python_environ
from launcher.io.program_folders import read_program_texts
from launcher.paths import OutputPaths, Position
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt, Runtime
from launcher.schema import RunFile, read_fields
from launcher.settings import TrainSettings

FOREIGN_VARIABLES = ("PADDLE_", "MASTER_", "FLAGS_selected_", "TRAINING_ROLE")
"""Prefixes of variables that configure the distribution; those of the pod must not reach the script."""
LONGEST_LIST = 120 * 1024
"""As in Paddle's launcher: a longer list of endpoints does not fit into a variable, and is left out."""
OTHER_FRAMEWORKS = ("torch", "jax", "tensorflow")
"""In an image with one of these packages, a script with GPUs need not use the image's Paddle."""
SMALL = "The shared memory is too small. Fix: increase training.sharedMemory, if need be with resources.limits.memory"
EXPLANATIONS = (
    ("insufficient shared memory", SMALL),
    ("Error while creating shared memory segment", SMALL),
    (
        "has no attribute 'ProcessGroupGloo'",
        "The image's Paddle is built without gloo, which connects processes without GPUs. Fix: install the package "
        "paddlepaddle into the image, or build Paddle with -DWITH_GLOO=ON",
    ),
)
"""(text in the log of a failed process, cause and fix). The texts are those of the data loaders of Paddle and PyTorch
(their handlers of SIGBUS), of NCCL (shmutils.cc), and of Python in Paddle's distributed/collective.py."""


class CollectiveRuntime(Runtime):
    """Describes the processes of a user's script, with the environment of paddle.distributed and of torchrun."""

    explanations = EXPLANATIONS
    log_shows_progress = True

    def check(self, settings: TrainSettings) -> None:
        """Raise `SettingsError` for a pod with GPUs whose Paddle is built for CPUs; the chart checks the rest."""
        if settings.gpus_per_pod and not any(map(find_spec, OTHER_FRAMEWORKS)) and has_cpu_paddle():
            raise setting_error(
                "resources.limits (nvidia.com/gpu)",
                settings.gpus_per_pod,
                "absent with this image",
                "the image's Paddle is built for CPUs: it would train without GPUs, or fail with an unrelated message",
                "Install paddlepaddle-gpu into the image, or remove Paddle from it if the script does not need it",
            )

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the processes of the script on this rank."""
        s, output = attempt.settings, OutputPaths(attempt.output_dir)
        with files.storage_errors(output.root):
            output.script_checkpoints.mkdir(parents=True, exist_ok=True)
            if attempt.rank == 0:  # for `compare`
                texts = read_program_texts(attempt.program_dir)
                files.write_json(output.program_json, {"options": {}, "files": texts})
        specs = []
        for local in range(s.processes_per_pod):
            copy = output.train_log(attempt.rank, local)
            first = attempt.rank == 0 and local == 0
            specs.append(
                ProcessSpec(
                    name=f"trainer {local}" if s.processes_per_pod > 1 else "trainer",
                    role="trainer",
                    argv=(sys.executable, "-u", s.config_file, *s.extra_args),
                    env=base_environment(s) | rank_variables(attempt, local) | run_variables(attempt, local),
                    cwd=attempt.program_dir,
                    log=s.work.log(copy.name),
                    copy=copy,
                    ready_ports=(master_port(s),) if first else (),
                )
            )
        return specs

    def newest_checkpoint(self, output_dir: Path) -> Position | None:
        """Return the newest usable checkpoint that `ScriptRun.save` saved; None if there is none."""
        return find_newest_usable(output_dir, script_checkpoints.unusable_reason)

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether all processes have exited with 0 in a run of at least `training.passes`, by run.json."""
        record = read_fields(RunFile, run_record.read(OutputPaths(output_dir))[0] or {})
        return record.state == "complete" and record.passes >= settings.passes


def has_cpu_paddle() -> bool:
    """Return whether `import paddle` would load a Paddle without CUDA; False if there is none.

    Paddle's setup.py (2.6 to 3.x) writes this into paddle/version/__init__.py. Importing Paddle would take seconds.
    """
    spec = find_spec("paddle")
    if not (spec and spec.origin):
        return False
    file = Path(spec.origin).parent / "version" / "__init__.py"
    return file.is_file() and bool(re.search(r"(?m)^cuda_version\s*=\s*'False'", file.read_text()))


def master_port(settings: TrainSettings) -> int:
    """Return the port on which process 0 listens for all others."""
    return settings.port + settings.processes_per_pod


def base_environment(settings: TrainSettings) -> dict[str, str]:
    """Return the pod's variables without those that configure a distribution; the launcher's own ones stay.

    gloo and NCCL connect over the network interface `nic`, unless the pod has variables that specify another.
    """
    passed = {
        name: value
        for name, value in settings.environ.items()
        if name.startswith("PADDLE_LAUNCHER_") or not name.startswith(FOREIGN_VARIABLES)
    }
    return {"GLOO_SOCKET_IFNAME": settings.nic, "NCCL_SOCKET_IFNAME": settings.nic} | python_environ(passed)


def rank_variables(attempt: RankAttempt, local: int) -> dict[str, str]:
    """Return the variables of paddle.distributed and of torchrun for process `local` of this pod."""
    s = attempt.settings
    count = s.processes_per_pod
    rank, world = attempt.rank * count + local, len(attempt.hosts) * count
    endpoints = [f"{host}:{s.port + k}" for host in attempt.hosts for k in range(count)]
    found = {
        "PADDLE_MASTER": f"{attempt.hosts[0]}:{master_port(s)}",
        "PADDLE_GLOBAL_SIZE": world,
        "PADDLE_LOCAL_SIZE": count,
        "PADDLE_GLOBAL_RANK": rank,
        "PADDLE_LOCAL_RANK": local,
        "PADDLE_NNODES": len(attempt.hosts),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_TRAINER_ID": rank,
        "PADDLE_TRAINERS_NUM": world,
        "PADDLE_RANK_IN_NODE": local,
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": attempt.rank,
        "MASTER_ADDR": attempt.hosts[0],
        "MASTER_PORT": master_port(s),
    }
    if len(joined := ",".join(endpoints)) < LONGEST_LIST:
        found["PADDLE_TRAINER_ENDPOINTS"] = joined
    if s.gpus_per_pod:
        devices = range(s.gpus_per_pod) if count == 1 else [local]
        found["FLAGS_selected_gpus"] = ",".join(map(str, devices))
    else:
        found["PADDLE_DISTRI_BACKEND"] = "gloo"
    return {name: str(value) for name, value in found.items()}


def run_variables(attempt: RankAttempt, local: int) -> dict[str, str]:
    """Return what `launcher.script_run` reads in addition to the pod's variables; an empty text: there is none."""
    s, output = attempt.settings, OutputPaths(attempt.output_dir)
    train, test = s.work.data / "train.txt", s.work.data / "test.txt"
    return {
        "PADDLE_LAUNCHER_ATTEMPT": str(attempt.attempt),
        "PADDLE_LAUNCHER_TRAIN_FILE": str(train) if s.has_data else "",
        "PADDLE_LAUNCHER_TEST_FILE": str(test) if s.has_data and test.is_file() else "",
        "PADDLE_LAUNCHER_TABLES_DIR": str(s.work.tables) if s.has_data else "",
        "PADDLE_LAUNCHER_OUTPUT_DIR": str(output.root),
        "PADDLE_LAUNCHER_CHECKPOINT_DIR": str(output.script_checkpoints),
        "PADDLE_LAUNCHER_RESUME": attempt.resume.folder if attempt.resume else "",
        "PADDLE_LAUNCHER_PROGRESS_FILE": str(s.work.trainer_progress(local)),
        "PADDLE_LAUNCHER_REQUESTS": f"{attempt.hosts[0]}:{s.peer_port}{attempt.store}_checkpoint/",
    }
