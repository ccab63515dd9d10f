"""Check a new model before a server ends in favour of it: its memory, and a prediction in a process of its own.

Paddle's inference kills its process when it reads certain damaged files (seen with a network.pdmodel of the right
size and wrong content: SIGSEGV), and a training program may hang. Neither may happen to the server.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from launcher.io import cgroup_memory
from launcher.serving.paddle_served import Model, ModelError, ServedError
from launcher.serving.paddle_served.model import read_description

CHECK_SECONDS = 300
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


def check_in_subprocess(folder: Path, served: Model, seconds: int = CHECK_SECONDS) -> None:
    """Open the model in another process, and check that it answers the requests that the model `served` answers.

    Raises:
        ModelError: the model cannot be opened, a prediction failed, it does not answer such requests, or the
            process failed, was killed or timed out.
    """
    command = [sys.executable, "-m", __name__, str(folder), str(seconds)]
    facts = {
        "row": served.last_row,
        "needed": served.columns,
        "columns": served.program.columns,
        "shape": served.self_check(None),
    }
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    done = subprocess.run(command, input=json.dumps(facts), check=False, text=True, **streams)
    code = done.returncode
    if code == -signal.SIGALRM:
        raise ModelError(
            f"the check of the model did not end within {seconds} s. Fix: look for a loop or a wait in its program"
        )
    if code < 0:
        raise ModelError(
            f"the check of the model was killed by {signal.Signals(-code).name}: a file of the model is damaged, or "
            "there was not enough memory. Fix: export the model again, or set a higher resources.limits.memory"
        )
    if code:
        raise ModelError(
            (
                done.stderr.strip().splitlines()
                or [f"the check of the model exited with code {code}. Fix: export the model again"]
            )[-1]
        )


def require_compatible(folder: Path, served: dict[str, Any]) -> None:
    """Raise `ModelError` if the model in `folder` does not answer the requests that the served model answers.

    `served` has the served model's columns that a row must have (`needed`), all its `columns`, the `shape` of its
    predictions, and the last `row` that it predicted, or null.
    """
    model = Model(folder)
    shape, before = model.self_check(served["row"]), tuple(served["shape"])
    new = [column for column in model.columns if column not in served["needed"]]
    gone = [column for column in served["columns"] if column not in model.program.columns]
    if not new and not gone and shape == before:
        return
    reason = f"its predictions have the shape {shape} instead of {before}"
    if new:
        reason = f"it needs the columns {', '.join(new)}, which requests do not have"
    if gone:
        reason = f"it rejects the columns {', '.join(gone)}, which requests may have"
    raise ModelError(f"{reason}. Fix: restart the pods to serve it nevertheless (kubectl rollout restart)")


def main(folder: str, seconds: str) -> int:
    """Check the model in `folder`, with the served model's facts on stdin. Return 1 if it cannot be used, else 0."""
    signal.alarm(int(seconds))  # here, so that a program that hangs also ends if the server was killed
    with contextlib.suppress(OSError):  # if memory is short, the kernel kills this process and not the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        require_compatible(Path(folder), json.load(sys.stdin))
    except ServedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
