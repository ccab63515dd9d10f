"""The documents of `make iam-policy` are valid, and allow all calls of the aws commands."""

from __future__ import annotations

import json

import botocore.client
import pytest
from typer.testing import CliRunner

from aws import doctor, smoke_test, state_backend
from aws.__main__ import app
from aws.stack_access import make_clients
from infra import iam_policies
from infra.settings import IamSettings
from testkit.aws_emulator.account import required_actions
from tests.aws_tools.conftest import REGION

# API calls whose IAM action has another name.
ACTION = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "tagging:GetResources": "tag:GetResources",
}
# Responses to calls that moto lacks.
LACKING = {
    "GetAWSDefaultServiceQuota": {"Quota": {"Value": 1000.0}},
    "DescribeClusterVersions": {"clusterVersions": []},
    "SimulatePrincipalPolicy": {"EvaluationResults": []},
}


def test_aws_commands_call_only_actions_of_deployer_policy(account, dev, monkeypatch) -> None:
    called = set()
    really = botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined]

    def note(self, operation, arguments):
        name = f"{self.meta.service_model.signing_name}:{operation}"
        called.add(ACTION.get(name, name))
        return LACKING.get(operation) or really(self, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", note)
    client, stack = (
        make_clients(REGION),
        dev("nodes.sshKeyName=mine", "dns.publicZoneId=Z1", "dns.externalName=a.b"),
    )
    doctor.run_checks(stack, client)
    doctor.find_principal_arn(client, "user", "me")
    state_backend.create_state_backend(client, REGION)
    smoke_test.find_leftovers(stack, client)
    assert len(called) > 25
    assert called - required_actions("tools") == set()


@pytest.mark.parametrize("who", ["deployer", "preview"])
def test_iam_policy_command_writes_valid_documents(who, account, tmp_path) -> None:
    done = CliRunner().invoke(app, ["iam-policy", "--stack", "dev", "--for", who, "--to", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = sorted(tmp_path.iterdir())
    expected = (
        iam_policies.deployer("paddle-training-dev", IamSettings())
        if who == "deployer"
        else iam_policies.preview("aws")
    )
    assert [json.loads(path.read_text()) for path in written] == [json.loads(text) for text in expected]
    trust = '"token.actions.githubusercontent.com:sub": "repo:ORG/REPO:pull_request"'
    assert (trust in done.output) is (who == "preview")
    for path in written:
        assert f"--policy-name {path.stem} --policy-document file://{path}" in done.output
        make_clients(REGION)("iam").create_policy(PolicyName=path.stem, PolicyDocument=path.read_text())
