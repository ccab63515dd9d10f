"""Read in run.json whether the run is over, for a rank that cannot reach rank 0."""

from __future__ import annotations

from collections.abc import Collection

from launcher.errors import EXIT_GANG, LauncherError
from launcher.io import files
from launcher.paths import OutputPaths
from launcher.runtimes.runtime_protocol import Runtime
from launcher.settings import TrainSettings
from launcher.supervisor.peers.rank0_locator import build_credential
from launcher.supervisor.shared_storage.output_folder import read_run_record


class RunEndedError(LauncherError):
    """The run is over, as rank 0 reported or wrote to run.json; `exit_code` is that of the run."""

    def __init__(self, cause: str, code: int) -> None:
        super().__init__(cause)
        self.exit_code = code


def raise_if_run_is_over(
    output: OutputPaths,
    settings: TrainSettings,
    runtime: Runtime,
    credential: str | None,
    states: Collection[str],
) -> None:
    """Raise `RunEndedError` if run.json says that the run is over.

    Rank 0 may have exited before this rank received its last order. The state `failed` counts only if
    the holder of the output lease that this rank knows wrote it, because a later start of the same run tries again.

    Args:
        output: the output folder.
        settings: the settings of the run.
        runtime: knows whether the outputs are complete.
        credential: the credential that this rank last read from run.lock; None before it has read one.
        states: the states of run.json that count, `complete` or `failed`.
    """
    try:
        run = read_run_record(output)
    except files.UnreadableError:  # rank 0 reports it
        return
    if run is None or run.run_id != settings.run_id or run.state not in states:
        return
    if run.state == "complete" and runtime.is_complete(output.root, settings):
        raise RunEndedError("the run is complete", 0)
    if run.state == "failed" and credential == build_credential(settings, run.holder):
        raise RunEndedError(str(run.cause), run.exit_code or EXIT_GANG)
