"""Start pservers and trainers on loopback, forked from one process that has imported Paddle."""

from __future__ import annotations

from launcher.runtimes.fleet import trainer_command
from launcher.runtimes.runtime_protocol import ProcessSpec
from local.trainer_processes import PROGRAMS, Process, TrainerProcesses
from testkit.waiting import PATIENCE
from tests.launcher.trainer.forked import forked_process

__all__ = ["PROGRAMS", "Loopback", "Process"]


class Loopback(TrainerProcesses):
    """A gang that starts fast: Paddle is imported once for all tests of this process."""

    patience = PATIENCE

    def start_process(self, spec: ProcessSpec) -> Process:
        return forked_process(spec) if spec.argv == trainer_command() else super().start_process(spec)
