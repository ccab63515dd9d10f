"""The policy documents, compared with the recorded API calls of the real provider (provider_calls.yaml).

The emulator denies calls by a table that was written with the documents; this list was not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import iam_policies
from infra.settings import IamSettings
from testkit.aws_emulator import authorization

BOUNDED = IamSettings(permissions_boundary="arn:aws:iam::123456789012:policy/Boundary")


RECORDED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("provider_calls.yaml").read_text("utf-8"))


def _called() -> set[str]:
    """Return the IAM actions of the recorded operations."""
    names = {f"{service}:{name}" for service, row in RECORDED["operations"].items() for name in row.split()}
    return {RECORDED["actions"].get(name, name) for name in names}


def _on_behalf() -> set[str]:
    return {action for row in RECORDED["on behalf"] for action in row["actions"].split()}


@pytest.mark.parametrize("iam", [IamSettings(), BOUNDED])
def test_deployer_policy_covers_recorded_calls_and_their_rights(iam: IamSettings) -> None:
    given = {*authorization.actions(iam_policies.deployer("paddle-training-dev", iam))}
    called = _called()
    assert len(called) > 140
    assert called - given == set()
    assert _on_behalf() - given == set()
    assert set(RECORDED["unused"].split()) & given == set(), "an action without a caller"


def test_preview_policy_covers_recorded_reads() -> None:
    reads = {name for name in _called() if name.partition(":")[2].startswith(("Describe", "Get", "List"))}
    # A preview reads no objects: they may be other users' data.
    assert reads - {*authorization.actions(iam_policies.preview("aws"))} == {"s3:GetObjectTagging"}


def test_rights_on_behalf_name_recorded_operations_and_cover_kms() -> None:
    called = _called()
    for row in RECORDED["on behalf"]:
        assert row["operation"] in called, row
        assert len(row["source"]) > 20, row
    # What the provider never calls is only in the policy because AWS checks it on the caller's behalf.
    silent = {"kms:CreateGrant", "kms:Decrypt", "kms:Encrypt", "kms:RetireGrant", "iam:PassRole"}
    silent |= {"kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext", "iam:CreateServiceLinkedRole"}
    assert silent <= _on_behalf() - called
