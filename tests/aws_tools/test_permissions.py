"""The documents of `make iam-policy`: AWS takes them, and they cover what these commands call."""

from __future__ import annotations

import json

import botocore.client
import pytest
from typer.testing import CliRunner

from aws import doctor, smoke, state
from aws.__main__ import app
from aws.stack import clients
from infra import policies
from tests.aws_emulator.account import permissions
from tests.aws_tools.conftest import REGION

# Calls whose IAM action has another name than they have.
ACTION = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "tagging:GetResources": "tag:GetResources",
}
# What moto has no answer to.
LACKING = {
    "GetAWSDefaultServiceQuota": {"Quota": {"Value": 1000.0}},
    "SimulatePrincipalPolicy": {"EvaluationResults": []},
}


def test_the_tools_call_nothing_that_the_deployers_policy_lacks(account, dev, monkeypatch) -> None:
    called = set()
    really = botocore.client.BaseClient._make_api_call

    def note(self, operation, arguments):
        name = f"{self.meta.service_model.signing_name}:{operation}"
        called.add(ACTION.get(name, name))
        return LACKING.get(operation) or really(self, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", note)
    client, stack = (
        clients(REGION),
        dev("nodes.sshKeyName=mine", "dns.publicZoneId=Z1", "dns.externalName=a.b"),
    )
    doctor.examine(stack, client)
    doctor.principal(client, "user", "me")
    state.prepare(client, REGION)
    smoke.residue(stack, client)
    assert len(called) > 25
    assert called - permissions("tools") == set()


@pytest.mark.parametrize("who", ["deployer", "preview"])
def test_each_document_is_one_that_iam_takes_and_the_commands_name_its_file(who, account, tmp_path) -> None:
    done = CliRunner().invoke(app, ["iam-policy", "--stack", "dev", "--for", who, "--to", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = sorted(tmp_path.iterdir())
    expected = policies.deployer() if who == "deployer" else policies.preview("aws")
    assert [json.loads(path.read_text()) for path in written] == [json.loads(text) for text in expected]
    for path in written:
        assert f"--policy-name {path.stem} --policy-document file://{path}" in done.output
        clients(REGION)("iam").create_policy(PolicyName=path.stem, PolicyDocument=path.read_text())
