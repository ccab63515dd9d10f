"""Find the model that `training.initModelPath: previous` refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launcher.errors import setting_error
from launcher.log import log
from launcher.settings import PREVIOUS, TrainSettings
from launcher.supervisor.shared_storage.output_folder import read_earlier_runs
from launcher.trainer.checkpoint import contents_file


def find_previous_model(
    settings: TrainSettings,
    program: str,
    exported: Mapping[str, Any] | None,
    pause: Callable[[float], None],
) -> str:
    """Return the value of training.initModelPath that `previous` stands for; "" if no run is complete yet.

    That is the newest complete run in runs/ with this program. If runs/ has no complete run, it is the newest
    export of the job. Rank 0 calls this once for each output, after it has moved the earlier output to runs/.

    Args:
        program: sha256 of this run's program.
        exported: `to` (address) and `program` (sha256) of the newest export; None if there is none.

    Raises:
        SettingsError: there are complete runs, but all of them trained another program.
    """
    layout = settings.layout
    found: list[tuple[float, str, Any]] = []
    for output, record in read_earlier_runs(layout, pause):
        if record.state != "complete":
            continue
        if not contents_file.is_model_complete(output.model):
            log.warning(
                "%s is not used as the initial model: its run is complete, but its folder model/ is not. Fix: if this "
                "run must start with that model, restore model/ from a copy, then start the run again",
                output.root,
            )
            continue
        path = output.root.relative_to(layout.job_path).as_posix()
        found.append((record.finished or record.started, path, record.fingerprint.get("program")))
    if not found and exported:
        found.append((0.0, str(exported["to"]).rstrip("/"), exported.get("program")))
    if not found:
        log.info(
            "training.initModelPath is previous, but no run of this job is complete: starting from scratch"
        )
        return ""
    fitting = [run for run in found if run[2] == program]
    if not fitting:
        newest = max(found)[1]
        raise setting_error(
            "training.initModelPath (PADDLE_LAUNCHER_INIT_MODEL_PATH)",
            PREVIOUS,
            "used with a program that an earlier run has trained",
            f"all complete runs of this job trained another program; the newest one is {newest}. Its parameters "
            "could have another meaning, so they are not used without your decision",
            f"Set it to {newest} for one run, if that model fits; or restore the earlier program; or set it to an "
            "empty text for one run, which then starts from scratch",
        )
    log.info(
        "training.initModelPath is previous: starting with the model of %s, the newest complete one of the same "
        "program",
        max(fitting)[1],
    )
    return max(fitting)[1]
