"""The Pulumi stack `local`: its settings file in the clone and its state in a file backend.

If the settings file `Pulumi.local.yaml` is missing, it is created as a copy of `local/Pulumi.local.yaml`. Git ignores
the file, and the user may edit it like the file of any stack. Pulumi adds the salt of the stack's passphrase to the
file.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local import go_tools
from local.external_commands import LocalError, run_command
from local.files_and_locks import write_file_atomically
from local.paths import CLONE, KUBECONFIG, PASSPHRASE, PULUMI, STATE, cache

STACK = "local"
HOME = STATE / "pulumi-home"
EXAMPLES = "charts/paddle-training/examples"
_PREFIX = "paddle-training"
_SALT = re.compile(r"^encryptionsalt: .*\n?", re.MULTILINE)


def settings_file(clone: Path = CLONE) -> Path:
    """Return the path of the stack's settings file in `clone`."""
    return clone / f"Pulumi.{STACK}.yaml"


def read_settings(clone: Path = CLONE) -> dict[str, Any]:
    """Return the stack's settings; the keys have no `paddle-training:` prefix.

    The settings are read from `Pulumi.local.yaml`. If this file does not exist yet, the default in `local/` is read.

    Raises:
        LocalError: The file is not a valid YAML file of a stack.
    """
    path = (
        settings_file(clone)
        if settings_file(clone).is_file()
        else clone / "local" / settings_file(clone).name
    )
    try:
        config = yaml.safe_load(path.read_text())["config"]
        return {str(key).removeprefix(f"{_PREFIX}:"): value for key, value in config.items()}
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as problem:
        fix = "correct it, or delete it: the next command copies the default local/Pulumi.local.yaml to its place"
        if path != settings_file(clone):  # the default itself, which git tracks
            fix = f"git restore {path}"
        raise LocalError(f"{path} is not a valid stack file: {problem!r}. Fix: {fix}") from None


def list_examples(clone: Path = CLONE) -> list[str]:
    """Return the names of the examples: the values files in the chart's folder `examples`."""
    return sorted(file.stem for file in (clone / EXAMPLES).glob("*.yaml"))


def read_stack_example(clone: Path = CLONE) -> str:
    """Return the name of the example that the stack's setting `valuesFiles` refers to.

    Raises:
        LocalError: `valuesFiles` is not exactly one file, or the file is not an example of the chart.
    """
    files = read_settings(clone).get("valuesFiles") or []
    known = {f"{EXAMPLES}/{name}.yaml": name for name in list_examples(clone)}
    if len(files) == 1 and files[0] in known:
        return known[files[0]]
    raise LocalError(
        f"valuesFiles in {settings_file(clone)} is {files or 'empty'}, but the demo trains one of the examples "
        f"{', '.join(known.values())}. Fix: run `make demo CONFIG=NAME`, which trains that example and writes "
        f'it into the file; or, to train with your own values files, run eval "$(make -s env)" and then '
        f"`pulumi up -s {STACK}`"
    )


def check_example_exists(name: str, clone: Path = CLONE) -> None:
    """Raise LocalError unless `name` is one of the examples."""
    if name not in list_examples(clone):
        raise LocalError(
            f"CONFIG={name} is not an example. Fix: use one of {', '.join(list_examples(clone))}; for a program "
            "of your own see docs/how-to/own-model.md"
        )


def ensure_stack_files(clone: Path = CLONE) -> None:
    """Create the folder of the backend, its passphrase file and the stack's settings file, unless they exist.

    If the settings file is older than the passphrase, its salt is removed, because the salt belongs to an earlier
    passphrase. Locks that killed processes have left in the backend are removed too.

    Raises:
        LocalError: The backend has a state, but the file with the passphrase of the state is missing.
        PermissionError: The user is not root.
    """
    PULUMI.mkdir(parents=True, exist_ok=True)
    PULUMI.chmod(0o700)
    if not PASSPHRASE.is_file():
        if (PULUMI / ".pulumi" / "stacks" / _PREFIX / f"{STACK}.json").is_file():
            raise LocalError(
                f"{PASSPHRASE} is missing: it has the passphrase of the state in {PULUMI}. Fix: restore the file, or "
                "run `python3 local/bootstrap.py down --wipe`, which deletes the local cluster and the state"
            )
        write_file_atomically(PASSPHRASE, secrets.token_urlsafe(32) + "\n", 0o600)
    path = settings_file(clone)
    if not path.is_file():
        shutil.copyfile(clone / "local" / path.name, path)
    elif path.stat().st_mtime < PASSPHRASE.stat().st_mtime:
        # The salt belongs to an earlier passphrase, whose state was wiped; Pulumi generates a new one.
        path.write_text(_SALT.sub("", path.read_text()))
    _remove_dead_locks()


def _remove_dead_locks() -> None:
    """Remove locks of the stack that killed processes of this machine have left.

    Pulumi does not remove the lock of another process, so every later command would fail until `pulumi cancel`.
    """
    for file in (PULUMI / ".pulumi" / "locks" / "organization" / _PREFIX / STACK).glob("*.json"):
        try:
            lock = json.loads(file.read_text())
            is_dead = lock["hostname"] == socket.gethostname() and not Path(f"/proc/{lock['pid']:d}").exists()
        except (OSError, ValueError, TypeError, KeyError):
            continue  # Pulumi's own message names the file
        if is_dead:
            for each in file.parent.glob(f"{file.name}*"):  # with its attributes
                each.unlink(missing_ok=True)


def tool_environment() -> dict[str, str]:
    """Return the environment variables with which pulumi, helm and kubectl work on the stack `local`."""
    folders = [Path(sys.executable).parent, *go_tools.path_folders()]
    return {
        "PATH": os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]),
        "KUBECONFIG": (read_settings().get("kubeconfig") or {}).get("path") or str(KUBECONFIG),
        "PULUMI_BACKEND_URL": f"file://{PULUMI}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(PASSPHRASE),
        "PULUMI_HOME": str(HOME),  # keeps the user's own login and stack selection unchanged
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PADDLE_TRAINING_CACHE": str(cache()),
    }


def ensure_stack_exists(env: Mapping[str, str], clone: Path = CLONE) -> None:
    """Create the stack in the backend if it does not exist."""
    select = ["pulumi", "stack", "select", "--create", STACK, "--non-interactive"]
    run_command(select, why="creating the stack", env=env, cwd=clone)


def write_settings(
    env: Mapping[str, str], chosen: Mapping[str, str | list[str]], clone: Path = CLONE
) -> None:
    """Write settings to the stack's file with `pulumi config`. Other settings in the file stay unchanged.

    `chosen` maps a key or path (`kubeconfig.path`) to the new value. A list replaces the existing list.
    """
    now = read_settings(clone)
    for key, value in chosen.items():
        below, _, last = key.rpartition(".")
        if ((now.get(below) or {}) if below else now).get(last) == value:
            continue
        if isinstance(value, list):
            _run_pulumi_config(env, clone, "rm", f"{_PREFIX}:{key}")
        parts = (
            [(key, value)] if isinstance(value, str) else [(f"{key}[{n}]", v) for n, v in enumerate(value)]
        )
        for path, text in parts:
            _run_pulumi_config(env, clone, "set", "--path", f"{_PREFIX}:{path}", text)


def _run_pulumi_config(env: Mapping[str, str], clone: Path, *words: str) -> None:
    argv = ["pulumi", "config", *words, "--stack", STACK, "--non-interactive"]
    run_command(argv, why=f"writing settings to {settings_file(clone)}", env=env, cwd=clone)
