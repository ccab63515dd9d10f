"""Two git clones use one stack, whose state is in `make state`'s bucket: real Pulumi, emulated S3, KMS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aws import state_backend
from aws.stack_access import make_clients
from testkit.aws_emulator.pulumi_engine import python_command, reset_moto
from testkit.written_files import write_files
from tests.aws_emulator.conftest import moto
from tests.aws_tools.conftest import REGION

__all__ = ["moto"]

PROGRAM = """import pulumi
pulumi.export("token", pulumi.Config().require_secret("token"))
"""
SECRET = "hush-hush-4711"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_state_backend_second_clone_has_no_changes_and_encrypted_secrets(
    tmp_path: Path, moto: str, monkeypatch
) -> None:
    reset_moto(moto)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    client = make_clients(REGION)
    made = state_backend.create_state_backend(client, REGION)
    # The emulator has no TLS, so the bucket's policy would correctly deny its requests.
    client("s3").delete_bucket_policy(Bucket=made.bucket)

    def clone(name: str, settings: str = "") -> Path:
        files = {"Pulumi.yaml": "name: demo\nruntime: {name: python}\n", "__main__.py": PROGRAM}
        return write_files(tmp_path / name, files | ({"Pulumi.dev.yaml": settings} if settings else {}))

    def pulumi(folder: Path, *arguments: str) -> str:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PULUMI_HOME": f"{folder}-home",
            "PULUMI_BACKEND_URL": f"{made.backend}&use_path_style=true",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_PYTHON_CMD": str(python_command(tmp_path)),
        }
        environment.pop("PULUMI_CONFIG_PASSPHRASE_FILE", None)
        argv = ["pulumi", *arguments, "--non-interactive", "--stack", "dev"]
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    first = clone("first")
    pulumi(first, "stack", "init", "--secrets-provider", made.secrets)
    pulumi(first, "config", "set", "--secret", "token", SECRET)
    pulumi(first, "up", "--yes", "--skip-preview")

    settings = (first / "Pulumi.dev.yaml").read_text()
    exported = pulumi(first, "stack", "export")
    assert SECRET not in settings + exported
    assert "ciphertext" in exported

    second = clone("second", settings)
    assert "1 unchanged" in pulumi(second, "preview", "--expect-no-changes")
    assert pulumi(second, "stack", "output", "token", "--show-secrets").strip() == SECRET
