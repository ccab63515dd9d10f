"""What tests need around the emulator: a moto server, an account, and the real engine on a copy of a
program."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.waiting import answers, until

from . import plugin
from .account import Account

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
REGION = "us-west-2"


class MissingToolError(Exception):
    """A tool that the engine needs is not on this machine."""


def cache() -> Path:
    """Where `local/` keeps what it built (docs/contracts.md, Local machine)."""
    return Path(os.environ.get("PADDLE_TRAINING_CACHE") or Path.home() / ".cache" / "paddle-training")


def tool(name: str) -> Path:
    """A tool on PATH, else the newest that `local/` built.

    Raises:
        MissingToolError: it is in neither place.
    """
    found = shutil.which(name)
    if found:
        return Path(found)
    built = sorted(
        (path for path in cache().glob(f"*/*/{name}") if os.access(path, os.X_OK)),
        key=lambda p: p.stat().st_mtime,
    )
    if not built:
        raise MissingToolError(f"{name} is neither on PATH nor built below {cache()}: `make tools` builds it")
    return built[-1]


_EXECUTOR = "pulumi-language-python-exec"


def _executor() -> Path:
    found = shutil.which(_EXECUTOR)
    if found:
        return Path(found)
    for pattern in (
        f"*/*/{_EXECUTOR}",
        f"build/gomod/github.com/pulumi/pulumi/sdk/v3@v3.259.0/python/cmd/{_EXECUTOR}",
    ):
        for path in sorted(cache().glob(pattern)):
            return path
    raise MissingToolError(f"{_EXECUTOR} is neither on PATH nor below {cache()}: `make tools` brings it")


def tool_folder(folder: Path) -> Path:
    """A folder with the engine, its language host and the emulator's commands, to be put first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: tool(name) for name in ("pulumi", "pulumi-language-python")}
    with suppress(MissingToolError):  # only a program with a release needs it
        wanted["pulumi-resource-kubernetes"] = tool("pulumi-resource-kubernetes")
    wanted |= {name: HERE / "bin" / name for name in ("pulumi-resource-aws", "aws")}
    for name, path in wanted.items():
        link = folder / name
        if name.startswith(("pulumi-resource-aws", "aws")):
            link.write_text(f'#!/bin/sh\nexec "{path}" "$@"\n', encoding="utf-8")
            link.chmod(0o755)
        elif not link.exists():
            # The host looks for its executor beside itself, so both are files of this folder.
            shutil.copy(path, link) if name.startswith("pulumi-language") else link.symlink_to(path)
    if not (folder / _EXECUTOR).exists():
        shutil.copy(_executor(), folder / _EXECUTOR)
        (folder / _EXECUTOR).chmod(0o755)
    return folder


@lru_cache
def _packages() -> str:
    """What `pip list -v --format json` answers."""
    found = [(item.metadata["Name"], item.version, item.locate_file("")) for item in metadata.distributions()]
    return json.dumps([{"name": n, "version": v, "location": str(where)} for n, v, where in found])


def python_command(folder: Path) -> Path:
    """This Python, but it knows already what pip would list.

    The engine asks for that before each command, and pip takes the better part of a second to say the same.
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


def serving(account: Path, project: Path) -> int:
    """Port of a plugin in this process for this account and program; it ends when others are asked for."""
    key = (account, project)
    if key not in _SERVING:
        while _SERVING:
            _SERVING.popitem()[1][0].stop(None)
        _SERVING[key] = plugin.serve(Account(account), REGION, project)
    return _SERVING[key][1]


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def moto_server(log: Path) -> Iterator[str]:
    """A moto server in a process of its own; yields its address, ends it afterwards."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        _wait(address, process, log)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)


@lru_cache
def shared_moto_server() -> str:
    """Address of the one moto server of this process; whoever uses it empties it first (`reset`)."""
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    folder = until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="moto."))
    return until_the_end.enter_context(moto_server(Path(folder) / "moto.log"))


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def said() -> str:
        return log.read_text(errors="replace")[-2000:]

    def there() -> bool:
        assert process.poll() is None, f"the moto server ended:\n{said()}"
        return answers(f"{address}/moto-api/")

    until(there, "the moto server", 60, 0.1, said)


def reset(address: str) -> None:
    """Empty a moto server."""
    request = urllib.request.Request(f"{address}/moto-api/reset", method="POST")  # noqa: S310
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310


@dataclass(frozen=True)
class Step:
    """One thing that the engine did or would do."""

    op: str
    type: str
    name: str
    diff: dict[str, str]


@dataclass
class Result:
    """One command of the engine: exit code, what a person reads, and the steps that were no `same`."""

    code: int
    text: str
    steps: list[Step] = field(default_factory=list)

    def of(self, kind: str) -> list[Step]:
        """Steps on one type."""
        return [step for step in self.steps if step.type == kind]

    @property
    def ops(self) -> dict[str, int]:
        """How often each operation occurs."""
        counts: dict[str, int] = {}
        for step in self.steps:
            counts[step.op] = counts.get(step.op, 0) + 1
        return counts


@dataclass
class Engine:
    """The real engine on one stack of a project folder, against one emulated account.

    The plugin serves in this process, unless `starts_plugin`: then the engine starts its own, as for a
    person.
    """

    project: Path
    stack: str
    home: Path
    account: Path
    environment: dict[str, str] = field(default_factory=dict)
    starts_plugin: bool = False

    def command_environment(self) -> dict[str, str]:
        """All that a command needs, and nothing of this machine's own clouds or clusters."""
        tools = tool_folder(self.home / "tools")
        python = Path(sys.executable).parent
        (self.home / "backend").mkdir(parents=True, exist_ok=True)
        inherited = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        attached = {}
        if not self.starts_plugin:
            attached["PULUMI_DEBUG_PROVIDERS"] = f"aws:{serving(self.account, self.project)}"
        return (
            inherited
            | {
                "PATH": f"{tools}:{python}:{os.environ['PATH']}",
                "PULUMI_HOME": str(self.home / "pulumi"),
                "PULUMI_BACKEND_URL": f"file://{self.home}/backend",
                "PULUMI_CONFIG_PASSPHRASE": "emulator",
                "PULUMI_SKIP_UPDATE_CHECK": "true",
                "PULUMI_DEBUG_COMMANDS": "true",  # the flag --event-log
                "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
                "PULUMI_PYTHON_CMD": str(python_command(tools)),
                "AWS_EMULATOR_DIR": str(self.account),
                "AWS_EMULATOR_PYTHON": sys.executable,
                "AWS_ACCESS_KEY_ID": "emulator",
                "AWS_SECRET_ACCESS_KEY": "emulator",
                "AWS_REGION": REGION,
                "AWS_EC2_METADATA_DISABLED": "true",
                "NO_COLOR": "1",
            }
            | attached
            | self.environment
        )

    def pulumi(self, *arguments: str, timeout: float = 240) -> Result:
        """Any command; nothing is asked, colours are off."""
        command = ["pulumi", "--non-interactive", "--color=never", *arguments]
        environment = self.command_environment()
        command[0] = shutil.which("pulumi", path=environment["PATH"]) or "pulumi"
        done = subprocess.run(  # noqa: PLW1510
            command, cwd=self.project, env=environment, capture_output=True, text=True, timeout=timeout
        )
        return Result(done.returncode, done.stdout + done.stderr)

    def init(self) -> Engine:
        """Make the stack."""
        made = self.pulumi("stack", "init", self.stack)
        if made.code:
            raise RuntimeError(made.text)
        return self

    def config(self, *pairs: str) -> None:
        """`key=value` pairs for the stack's file; a key may be a path, `network.nat`."""
        arguments = [part for pair in pairs for part in ("--plaintext", pair)]
        done = self.pulumi("config", "set-all", "--stack", self.stack, "--path", *arguments)
        if done.code:
            raise RuntimeError(done.text)

    def run(self, command: str, *arguments: str, timeout: float = 240) -> Result:
        """`preview`, `up`, `refresh` or `destroy`, with its steps."""
        log = self.home / f"events-{time.time_ns()}.json"
        confirm = [] if command == "preview" else ["--yes", "--skip-preview"]
        done = self.pulumi(
            command, "--stack", self.stack, "--event-log", str(log), *confirm, *arguments, timeout=timeout
        )
        done.steps = _steps(log)
        log.unlink(missing_ok=True)
        return done

    def preview(self, *arguments: str) -> Result:
        return self.run("preview", "--diff", *arguments)

    def up(self, *arguments: str) -> Result:
        return self.run("up", *arguments)

    def refresh(self, *arguments: str) -> Result:
        return self.run("refresh", *arguments)

    def destroy(self, *arguments: str) -> Result:
        return self.run("destroy", *arguments)

    def outputs(self) -> dict[str, Any]:
        """Outputs of the stack."""
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
