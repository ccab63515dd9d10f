"""The stack `local` in a file backend below the state folder, without a trace in the clone.

The engine writes a salt for its passphrase into the stack's settings file whenever that has none. So it gets
a copy (`--config-file`, or `PULUMI_OPTION_CONFIG_FILE`): the clone's `Pulumi.local.yaml` with the salt, and
with
what a
person chose on `make demo`. The copy follows the clone's file when that changes; the choices are kept beside
it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from local.errors import LocalError
from local.files import write_whole
from local.paths import CLONE, KUBECONFIG, PASSPHRASE, PULUMI, STATE, cache
from local.run import run
from local.toolchain import build, own

STACK = "local"
SETTINGS = STATE / "Pulumi.local.yaml"
CHOICES = STATE / "choices.json"
HOME = STATE / "pulumi-home"
EXAMPLES = "charts/paddle-training/examples"
_PREFIX = "paddle-training"


@dataclass(frozen=True)
class Choices:
    """What a person chose with `make demo`; None leaves it to the clone's stack file."""

    config: str | None = None  # an example's name
    kubeconfig: str | None = None
    context: str | None = None
    image: str | None = None


def examples(clone: Path = CLONE) -> list[str]:
    return sorted(file.stem for file in (clone / EXAMPLES).glob("*.yaml"))


def settings(stack_file: dict[str, Any], choices: Choices, salt: str | None) -> dict[str, Any]:
    """The copy's content: the clone's stack file, the choices over it, and the salt."""
    config = dict(stack_file.get("config", {}))
    if choices.config is not None:
        config[f"{_PREFIX}:valuesFiles"] = [f"{EXAMPLES}/{choices.config}.yaml"]
    if choices.kubeconfig is not None:
        config[f"{_PREFIX}:kubeconfig"] = {"path": choices.kubeconfig, "context": choices.context or ""}
    if choices.image is not None:
        config[f"{_PREFIX}:image"] = choices.image
    whole = {**stack_file, "config": config}
    return {"encryptionsalt": salt, **whole} if salt else whole


def choices() -> Choices:
    """The choices of the last `make demo`."""
    try:
        return Choices(**json.loads(CHOICES.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return Choices()


def check_config(name: str, clone: Path = CLONE) -> None:
    """Raise LocalError unless `name` is one of the examples."""
    if name not in examples(clone):
        raise LocalError(
            f"CONFIG={name}: there is no such example; the chart has {', '.join(examples(clone))}. A "
            "program of "
            "your own is described in the README."
        )


def _salt() -> str | None:
    """The salt of the copy, or else of the stack's state."""
    if SETTINGS.is_file():
        salt = (yaml.safe_load(SETTINGS.read_text()) or {}).get("encryptionsalt")
        if salt:
            return str(salt)
    if state_file().is_file():
        checkpoint = json.loads(state_file().read_text()).get("checkpoint", {})
        provider = (checkpoint.get("latest") or {}).get("secrets_providers") or {}
        return (provider.get("state") or {}).get("salt")
    return None


def state_file() -> Path:
    return PULUMI / ".pulumi" / "stacks" / _PREFIX / f"{STACK}.json"


def refresh(chosen: Choices | None = None) -> None:
    """Bring the copy up to date with the clone's stack file and the choices (`chosen` replaces the last
    ones)."""
    PULUMI.mkdir(parents=True, exist_ok=True)
    PULUMI.chmod(0o700)
    if not PASSPHRASE.is_file():
        if state_file().is_file():
            raise LocalError(
                f"{PASSPHRASE} is gone, with which the state in {PULUMI} is encrypted. Put it back, or begin "
                "anew with `python3 local/bootstrap.py down --wipe`, which drops cluster and state."
            )
        write_whole(PASSPHRASE, secrets.token_urlsafe(32) + "\n", 0o600)
    if chosen is not None:
        write_whole(CHOICES, json.dumps(asdict(chosen)) + "\n")
    stack_file = yaml.safe_load((CLONE / f"Pulumi.{STACK}.yaml").read_text())
    content = settings(stack_file, choices(), _salt())
    note = "# Written by `python -m local`: the clone's stack file, the choices of `make demo`, and a salt.\n"
    write_whole(SETTINGS, note + yaml.safe_dump(content, sort_keys=False), 0o600)


def environment(fitting: dict[str, Path] | None = None) -> dict[str, str]:
    """Variables with which plain pulumi, helm and kubectl work on the stack `local`."""
    folders = [str(f) for f in build.path_folders(own.found() if fitting is None else fitting)]
    python = str(Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join([python, *folders, own.outside_path()]),
        "KUBECONFIG": choices().kubeconfig or str(KUBECONFIG),
        "PULUMI_BACKEND_URL": f"file://{PULUMI}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(PASSPHRASE),
        "PULUMI_HOME": str(HOME),  # a person's own login and stack selection stay as they are
        "PULUMI_OPTION_STACK": STACK,
        "PULUMI_OPTION_CONFIG_FILE": str(SETTINGS),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PADDLE_TRAINING_CACHE": str(cache()),
    }


def ensure(env: dict[str, str], own_pulumi: bool) -> None:
    """Make the stack in the backend if it is not there; nothing is written into the clone."""
    if own_pulumi and not (CLONE / "venv").is_dir():
        # A stock language host wants the environment that Pulumi.yaml names; .gitignore knows it.
        run(["pulumi", "install"], why="installing the program's packages", env=env, cwd=CLONE, seconds=900)
    if state_file().is_file():
        return
    # `stack init` has no --config-file and writes the salt beside the Pulumi.yaml that it sees: here a
    # copy's.
    with tempfile.TemporaryDirectory(dir=STATE, prefix=".init.") as folder:
        shutil.copy(CLONE / "Pulumi.yaml", folder)
        bare = {key: value for key, value in env.items() if not key.startswith("PULUMI_OPTION_")}
        run(
            ["pulumi", "stack", "init", STACK, "--non-interactive"],
            why="making the stack",
            env=bare,
            cwd=Path(folder),
        )
        made = yaml.safe_load((Path(folder) / f"Pulumi.{STACK}.yaml").read_text())
    content = yaml.safe_load(SETTINGS.read_text())
    write_whole(
        SETTINGS,
        yaml.safe_dump({"encryptionsalt": made["encryptionsalt"], **content}, sort_keys=False),
        0o600,
    )
