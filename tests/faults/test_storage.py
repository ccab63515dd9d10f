"""Faults of the storage: a full and a read-only volume. Other faults of files are tested on loopback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.cluster_faults import Volume
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import BOTH_RUNTIMES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

StartRun = Callable[..., FaultyRun]


def fails(run: FaultyRun, *words: str) -> list[str]:
    """Check that the Job fails and all its processes exit; return the termination messages of its pods."""
    assert run.training.ended(150) == "Failed"
    said = run.training.messages()
    assert any(all(word in message for word in words) for message in said), said
    run.until(lambda: not run.processes(), f"no process of {run.name}", 60)
    return said


@BOTH_RUNTIMES
def test_a_full_and_a_read_only_volume_fail_the_run_which_resumes_once_they_are_writable(
    volume: Volume, start_run: StartRun
) -> None:
    run = start_run(storage={"hostPath": {"path": str(volume.folder)}})
    for number, (damage, repair, word) in enumerate(
        (
            (volume.fill, volume.free, "o space left"),  # found by the save at the end of a pass
            (volume.refuse_writes, volume.accept_writes, "ead-only"),
        ),
        start=1,
    ):
        run.reach(number, batch=100)
        run.broken()
        damage()
        fails(run, word)
        repair()
        run.training.upgrade({"runId": f"again-{number}"})
        run.recovered()
        assert run.json("run.json")["resume"]["pass"] >= number
    run.ends_complete(what="rejected with the reason (75) twice; repaired and started again: ")
