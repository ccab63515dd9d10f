"""Run train.py in the current folder, and note when it reached each point of its start.

The benchmarks copy this file next to the script of runtime collective that they measure, and start it instead. With
the first trained step it writes the file `marks-<attempt>-<process>.json` in the folder of the variable MARKS_DIR: the
Unix time of each point, with the keys of MARKS in `_collective_script.py`.
"""

import time

marks = {"started": time.time()}

import functools  # noqa: E402 - the imports are measured
import json  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import paddle  # noqa: E402

from launcher.program import ScriptRun  # noqa: E402

marks["imported"] = time.time()


def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which notes the time after its first call as `name`."""

    @functools.wraps(function)
    def call(*args: object, **options: object) -> object:
        found = function(*args, **options)
        marks.setdefault(name, time.time())
        return found

    return call


def report(*args: Any, **options: Any) -> None:
    """Report a step as ScriptRun does; write the file with the first one."""
    original(*args, **options)
    if "first_step" not in marks:
        marks["first_step"] = time.time()
        attempt, process = os.environ.get("PADDLE_LAUNCHER_ATTEMPT", "0"), os.environ["PADDLE_TRAINER_ID"]
        path = Path(os.environ["MARKS_DIR"]) / f"marks-{attempt}-{process}.json"
        path.with_suffix(".tmp").write_text(json.dumps(marks))
        path.with_suffix(".tmp").rename(path)


original = ScriptRun.report
ScriptRun.report = report  # type: ignore[method-assign]
paddle.distributed.init_parallel_env = noting("joined", paddle.distributed.init_parallel_env)
paddle.DataParallel.__init__ = noting("loaded", paddle.DataParallel.__init__)
runpy.run_path("train.py", run_name="__main__")
