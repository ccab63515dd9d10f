"""`make destroy` goes by what the state protects, and does not begin when the stack's file says otherwise."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from aws import destroy
from aws import stack as stacks
from aws.__main__ import app
from aws.stack import CommandError
from tests.aws_emulator.conftest import account, moto
from tests.infra_emulated.conftest import dev_stack

__all__ = ["account", "dev_stack", "moto"]


def state(**kept: bool) -> dict:
    """As `pulumi stack export` writes it: one VPC, and the file system and bucket that are asked for."""
    kinds = {"files": "aws:efs/fileSystem:FileSystem", "bucket": "aws:s3/bucket:Bucket"}
    listed = [{"type": "pulumi:pulumi:Stack"}, {"type": "aws:ec2/vpc:Vpc", "id": "vpc-1", "custom": True}]
    for name, retained in kept.items():
        listed.append({"type": kinds[name], "id": f"{name}-1", "custom": True, "retainOnDelete": retained})
    return {"deployment": {"resources": listed}}


def test_what_stays_and_what_goes_is_named() -> None:
    kept = destroy.plan(state(files=True, bucket=True), "dev", protect=True)
    assert (kept.stays, kept.goes, kept.removed) == (["file system files-1", "bucket bucket-1"], [], 1)
    gone = destroy.plan(state(files=False), "dev", protect=False)
    assert (gone.stays, gone.goes, gone.removed) == ([], ["file system files-1"], 2)


@pytest.mark.parametrize(
    ("protect", "kept", "said"),
    [
        (True, {"files": False, "bucket": True}, "would remove file system files-1. Fix: run pulumi up"),
        (False, {"files": False, "bucket": True}, "would keep bucket bucket-1. Fix: run pulumi up"),
    ],
)
def test_a_file_that_says_otherwise_than_the_state_stops_it(protect, kept, said) -> None:
    with pytest.raises(CommandError, match=said):
        destroy.plan(state(**kept), "dev", protect)


def test_an_empty_stack_has_nothing_to_destroy() -> None:
    with pytest.raises(CommandError, match="nothing to destroy"):
        destroy.plan({"deployment": None}, "dev", protect=True)


@pytest.mark.parametrize(("typed", "removed"), [("dev\n", True), ("yes\n", False), ("", False)])
def test_only_the_stacks_own_name_begins_it(typed, removed, monkeypatch) -> None:
    ran = []

    def run(argv, *, capture=False):
        ran.append(" ".join(argv))
        return json.dumps({**state(files=True), "destroyLoses": "the work since then"})

    monkeypatch.setattr(stacks, "run", run)
    done = CliRunner().invoke(app, ["destroy", "--stack", "dev"], input=typed)
    assert "kept: file system files-1" in done.output
    assert "the work since then" in done.output
    assert ("pulumi destroy --yes --skip-preview --non-interactive --stack dev" in ran) == removed


@pytest.mark.timeout(900)
def test_the_engines_own_state_tells_what_it_would_delete(dev_stack) -> None:
    engine = dev_stack("dev", "compute=off", "storage.protect=false")

    def exported() -> dict:
        return json.loads(engine.pulumi("stack", "export", "--stack", "dev").text)

    made = engine.up()
    assert made.code == 0, made.text
    assert len(destroy.plan(exported(), "dev", protect=False).goes) == 5
    engine.config("paddle-training:storage.protect=true")
    with pytest.raises(CommandError, match=r"would remove .*file system fs-"):
        destroy.plan(exported(), "dev", protect=True)
    made = engine.up()
    assert made.code == 0, made.text
    assert len(destroy.plan(exported(), "dev", protect=True).stays) == 5
