"""Print the events and the outcome of a simulated run: python -m tests.launcher.supervisor.run_simulation SEED [KIND…].

Without KIND, all kinds of faults (`Faults`) happen.
"""

from __future__ import annotations

import logging
import sys

from launcher.log import log
from tests.launcher.supervisor.simulated_machine import simulated_machine
from tests.launcher.supervisor.simulation import InvariantBrokenError, World


class _EventLog(logging.Handler):
    """Adds the launchers' log lines to the event log of a run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.log_event("    %s: %s", self._world.clock.owner, record.getMessage())


if __name__ == "__main__":
    with simulated_machine():
        world = World(int(sys.argv[1]), kinds=tuple(sys.argv[2:]))
        log.handlers[:], log.propagate = [_EventLog(world)], False
        try:
            outcome = world.run()
        except InvariantBrokenError as violation:
            outcome = f"BROKEN {violation}"
    events = world.newest_events(10_000)
    sys.stdout.write(f"{events}\n{world.ranks} ranks, {world.now:.0f} s: {outcome}\n")
