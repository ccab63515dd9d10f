"""Check a new model before the server loads it: its memory, and a prediction in a process of its own.

Paddle's inference kills its process when it reads certain damaged files (seen with a network.pdmodel of the right
size and wrong content: SIGSEGV), and a training program may hang. Neither may happen to the server.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.io import cgroup_memory
from launcher.serving.paddle_served import Model, ModelError, ServedError
from launcher.serving.paddle_served.model import read_description

CHECK_SECONDS = 300.0
"""Deadline of the check."""
PROCESS_BYTES = 64 << 20
"""Memory of a Python process with Paddle's inference, without files: 62 MiB were measured."""
BYTES_PER_BYTE = 2
"""Memory per byte of a model's files without embeddings: Paddle keeps its parameters twice (measured)."""
_MIB = 1 << 20


def require_memory(folder: Path, root: Path = cgroup_memory.ROOT) -> None:
    """Raise `ModelError` if a second model does not fit into the container's memory next to the present one.

    Embedding tables do not count: they are memory-mapped. Without a limit nothing is checked.
    """
    limit = cgroup_memory.limit(root)
    if limit is None:
        return
    needed = PROCESS_BYTES + BYTES_PER_BYTE * sum(read_description(folder)["files"].values())
    used = cgroup_memory.used_bytes(root)
    if used + needed > limit:
        raise ModelError(
            f"the model needs about {needed // _MIB} MiB while it is loaded next to the present one, but the "
            f"container uses {used // _MIB} of its {limit // _MIB} MiB. Fix: set resources.requests.memory and "
            f"resources.limits.memory to at least {-(-(used + needed) // _MIB)}Mi"
        )


def check_in_subprocess(
    folder: Path,
    row: Mapping[str, Any] | None,
    started: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    seconds: float = CHECK_SECONDS,
) -> None:
    """Open the model in another process, and predict inputs of zeros and, if it is given, the row `row`.

    `started` is called once with the process, so that the caller can kill it.

    Raises:
        ModelError: the model cannot be opened, a prediction failed, or the process failed, was killed or timed out.
    """
    command = [sys.executable, "-m", __name__, str(folder)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=pipe, text=True) as process:
        started(process)
        try:
            _, said = process.communicate(json.dumps(row), timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ModelError(
                f"the check of the model did not end within {seconds:g} s. Fix: look for a loop or a wait in its "
                "program"
            ) from None
    code = process.returncode
    if code < 0:
        raise ModelError(
            f"the check of the model was killed by {signal.Signals(-code).name}: a file of the model is damaged, or "
            "there was not enough memory. Fix: export the model again, or set a higher resources.limits.memory"
        )
    if code:
        raise ModelError(
            (
                said.strip().splitlines()
                or [f"the check of the model exited with code {code}. Fix: export the model again"]
            )[-1]
        )


def main(folder: str) -> int:
    """Check the model in `folder` with the row on stdin (JSON). Return the exit code: 1 if it cannot be used."""
    with contextlib.suppress(OSError):  # if memory is short, the kernel kills this process and not the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        Model(folder).self_check(json.load(sys.stdin))
    except ServedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
