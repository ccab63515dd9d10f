"""Run the real Pulumi engine against an emulated account: moto server, tools, engine commands."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from local.external_commands import free_port
from testkit.aws_emulator import provider_plugin
from testkit.aws_emulator.account import Account
from testkit.waiting import running_server

REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = Path(__file__).with_name("bin")
"""The folder of the emulator's commands, which tests put first on PATH."""
REGION = "us-west-2"


@lru_cache
def _packages() -> str:
    """Return the output of `pip list -v --format json`."""
    found = [(item.metadata["Name"], item.version, item.locate_file("")) for item in metadata.distributions()]
    return json.dumps([{"name": n, "version": v, "location": str(where)} for n, v, where in found])


def python_command(folder: Path) -> Path:
    """Write a program to `folder` that answers `pip list` from a file, and otherwise runs Python; return its path.

    The engine runs `pip list` before each command, which takes most of a second.
    """
    command, listed = folder / "python-of-the-tests", folder / "packages.json"
    if not command.exists():
        listed.write_text(_packages(), encoding="utf-8")
        script = f"""#!/bin/sh
[ "$*" = "-m pip list -v --format json" ] && exec cat "{listed}"
exec "{sys.executable}" "$@"
"""
        command.write_text(script, encoding="utf-8")
        command.chmod(0o755)
    return command


_SERVING: dict[tuple[Path, Path], tuple[Any, int]] = {}


def serve_plugin(account: Path, project: Path) -> int:
    """Serve a plugin for `account` and `project` in this process and return its port.

    If a plugin already runs for this account and project, it is reused; plugins of others are stopped.
    """
    key = (account, project)
    if key not in _SERVING:
        while _SERVING:
            _SERVING.popitem()[1][0].stop(None)
        _SERVING[key] = provider_plugin.serve(Account(account), project)
    return _SERVING[key][1]


@lru_cache
def shared_moto_server() -> str:
    """Return the address of this process's only moto server; call `reset_moto` before you use it."""
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    folder = until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="moto."))
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false", "PYTHONWARNINGS": "ignore"}
    # With Python's defaults, a sixth of its CPU time would be garbage collection.
    program = "import gc, moto.server; gc.set_threshold(100_000, 20, 20); moto.server.main()"
    command = [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)]
    log = Path(folder) / "moto.log"
    until_the_end.enter_context(running_server(command, environment, f"{address}/moto-api/", log))
    return address


def reset_moto(address: str) -> None:
    """Delete everything in a moto server."""
    request = urllib.request.Request(f"{address}/moto-api/reset", method="POST")  # noqa: S310
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310


@dataclass(frozen=True)
class Step:
    """One operation of the engine, done or previewed."""

    op: str
    type: str
    name: str
    diff: dict[str, str]


@dataclass
class Result:
    """Exit code and output of an engine command, and its steps.

    Steps that change nothing (such as `same`), steps `read` and those of the stack itself are left out.
    """

    code: int
    text: str
    steps: list[Step] = field(default_factory=list)

    def of(self, kind: str) -> list[Step]:
        """Return the steps of one resource type."""
        return [step for step in self.steps if step.type == kind]


@dataclass
class Engine:
    """The real engine, for one stack of a project folder and one emulated account."""

    project: Path
    stack: str
    home: Path
    account: Path

    def command_environment(self) -> dict[str, str]:
        """Return the environment of a command, without the clouds and clusters of this machine."""
        python = Path(sys.executable).parent
        (self.home / "backend").mkdir(parents=True, exist_ok=True)
        inherited = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        plugin = f"aws:{serve_plugin(self.account, self.project)}"
        return inherited | {
            "PATH": f"{COMMANDS}:{python}:{os.environ['PATH']}",
            "PULUMI_HOME": str(self.home / "pulumi"),
            "PULUMI_BACKEND_URL": f"file://{self.home}/backend",
            "PULUMI_CONFIG_PASSPHRASE": "emulator",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "GOGC": "400",  # the commands are short: collecting garbage would take a tenth of their CPU time
            "PULUMI_DEBUG_COMMANDS": "true",  # enables the flag --event-log
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_PYTHON_CMD": str(python_command(self.home)),
            "AWS_EMULATOR_DIR": str(self.account),
            "AWS_EMULATOR_PYTHON": sys.executable,
            "AWS_ACCESS_KEY_ID": "emulator",
            "AWS_SECRET_ACCESS_KEY": "emulator",
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_COLOR": "1",
            "PULUMI_DEBUG_PROVIDERS": plugin,
        }

    def pulumi(self, *arguments: str) -> Result:
        """Run any command, without prompts and colours."""
        environment = self.command_environment()
        pulumi = shutil.which("pulumi", path=environment["PATH"])
        assert pulumi is not None, "pulumi is not on PATH. Fix: make tools, then eval $(make -s env)"
        command = [pulumi, "--non-interactive", "--color=never", *arguments]
        done = subprocess.run(  # noqa: PLW1510
            command, cwd=self.project, env=environment, capture_output=True, text=True, timeout=240
        )
        return Result(done.returncode, done.stdout + done.stderr)

    def init(self) -> Engine:
        """Create the stack."""
        made = self.pulumi("stack", "init", self.stack)
        if made.code:
            raise RuntimeError(made.text)
        return self

    def config(self, *pairs: str) -> None:
        """Set `key=value` pairs in the stack's file; a key may be a path, `network.nat`."""
        arguments = [part for pair in pairs for part in ("--plaintext", pair)]
        done = self.pulumi("config", "set-all", "--stack", self.stack, "--path", *arguments)
        if done.code:
            raise RuntimeError(done.text)

    def adopt(self, kept: dict[str, str]) -> dict[str, str]:
        """Set `storage.adopt` to the ids of the stack's output `kept`, and return the setting."""
        adopted = {key: kept[key] for key in ("fileSystem", "accessPoint", "bucket", "registry")}
        adopted["key"] = kept["key"].rpartition("/")[2]
        self.config(*[f"paddle-training:storage.adopt.{key}={id_}" for key, id_ in adopted.items()])
        return adopted

    def run(self, command: str, *arguments: str, fails: bool = False) -> Result:
        """Run `preview`, `up` or `destroy`, and return its steps.

        Raises:
            AssertionError: the command failed, or did not fail although it `fails`.
        """
        log = self.home / f"events-{time.time_ns()}.json"
        confirm = [] if command == "preview" else ["--yes", "--skip-preview"]
        done = self.pulumi(command, "--stack", self.stack, "--event-log", str(log), *confirm, *arguments)
        done.steps = _steps(log)
        log.unlink(missing_ok=True)
        assert (done.code != 0) is fails, f"{command} exited with {done.code}:\n{done.text}"
        return done

    def preview(self, *arguments: str, fails: bool = False) -> Result:
        return self.run("preview", "--diff", *arguments, fails=fails)

    def up(self, *arguments: str, fails: bool = False) -> Result:
        return self.run("up", *arguments, fails=fails)

    def destroy(self, *arguments: str, fails: bool = False) -> Result:
        return self.run("destroy", *arguments, fails=fails)

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        answer: dict[str, Any] = json.loads(
            self.pulumi("stack", "output", "--stack", self.stack, "--json", "--show-secrets").text
        )
        return answer


def _steps(log: Path) -> list[Step]:
    found: dict[tuple[str, str], Step] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        event = json.loads(line)
        about = event.get("resourcePreEvent") or event.get("resOutputsEvent")
        if not about:
            continue
        meta = about["metadata"]
        if meta["op"] in ("same", "read") or meta["type"] in ("pulumi:pulumi:Stack",):
            continue
        changes = {path: item["diffKind"] for path, item in (meta.get("detailedDiff") or {}).items()}
        name = meta["urn"].rpartition("::")[2]
        step = Step(meta["op"], meta["type"], name, changes)
        if meta["op"] == "refresh" and not changes and "resOutputsEvent" not in event:
            continue
        found[meta["op"], meta["urn"]] = step
    return list(found.values())
