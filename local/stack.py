"""The stack `local`: its settings file in the clone, and its state in a file backend below the state folder.

`Pulumi.local.yaml` is this machine's own and known to .gitignore: made from `local/Pulumi.local.yaml` when it
is not there, and then a person's, as any stack's file is. The engine writes a salt for its passphrase into
it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local.errors import LocalError
from local.files import write_whole
from local.paths import CLONE, KUBECONFIG, PASSPHRASE, PULUMI, STATE, cache
from local.run import run
from local.toolchain import build, own

STACK = "local"
HOME = STATE / "pulumi-home"
EXAMPLES = "charts/paddle-training/examples"
_PREFIX = "paddle-training"
_SALT = re.compile(r"^encryptionsalt: .*\n?", re.MULTILINE)


def file(clone: Path = CLONE) -> Path:
    """The stack's settings file in a clone."""
    return clone / f"Pulumi.{STACK}.yaml"


def settings(clone: Path = CLONE) -> dict[str, Any]:
    """The stack's settings, without the project's name before each key.

    Raises:
        LocalError: the file is no YAML of a stack.
    """
    path = file(clone) if file(clone).is_file() else clone / "local" / file(clone).name
    try:
        config = yaml.safe_load(path.read_text())["config"]
        return {str(key).removeprefix(f"{_PREFIX}:"): value for key, value in config.items()}
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as problem:
        raise LocalError(f"{path} cannot be read as a stack's settings: {problem!r}") from None


def examples(clone: Path = CLONE) -> list[str]:
    return sorted(file.stem for file in (clone / EXAMPLES).glob("*.yaml"))


def example(clone: Path = CLONE) -> str:
    """The example that the stack trains.

    Raises:
        LocalError: its values files are a person's own.
    """
    files = settings(clone).get("valuesFiles") or []
    known = {f"{EXAMPLES}/{name}.yaml": name for name in examples(clone)}
    if len(files) == 1 and files[0] in known:
        return known[files[0]]
    raise LocalError(
        f"valuesFiles in {file(clone)} are {files or 'empty'}, and not one of the examples "
        f"{', '.join(known.values())}, which the demo trains. `pulumi up -s {STACK}` (after eval "
        '"$(make -s env)") trains yours; CONFIG=NAME trains an example, and writes that into the file.'
    )


def check_config(name: str, clone: Path = CLONE) -> None:
    """Raise LocalError unless `name` is one of the examples."""
    if name not in examples(clone):
        raise LocalError(
            f"CONFIG={name}: there is no such example; the chart has {', '.join(examples(clone))}. A "
            "program of "
            "your own is described in the README."
        )


def refresh(clone: Path = CLONE) -> None:
    """Make what is missing of the backend's folder, its passphrase and the stack's file.

    Raises:
        LocalError: there is a state, but not the passphrase that it is encrypted with.
    """
    PULUMI.mkdir(parents=True, exist_ok=True)
    PULUMI.chmod(0o700)
    if not PASSPHRASE.is_file():
        if (PULUMI / ".pulumi" / "stacks" / _PREFIX / f"{STACK}.json").is_file():
            raise LocalError(
                f"{PASSPHRASE} is gone, with which the state in {PULUMI} is encrypted. Put it back, or begin "
                "anew with `python3 local/bootstrap.py down --wipe`, which drops cluster and state."
            )
        write_whole(PASSPHRASE, secrets.token_urlsafe(32) + "\n", 0o600)
    path = file(clone)
    if not path.is_file():
        shutil.copyfile(clone / "local" / path.name, path)
    elif path.stat().st_mtime < PASSPHRASE.stat().st_mtime:
        # A salt from before this passphrase: its state was wiped, and the engine makes another one.
        path.write_text(_SALT.sub("", path.read_text()))


def environment(fitting: dict[str, Path] | None = None) -> dict[str, str]:
    """Variables with which plain pulumi, helm and kubectl work on the stack `local`, and pulumi on others
    too."""
    folders = [str(f) for f in build.path_folders(own.found() if fitting is None else fitting)]
    python = str(Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join([python, *folders, own.outside_path()]),
        "KUBECONFIG": (settings().get("kubeconfig") or {}).get("path") or str(KUBECONFIG),
        "PULUMI_BACKEND_URL": f"file://{PULUMI}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(PASSPHRASE),
        "PULUMI_HOME": str(HOME),  # a person's own login and stack selection stay as they are
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PADDLE_TRAINING_CACHE": str(cache()),
    }


def ensure(env: Mapping[str, str], own_pulumi: bool, clone: Path = CLONE) -> None:
    """Make the stack in the backend if it is not there."""
    if own_pulumi and not (clone / "venv").is_dir():
        # A stock language host wants the environment that Pulumi.yaml names; .gitignore knows it.
        run(["pulumi", "install"], why="installing the program's packages", env=env, cwd=clone, seconds=900)
    select = ["pulumi", "stack", "select", "--create", STACK, "--non-interactive"]
    run(select, why="making the stack", env=env, cwd=clone)


def choose(env: Mapping[str, str], chosen: Mapping[str, str | list[str]], clone: Path = CLONE) -> None:
    """Write settings into the stack's file as a person would, by `pulumi config`; those there already stay.

    A key may be a path (`kubeconfig.path`); a list replaces the whole list.
    """
    now = settings(clone)
    for key, value in chosen.items():
        below, _, last = key.rpartition(".")
        if ((now.get(below) or {}) if below else now).get(last) == value:
            continue
        if isinstance(value, list):
            _config(env, clone, "rm", f"{_PREFIX}:{key}")
        parts = (
            [(key, value)] if isinstance(value, str) else [(f"{key}[{n}]", v) for n, v in enumerate(value)]
        )
        for path, text in parts:
            _config(env, clone, "set", "--path", f"{_PREFIX}:{path}", text)


def _config(env: Mapping[str, str], clone: Path, *words: str) -> None:
    argv = ["pulumi", "config", *words, "--stack", STACK, "--non-interactive"]
    run(argv, why=f"writing into {file(clone)}", env=env, cwd=clone)
