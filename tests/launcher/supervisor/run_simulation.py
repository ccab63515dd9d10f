"""Run simulations from the command line.

python -m tests.launcher.supervisor.run_simulation SEED       print the events of one run
python -m tests.launcher.supervisor.run_simulation FROM TO    search these seeds for broken invariants
"""

from __future__ import annotations

import logging
import sys

from launcher.log import log
from tests.launcher.supervisor.simulated_machine import simulated_machine
from tests.launcher.supervisor.simulation import InvariantBrokenError, World


def main(arguments: list[str]) -> int:
    """Run one seed or a range of seeds; return 1 if an invariant is broken, else 0."""
    first = int(arguments[0])
    broken = 0
    log.handlers[:], log.propagate = [], False
    logging.disable(logging.CRITICAL if len(arguments) > 1 else logging.NOTSET)
    for seed in range(first, int(arguments[1]) if len(arguments) > 1 else first + 1):
        with simulated_machine():
            world = World(seed)
            handler = _EventLog(world)
            log.addHandler(handler)
            try:
                how = world.run()
            except InvariantBrokenError as violation:
                how, broken = f"BROKEN {violation}", broken + 1
            log.removeHandler(handler)
        if len(arguments) == 1:
            sys.stdout.write(world.newest_events(10_000) + "\n")
        if len(arguments) == 1 or how.startswith("BROKEN"):
            sys.stdout.write(f"seed {seed}, {world.ranks} ranks, {world.now:.0f} s: {how}\n")
    return 1 if broken else 0


class _EventLog(logging.Handler):
    """Adds the launchers' log lines to the event log of a run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.log_event("    %s: %s", self._world.clock.owner, record.getMessage())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
