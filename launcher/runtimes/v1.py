"""Runtime `v1`: runs the `paddle` binary of 2016-2017 with the command lines of its tutorial of 2017."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from launcher.errors import SettingsError, setting_error
from launcher.io import checkpoints
from launcher.paths import Position
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt, Runtime
from launcher.settings import TrainSettings

BINARY = "paddle"
COMMENT = "paddle_process_by_paddle"  # as in the tutorial; `ps` shows it
PROBE_SECONDS = 20

HELP_WORDS = ("nics", "port", "ports_num")
"""Flags in the help of both sub-commands."""


class V1Runtime(Runtime):
    """Describes the processes `paddle pserver` and `paddle train` of PaddlePaddle 0.10 and 0.11.

    The launcher cannot see whether they hang: a pass may take longer than any deadline, and only the end of a pass is
    certain to appear in the log.
    """

    def check(self, settings: TrainSettings) -> None:
        """Raise `SettingsError` for an image without the old binary."""
        found = shutil.which(BINARY, path=settings.environ.get("PATH", os.defpath))
        if found is None:
            raise _unusable(f"there is no `{BINARY}` on PATH", settings)
        for command in ("pserver", "train"):
            try:
                done = subprocess.run(
                    [found, command, "--help"],
                    env=dict(settings.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=PROBE_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise _unusable(f"`{BINARY} {command} --help` fails: {error}", settings) from error
            # gflags' --help exits with 1, so only its output shows whether the sub-command exists.
            shown = done.stdout.decode(errors="replace")
            if not all(word in shown for word in HELP_WORDS):
                why = f"its --help lacks one of {', '.join(HELP_WORDS)}"
                raise _unusable(f"`{BINARY} {command}` is not a command of {found}: {why}", settings)

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the one pserver process of this rank, which listens on all dense and sparse ports."""
        s = attempt.settings
        return [
            attempt.describe_process(
                "pserver",
                argv=(
                    *_command("pserver", s),
                    f"--ports_num_for_sparse={s.ports_num_sparse}",
                    f"--num_gradient_servers={s.gradient_num}",
                ),
                env=s.environ,
                cwd=s.work.program,
                ready_ports=(*s.pserver_ports, *s.sparse_ports),
                ends_itself=False,
            )
        ]

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the one trainer process of this rank.

        Its command line has the tutorial's flags, `--num_gradient_servers`, and `--start_pass` to resume.
        """
        s = attempt.settings
        # The binary counts --num_passes from --start_pass on (its Trainer::train loops so many times).
        start_pass = 0 if attempt.resume is None else attempt.resume.passes
        argv = [
            *_command("train", s),
            f"--pservers={','.join(attempt.hosts)}",
            f"--ports_num_for_sparse={s.ports_num_sparse}",
            f"--config=./{s.config_file}",
            f"--trainer_count={s.trainer_count}",
            f"--num_passes={s.passes - start_pass}",
            "--use_gpu=0",
            f"--log_period={s.log_period}",
            f"--dot_period={s.dot_period}",
            f"--saving_period={s.saving_period}",
            "--local=0",
            f"--trainer_id={attempt.rank}",
            f"--save_dir={s.layout.output}",
            f"--num_gradient_servers={s.gradient_num}",
        ]
        if start_pass:
            argv.append(f"--start_pass={start_pass}")
        return [attempt.describe_process("trainer", argv=(*argv, *s.args), env=s.environ, cwd=s.work.program)]

    def newest_checkpoint(self, output_dir: Path) -> Position | None:
        """Return the position of the newest pass folder that contains the file `done`.

        The other files in the folder are not checked.
        """
        return next((at for at in checkpoints.finished_checkpoints(output_dir) if not at.batches), None)

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether `output_dir` has a checkpoint of the last pass."""
        newest = self.newest_checkpoint(output_dir)
        return newest is not None and newest.passes >= settings.passes


def _command(name: str, s: TrainSettings) -> tuple[str, ...]:
    """Return the sub-command `name` of the binary with the flags that pservers and trainers share."""
    flags = (f"--nics={s.nic}", f"--port={s.port}", f"--ports_num={s.ports_num}", f"--comment={COMMENT}")
    return (BINARY, name, *flags)


def _unusable(why: str, settings: TrainSettings) -> SettingsError:
    return setting_error(
        "runtime",
        settings.runtime,
        "fleet with this image",
        f"{why}; v1 needs an image of PaddlePaddle 0.10 or 0.11, later ones have neither "
        "`paddle pserver` nor `paddle train`",
        "Set runtime to fleet, or image to one with the old binary",
    )
