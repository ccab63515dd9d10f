"""Runtime `collective`: a user's own data-parallel script, with any PaddlePaddle or other library in the image.

Each pod runs `training.processesPerPod` processes of the script `training.config`, with the options `training.args`.
The processes get the variables that `python -m paddle.distributed.launch` and torchrun set, so that a script for either
launcher needs no change (tested with Paddle's launcher, docs/how-to/own-script.md). Paddle's variables are those of
`CollectiveController` in paddle/distributed/launch/controllers/collective.py (the same in 2.6 and 3.x).

Ports of each pod:

port + k                  the endpoint of process k (gloo does not listen on it, NCCL's set-up may)
port + processesPerPod    on rank 0: where process 0 listens for all others
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launcher.dataprep.prepared_data import has_record_batches
from launcher.errors import setting_error
from launcher.io import files, run_record
from launcher.io.helper_protocol import HelperSpec, python_environ
from launcher.io.program_folders import is_script_file, read_program_texts
from launcher.paths import OutputPaths
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt, Role, Runtime
from launcher.schema import RunFile, read_fields
from launcher.settings import TrainSettings

_FOREIGN = """
    DISTRIBUTED_TRAINER_ENDPOINTS FLAGS_selected_cpus FLAGS_selected_devices FLAGS_selected_gpus FLAGS_selected_ipus
    FLAGS_selected_mlus FLAGS_selected_npus FLAGS_selected_xpus MASTER_ADDR MASTER_PORT
    PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST PADDLE_BACKUP_ENV_PATH PADDLE_COORDINATOR_ENDPOINTS PADDLE_CURRENT_ENDPOINT
    PADDLE_GLOBAL_RANK PADDLE_GLOBAL_SIZE PADDLE_GLOO_FS_PATH PADDLE_GLOO_HTTP_ENDPOINT PADDLE_GLOO_RENDEZVOUS
    PADDLE_HETER_TRAINER_IP_PORT_LIST PADDLE_LOCAL_DEVICE_IDS PADDLE_LOCAL_RANK PADDLE_LOCAL_SIZE PADDLE_MASTER
    PADDLE_MASTER_ENDPOINT PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST PADDLE_NNODES PADDLE_PORT
    PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST PADDLE_PSERVERS_IP_PORT_LIST PADDLE_PSERVER_ENDPOINTS PADDLE_PSERVER_ID
    PADDLE_PSERVER_NUMS PADDLE_RANK PADDLE_RANK_IN_NODE PADDLE_ROLE PADDLE_STAGE_TRAINERS_NUM PADDLE_TRAINERS
    PADDLE_TRAINERS_NUM PADDLE_TRAINER_ENDPOINTS PADDLE_TRAINER_ID PADDLE_TRAINING_ROLE PADDLE_WITH_GLOO
    PADDLE_WORKER_ENDPOINT PADDLE_WORLD_DEVICE_IDS TRAINING_ROLE
"""
FOREIGN_VARIABLES = frozenset(_FOREIGN.split())
"""Variables that describe the distribution of a training: Paddle's launcher sets them, or fleet's role maker reads them
(2.6 and 3.x). If the pod has such variables, they must not reach the script. Other variables of the pod do, such as
PADDLE_PG_TIMEOUT and PADDLE_DISTRI_BACKEND."""
LONGEST_LIST = 120 * 1024
"""Largest length of a list of endpoints, as in Paddle's launcher. A longer list does not fit into a variable and is
left out."""
PLACES = {
    "{output_dir}": "PADDLE_LAUNCHER_OUTPUT_DIR",
    "{checkpoint_dir}": "PADDLE_LAUNCHER_CHECKPOINT_DIR",
    "{train_file}": "PADDLE_LAUNCHER_TRAIN_FILE",
    "{test_file}": "PADDLE_LAUNCHER_TEST_FILE",
    "{tables_dir}": "PADDLE_LAUNCHER_TABLES_DIR",
    "{data_dir}": "PADDLE_LAUNCHER_DATA_DIR",
}
"""Text in a script's options → the variable whose value replaces this text. Other text in braces is not changed."""
OTHER_FRAMEWORKS = ("torch", "jax", "tensorflow")
"""In an image with one of these packages, a script with GPUs need not use the image's Paddle."""
SMALL = "The shared memory is too small. Fix: increase training.sharedMemory, if need be with resources.limits.memory"
MEMORY_IS_FULL = LogMeaning(
    r"not enough memory: you tried to allocate|std::bad_alloc|Cannot allocate memory|\bMemoryError|Fail to alloc",
    "The memory of the pod is full (out of memory). Fix: increase resources.requests.memory and "
    "resources.limits.memory, or decrease the batch size of the script",
)
MEANINGS = (
    LogMeaning(  # Paddle's fleet.py (2.6 and 3.x) logs this for each call of a function of parameter servers
        "function doesn't work when use non_distributed fleet",
        "The script is for parameter servers, which this runtime does not have: without them each process trains its "
        "own model. Fix: set runtime: ps; or call fleet.init(is_collective=True) and fleet.distributed_model in the "
        "script",
        is_fatal=True,
    ),
    LogMeaning(
        r"uncorrectable (ECC|NVLink|tensor memory) error|(ECC|NVLink)_?Uncorrectable|NVRM: Xid|\bXid ?(\(|error|\d)"
        r"|(fallen|fell) off the bus|GPU is lost|GPU requires reset|device(\(s\) is/are|s are) busy or unavailable"
        r"|CUDA_?Error_?Devices?_?Unavailable|(CUDA|HIP).{0,40}(hardware (stack )?error|system not yet initialized)"
        r"|Unable to determine the device handle",
        "A GPU of this pod, or its connection, failed. This pod exits, and Kubernetes creates a new one. Fix: keep new "
        "pods off this node until it is repaired: kubectl cordon {node}",
        priority=0,
        ends_pod=True,
    ),
    LogMeaning("insufficient shared memory|Error while creating shared memory segment", SMALL),
    LogMeaning(
        "has no attribute 'ProcessGroupGloo'",
        "The image's Paddle is built without gloo, which connects processes without GPUs. Fix: install the package "
        "paddlepaddle into the image, or build Paddle with -DWITH_GLOO=ON",
    ),
    LogMeaning(
        "(CUDA|HIP|GPU).{0,40}out.of.memory|out of memory (error on|while trying to allocate)|OOM when allocating"
        "|OutOfMemoryError|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED",
        "The memory of a GPU is full (out of memory). Fix: decrease the batch size of the script (run.batch_size of "
        "ScriptRun is training.batchSize), or use GPUs with more memory",
    ),
    MEMORY_IS_FULL,
    # The exit of a peer; before NCCL 2.13 it was an "unhandled system error" with the second text.
    LogMeaning(
        "remote process exited or there was a network error|caused by unexpected exit of a remote peer|ncclRemoteError"
        "|Connection (closed|reset) by (remote )?peer|Connection was likely closed|NCCL communicator was aborted"
        "|Watchdog caught collective operation timeout|NCCL.{0,20}timeout",
        priority=3,
    ),
    LogMeaning(
        "unhandled (system|cuda) error|nccl(System|UnhandledCuda|Internal)Error|issue to the NCCL developers",
        "NCCL failed on this pod: a GPU, or the network of its node. This pod exits, and Kubernetes creates a new one. "
        "Fix: if it happens again on this node, keep new pods off it: kubectl cordon {node}",
        priority=2,
        ends_pod=True,
    ),
)
"""The texts come from these sources: the error strings of the CUDA runtime, which Paddle, PyTorch and NCCL quote; the
allocators and the data loaders (handlers of SIGBUS) of Paddle and PyTorch; NCCL (ncclGetErrorString, shmutils.cc) and
PyTorch's NCCLUtils.cpp and ProcessGroupNCCL.cpp; and gloo's pair.cc."""


class CollectiveRuntime(Runtime):
    """Describes the processes of a user's script, with the environment of paddle.distributed and of torchrun."""

    log_meanings: tuple[LogMeaning, ...] = MEANINGS
    is_user_script = True

    def check(self, settings: TrainSettings) -> None:
        """Raise `SettingsError` if the pod has GPUs, but the image's Paddle is built for CPUs.

        An image that also has another framework is accepted. The chart checks all other settings.
        """
        if settings.gpus_per_pod and not any(map(find_spec, OTHER_FRAMEWORKS)) and has_cpu_paddle():
            raise setting_error(
                "resources.limits (GPUs)",
                settings.gpus_per_pod,
                "absent with this image",
                "the image's Paddle is built for CPUs: it would train without GPUs, or fail with an unrelated message",
                "Install paddlepaddle-gpu into the image, or remove Paddle from it if the script does not need it",
            )

    def conversion(self, settings: TrainSettings, rank: int) -> HelperSpec | None:  # noqa: ARG002 - the protocol's
        """Return the helper that converts the staged data from record batches to Parquet files.

        If the staged data are lines of text, return None.
        """
        data = settings.work.data
        staged = [
            path
            for path in (data / "train.txt", data / "test.txt")
            if path.is_file() and has_record_batches(path)
        ]
        request = {str(path): str(path.with_suffix(".parquet")) for path in staged}
        environment = base_environment(settings)
        return (
            HelperSpec("parser", "launcher.dataprep.parquet_rows", request, environment) if staged else None
        )

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Create the script's folders (`create_script_folders`); return the processes of the script on this rank."""
        create_script_folders(attempt)
        found = []
        for local in range(attempt.settings.processes_per_pod):
            ready = (master_port(attempt.settings),) if (attempt.rank, local) == (0, 0) else ()
            variables = rank_variables(attempt, local)
            found.append(describe_script(attempt, "trainer", local, variables, ready_ports=ready))
        return found

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether run.json says that a run with at least `training.passes` passes is complete.

        A run is complete when all its processes have exited with exit code 0.
        """
        record = read_fields(RunFile, run_record.read(OutputPaths(output_dir))[0] or {})
        return record.state == "complete" and record.passes >= settings.passes


def describe_script(
    attempt: RankAttempt, role: Role, number: int, variables: Mapping[str, str], *shim: str, **fields: Any
) -> ProcessSpec:
    """Return the description of process `number` of a role on this rank, which runs the user's script.

    `variables` are the environment variables that only this role has. `shim` is a Python file that runs the script;
    without it, Python runs the script itself. `fields` are further fields of ProcessSpec.
    """
    s, ours = attempt.settings, run_variables(attempt, number)
    is_single = role == "trainer" and s.processes_per_pod == 1
    return attempt.describe_process(
        role,
        number,
        name=role if is_single else f"{role} {number}",
        argv=(sys.executable, "-u", *shim, *script_command(s.config_file, s.args, ours)),
        env={**base_environment(s), **ours, **variables},
        cwd=s.work.program,
        **fields,
    )


def script_command(script: str, arguments: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Return what follows `python` in the command line of a script: its file or module, and its options.

    An option may contain placeholders, as in `--output={output_dir}/images`. PLACES has the environment variable of
    each placeholder, and the placeholder is replaced by the value of this variable in `variables`.
    """
    found = [*((script,) if is_script_file(script) else ("-m", script))]
    for argument in arguments:
        for place, variable in PLACES.items():
            argument = argument.replace(place, variables.get(variable, ""))  # noqa: PLW2901
        found.append(argument)
    return found


def create_script_folders(attempt: RankAttempt) -> None:
    """Create the folder of the script's own checkpoints; on rank 0 also write program.json for the command `compare`.

    If `training.checkpointDir` is set, that path becomes a link to this folder.

    Raises:
        SettingsError: there are files where the link must be.
        StorageError, StorageFailedError: the storage cannot be written.
    """
    output = OutputPaths(attempt.settings.layout.output)
    with files.storage_errors(output.root):
        output.script_checkpoints.mkdir(parents=True, exist_ok=True)
        if text := attempt.settings.checkpoint_dir:
            link_folder(
                attempt.settings.work.program / text.replace("{output_dir}", str(output.root)),
                output.script_checkpoints,
            )
        if attempt.rank == 0:
            texts = read_program_texts(attempt.settings.work.program)
            files.write_json(output.program_json, {"options": {}, "files": texts})


def link_folder(link: Path, target: Path) -> None:
    """Create the symbolic link `link` to the folder `target`; do nothing if the same link already exists.

    An empty folder at `link` is replaced. Another pod may create the same link at the same time.

    Raises:
        SettingsError: there are files at `link`, or a link to something else.
        OSError: the link cannot be created.
    """
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        if link.is_dir() and not link.is_symlink():
            link.rmdir()
        link.symlink_to(target)
    except OSError as error:
        if not link.exists():
            raise
        if not link.is_symlink() or link.resolve() != target.resolve():
            raise setting_error(
                "training.checkpointDir",
                str(link),
                "a place without files",
                f"the launcher makes it a link to {target}",
                "remove the files from your program's folder, or name another place",
            ) from error


def has_cpu_paddle() -> bool:
    """Return whether `import paddle` would load a Paddle without CUDA and ROCm; False if there is none.

    The function reads the file paddle/version/__init__.py, which Paddle's setup.py (2.6 to 3.x) writes. It does not
    import Paddle, because that would take seconds.
    """
    spec = find_spec("paddle")
    if not (spec and spec.origin):
        return False
    file = Path(spec.origin).parent / "version" / "__init__.py"
    text = file.read_text() if file.is_file() else ""
    has_rocm = re.search(r"(?m)^hip_version\s*=\s*'(?!False|None)", text)
    return bool(re.search(r"(?m)^cuda_version\s*=\s*'False'", text)) and not has_rocm


def master_port(settings: TrainSettings) -> int:
    """Return the port of rank 0's pod on which process 0 listens for all other processes."""
    return settings.port + settings.processes_per_pod


def base_environment(settings: TrainSettings) -> dict[str, str]:
    """Return the pod's variables without FOREIGN_VARIABLES, which describe a distribution.

    The result also has defaults for gloo and NCCL: they connect over the network interface `nic`, unless variables of
    the pod specify another interface. The "=" before the name makes NCCL use exactly this interface, and not every
    interface whose name begins with it. Another default is TORCH_NCCL_ASYNC_ERROR_HANDLING=1. If `extraEnv` has a
    PYTHONPATH, the chart passes it as PADDLE_LAUNCHER_PYTHONPATH, so that it does not replace the image's PYTHONPATH.
    The folders of `extraEnv` come first in the result's PYTHONPATH.
    """
    passed = {name: value for name, value in settings.environ.items() if name not in FOREIGN_VARIABLES}
    defaults = {
        "GLOO_SOCKET_IFNAME": settings.nic,
        "NCCL_SOCKET_IFNAME": f"={settings.nic}",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    environ = defaults | python_environ(passed, settings.program_packages)
    search = filter(None, (passed.get("PADDLE_LAUNCHER_PYTHONPATH"), environ["PYTHONPATH"]))
    return environ | {"PYTHONPATH": ":".join(search)}


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
        "GROUP_WORLD_SIZE": len(attempt.hosts),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": attempt.hosts[0],
        "MASTER_PORT": master_port(s),
        "TORCHELASTIC_RUN_ID": s.k8s_job,
        "TORCHELASTIC_RESTART_COUNT": attempt.attempt,
        "TORCHELASTIC_MAX_RESTARTS": s.restarts,
        "TORCHELASTIC_USE_AGENT_STORE": False,  # process 0 opens the store
    }
    if len(joined := ",".join(endpoints)) < LONGEST_LIST:
        found["PADDLE_TRAINER_ENDPOINTS"] = joined
    if s.gpus_per_pod:
        devices = range(s.gpus_per_pod) if count == 1 else [local]
        found["FLAGS_selected_gpus"] = ",".join(map(str, devices))
    else:
        found["PADDLE_DISTRI_BACKEND"] = "gloo"
    return {name: str(value) for name, value in found.items()}


def training_variables(settings: TrainSettings) -> dict[str, str]:
    """Return the variables with the settings that `launcher.script_run` reads."""
    found = {
        "PASSES": settings.passes,
        "BATCH_SIZE": settings.batch_size,
        "KEEP_CHECKPOINTS": settings.keep_checkpoints,
        "CHECKPOINT_EVERY_BATCHES": settings.checkpoint_every_batches,
        "CHECKPOINT_EVERY_MINUTES": settings.checkpoint_every_minutes,
    }
    return {f"PADDLE_LAUNCHER_{name}": str(value) for name, value in found.items()}


def run_variables(attempt: RankAttempt, local: int) -> dict[str, str]:
    """Return the variables for process `local` of this pod that `launcher.script_run` reads, without `rank_variables`.

    The value of a variable is empty if this run has no such file, folder or checkpoint.
    """
    s, output = attempt.settings, OutputPaths(attempt.settings.layout.output)
    train, test = (
        file if (file := s.work.data / f"{kind}.parquet").is_file() else file.with_suffix(".txt")
        for kind in ("train", "test")
    )
    has_files = s.work.files.exists()
    return {
        **training_variables(s),
        "PADDLE_LAUNCHER_ATTEMPT": str(attempt.attempt),
        "PADDLE_LAUNCHER_TRAIN_FILE": str(train) if s.has_data and not has_files else "",
        "PADDLE_LAUNCHER_TEST_FILE": str(test) if s.has_data and test.is_file() else "",
        "PADDLE_LAUNCHER_TABLES_DIR": str(s.work.tables) if s.has_data else "",
        "PADDLE_LAUNCHER_DATA_DIR": str(s.work.files) if has_files else "",
        "PADDLE_LAUNCHER_OUTPUT_DIR": str(output.root),
        "PADDLE_LAUNCHER_CHECKPOINT_DIR": str(output.script_checkpoints),
        "PADDLE_LAUNCHER_MANIFEST": str(s.layout.data_record(s.data_digest)) if s.has_data else "",
        "PADDLE_LAUNCHER_FULL_WORLD_SIZE": str(s.shards * s.processes_per_pod),
        "PADDLE_LAUNCHER_RESUME": attempt.resume.folder if attempt.resume else "",
        "PADDLE_LAUNCHER_PROGRESS_FILE": str(s.work.trainer_progress(local)),
        "PADDLE_LAUNCHER_REQUESTS": f"{attempt.hosts[0]}:{s.peer_port}{attempt.store}_checkpoint/",
    }
