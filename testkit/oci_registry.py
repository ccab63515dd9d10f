"""Run an OCI registry on loopback for tests that push images or charts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.external_commands import free_port
from testkit.waiting import running_server


@contextlib.contextmanager
def run_registry(folder: Path) -> Iterator[str]:
    """Run Debian's docker-registry during the block and yield its host:port (without TLS); `folder` is its storage."""
    if shutil.which("docker-registry") is None:
        pytest.skip("needs Debian's docker-registry (`make tools` installs it)")
    address = f"127.0.0.1:{free_port()}"
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
        "log": {"level": "error"},
    }
    (folder / "registry.json").write_text(json.dumps(config))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    argv = ["docker-registry", "serve", str(folder / "registry.json")]
    with running_server(argv, environment, f"http://{address}/v2/", folder / "registry.log"):
        yield address
