"""`v1`: the command lines of the tutorial, for images that still carry the `paddle` binary of 2016-2017."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from launcher.errors import SettingsError, setting
from launcher.layout import Output, Position
from launcher.runtimes.base import Gang, ProcessSpec
from launcher.settings import TrainSettings
from launcher.worker import outputs

BINARY = "paddle"
COMMENT = "paddle_process_by_paddle"  # the seeds' runs carry it; it shows in `ps`
PROBE_SECONDS = 20

SERVER_FLAGS = ("nics", "port", "ports_num", "ports_num_for_sparse", "num_gradient_servers", "comment")
TRAINER_FLAGS = (
    *SERVER_FLAGS,
    "pservers",
    "config",
    "trainer_count",
    "num_passes",
    "use_gpu",
    "log_period",
    "dot_period",
    "saving_period",
    "local",
    "trainer_id",
    "save_dir",
    "start_pass",
    "init_model_path",
)
MANAGED = frozenset(TRAINER_FLAGS)
"""What the launcher sets itself; `init_model_path` would override the resume (`--start_pass`)."""


def flag_name(argument: str) -> str:
    """`ports_num` of `--ports-num=2` and the like."""
    return argument.lstrip("-").split("=", 1)[0].replace("-", "_")


class V1Runtime:
    """The old binary: `paddle pserver` and `paddle train`."""

    trainer_waits = False
    fatal_lines: tuple[str, ...] = ()

    def check(self, settings: TrainSettings) -> None:
        """Refuses managed flags in extraArgs, modes it lacks, and images without the two sub-commands."""
        for argument in settings.extra_args:
            if flag_name(argument) in MANAGED:
                raise SettingsError(
                    setting(
                        "training.extraArgs (PADDLE_LAUNCHER_EXTRA_ARGS)",
                        argument,
                        "a flag that the launcher does not set itself",
                        "given twice, the binary would take one of the two values without a word; "
                        "managed are "
                        f"{', '.join(sorted(MANAGED))}",
                        "Leave it out and set the chart's own value for it",
                    )
                )
        if settings.mode == "geo":
            raise SettingsError(
                setting(
                    "training.mode (PADDLE_LAUNCHER_MODE)",
                    settings.mode,
                    "sync or async with runtime v1",
                    "the old binary has no geo mode",
                    "Set another mode, or runtime to fleet",
                )
            )
        for name, value in (
            ("saveEvery", settings.save_every_batches or settings.save_every_minutes),
            ("deltaSaves", settings.delta_saves),
            ("keepBest", settings.keep_best),
            ("initFrom", settings.init_from),
        ):
            if value:
                raise SettingsError(
                    setting(
                        f"training.{name}",
                        value,
                        "left out with runtime v1",
                        "the old binary saves at the end of passes only, and begins with its own parameters",
                        f"Leave training.{name} out, or set runtime to fleet",
                    )
                )
        _check_binary(settings)

    def fork_server(self, settings: TrainSettings) -> None:
        """The binary starts fast."""

    def conversion(
        self,
        settings: TrainSettings,  # noqa: ARG002 - the protocol's
        rank: int,  # noqa: ARG002
        data_dir: Path,  # noqa: ARG002
        program_dir: Path,  # noqa: ARG002
    ) -> None:
        """The binary reads text."""
        return

    def pservers(self, gang: Gang) -> list[ProcessSpec]:
        """One process, which listens on all dense and sparse ports."""
        s = gang.settings
        return [
            ProcessSpec(
                name="pserver",
                role="pserver",
                argv=(
                    BINARY,
                    "pserver",
                    f"--nics={s.nic}",
                    f"--port={s.port}",
                    f"--ports_num={s.ports_num}",
                    f"--comment={COMMENT}",
                    f"--ports_num_for_sparse={s.ports_num_sparse}",
                    f"--num_gradient_servers={s.gradient_num}",
                ),
                env=s.environ,
                cwd=gang.program_dir,
                log=s.work.log("server.log"),
                copy=Output(gang.output_dir).server_log(gang.rank),
                ready_ports=(*s.pserver_ports, *s.sparse_ports),
                ends_itself=False,
            )
        ]

    def trainer(self, gang: Gang) -> ProcessSpec:
        """The seeds' trainer line, with `--num_gradient_servers` and, in a resume, `--start_pass`."""
        s = gang.settings
        # The binary counts --num_passes from --start_pass on (its Trainer::train loops so many times).
        start_pass = 0 if gang.resume is None else gang.resume.passes
        argv = [
            BINARY,
            "train",
            f"--nics={s.nic}",
            f"--port={s.port}",
            f"--ports_num={s.ports_num}",
            f"--comment={COMMENT}",
            f"--pservers={','.join(gang.hosts)}",
            f"--ports_num_for_sparse={s.ports_num_sparse}",
            f"--config=./{s.config_file}",
            f"--trainer_count={s.trainer_count}",
            f"--num_passes={s.passes - start_pass}",
            "--use_gpu=0",
            f"--log_period={s.log_period}",
            f"--dot_period={s.dot_period}",
            f"--saving_period={s.saving_period}",
            "--local=0",
            f"--trainer_id={gang.rank}",
            f"--save_dir={gang.output_dir}",
            f"--num_gradient_servers={s.gradient_num}",
        ]
        if start_pass:
            argv.append(f"--start_pass={start_pass}")
        return ProcessSpec(
            name="trainer",
            role="trainer",
            argv=(*argv, *s.extra_args),
            env=s.environ,
            cwd=gang.program_dir,
            log=s.work.log("train.log"),
            copy=Output(gang.output_dir).train_log(gang.rank),
        )

    def newest_save(self, output_dir: Path) -> Position | None:
        """The newest pass with `done`: the binary lists no files by which more could be told."""
        return next((at for at in outputs.finished(output_dir) if not at.batches), None)

    def complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        newest = self.newest_save(output_dir)
        return newest is not None and newest.passes >= settings.passes


def _check_binary(settings: TrainSettings) -> None:
    found = shutil.which(BINARY, path=settings.environ.get("PATH", os.defpath))
    if found is None:
        raise _unfit(f"there is no `{BINARY}` on PATH", settings)
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
            raise _unfit(f"`{BINARY} {command} --help` does not answer: {error}", settings) from error
        # gflags' --help ends with 1, so that only what it prints tells whether the sub-command is there.
        if not _knows(done.stdout.decode(errors="replace"), SERVER_FLAGS[:3]):
            raise _unfit(f"`{BINARY} {command}` is no command of {found}", settings)


def _knows(help_text: str, flags: Iterable[str]) -> bool:
    return all(flag in help_text for flag in flags)


def _unfit(why: str, settings: TrainSettings) -> SettingsError:
    return SettingsError(
        setting(
            "runtime (PADDLE_LAUNCHER_RUNTIME)",
            settings.runtime,
            "fleet with this image",
            f"{why}; v1 needs an image of PaddlePaddle 0.10 or 0.11, later ones have neither sub-command",
            "Set runtime to fleet, or image to one with the old binary",
        )
    )
