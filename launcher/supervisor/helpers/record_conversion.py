"""Parse the staged shard in a helper process before the rendezvous."""

from __future__ import annotations

from collections.abc import Callable

from launcher.errors import EXIT_UNFIT, RUN_ENDS, ProcessError, UnfitError
from launcher.io.helper_protocol import HelperSpec
from launcher.log import log
from launcher.paths import WorkPaths
from launcher.supervisor.helpers.helper_process import HelperError, run_helper
from launcher.supervisor.timings import Timings


def convert_shard(
    spec: HelperSpec | None,
    work: WorkPaths,
    timings: Timings,
    pause: Callable[[float], None],
) -> None:
    """Run the helper process that parses this rank's shard into binary records; do nothing if `spec` is None.

    Raises:
        ProcessError: the data or the program are wrong; message and exit code are those of the process. Or the process
            has logged nothing for `Timings.parser_quiet` seconds.
        UnfitError: the process was killed, or the pod's disk is faulty: another pod may succeed.
    """
    if spec is None:
        return
    log.info("parsing the shard")
    try:
        run_helper(spec, work, timings, pause, quiet_seconds=timings.parser_quiet)
    except HelperError as error:
        text = f"the {spec.name} failed: {error}{error.log_lines}"
        if error.returncode is None:
            text += "\nFix: see what parse() or prepare() of the program waits for."
            raise ProcessError(text, None, spec.name) from error
        if error.returncode in RUN_ENDS:
            raise ProcessError(text, error.returncode, spec.name) from error
        if error.returncode != EXIT_UNFIT:
            text += "\nFix: if it was killed for lack of memory, raise resources.limits.memory."
        raise UnfitError(text) from error
