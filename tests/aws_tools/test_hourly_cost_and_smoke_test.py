"""`make cost` adds up the prices of a stack; `make aws-smoke` always destroys and searches for leftovers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from aws import hourly_cost, smoke_test
from aws import stack_access as stacks
from aws.__main__ import app
from aws.stack_access import CommandError, read_stack
from infra.settings import SettingsError
from tests.infra.test_aws_facts import ec2_types

CASES = yaml.safe_load(Path(__file__).with_name("cost.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["rule"])
def test_cost_follows_the_rule(case, dev) -> None:
    settings = dev(*case.get("changes", ())).settings
    items = hourly_cost.cost_items(settings, case.get("running"), case.get("gb", 0))
    parts = {item.name: [round(item.per_hour.least, 4), round(item.per_hour.most, 4)] for item in items}
    for name, dollars in case.get("has", {}).items():
        assert parts[name] == (dollars if isinstance(dollars, list) else [dollars] * 2), name
    assert set(parts) == set(case.get("only", parts))
    assert not parts.keys() & set(case.get("lacks", ()))
    for words, text in case.get("prints", {}).items():
        shown = CliRunner().invoke(app, ["cost", "--stack", "dev", *words.split()]).output
        assert re.search(text, shown), shown


def test_shipped_stack_has_no_nodes_while_nothing_trains_and_a_budget_to_complete() -> None:
    settings = read_stack("dev").settings
    idle = hourly_cost.total_per_hour(hourly_cost.cost_items(settings, settings.nodes.min)).most
    always = hourly_cost.total_per_hour(hourly_cost.cost_items(settings, 3)).most
    assert settings.nodes.auto
    assert settings.nodes.min == 0
    assert 150 < idle * hourly_cost.HOURS_PER_MONTH < 160, "docs/how-to/aws.md says 153 dollars"
    assert always > 2 * idle
    # Without the comment signs, the budget is complete but for the address.
    text = (stacks.FOLDER / "Pulumi.dev.yaml").read_text("utf-8")
    budget = yaml.safe_load(
        text.replace("# paddle-training:budget", "paddle-training:budget").replace("#   ", "  ")
    )
    assert set(budget["config"]["paddle-training:budget"]) == {"dollars", "email"}


def test_instance_price_by_type_or_none() -> None:
    assert hourly_cost.find_price("m6i.large") == 0.096
    assert hourly_cost.find_price("m6i.xlarge") == 2 * 0.096
    assert hourly_cost.find_price("m6i.4xlarge") == 8 * 0.096
    assert hourly_cost.find_price("t3.medium") == 0.0416
    assert hourly_cost.find_price("g6e.12xlarge") == 10.49264
    for kind in ("x9z.large", "m6i.metal", "m3.large", "g6.large"):
        assert hourly_cost.find_price(kind) is None


def test_price_table_has_only_types_of_ec2() -> None:
    ec2, prices = ec2_types(), hourly_cost.read_prices()["instances"]
    assert [kind for kind in prices if (kind if "." in kind else f"{kind}.large") not in ec2] == []
    for family in (kind for kind in prices if "." not in kind):
        cores = {size: ec2[f"{family}.{size}"]["VCpuInfo"]["DefaultVCpus"] for size in ("large", "4xlarge")}
        assert cores == {"large": 2, "4xlarge": 16}, "the price of a size is proportional to its cores"


def test_read_stack_invalid_change_or_unknown_stack_raises() -> None:
    with pytest.raises(SettingsError, match=r"SET is 'nodes.desired', but must be KEY=VALUE"):
        read_stack("dev", ["nodes.desired"])
    with pytest.raises(SettingsError, match=r"SET is 'nodes.desired=\[', but must be .* YAML: while parsing"):
        read_stack("dev", ["nodes.desired=["])
    with pytest.raises(
        SettingsError, match=r"STACK is 'nowhere', but must be one of dev.*: there is no Pulumi.nowhere.yaml"
    ):
        read_stack("nowhere")


@pytest.mark.parametrize("failing", [None, "pulumi up", "launcher wait"])
def test_smoke_step_fails_still_destroys_and_searches(failing, dev, monkeypatch) -> None:
    ran: list[str] = []

    def run(argv, *, capture=False) -> str:
        ran.append("connect" if capture else " ".join(argv))
        if failing is not None and failing in ran[-1]:
            raise CommandError(failing)
        return json.dumps({"kubeconfig": "{}"})

    monkeypatch.setattr(stacks, "run_command", run)
    monkeypatch.setattr(smoke_test, "run_command", run)
    monkeypatch.setattr(
        smoke_test, "find_leftovers", lambda stack, client: ran.append("search") or ["arn:left"]
    )

    def go(*, keep: bool = False) -> list[str]:
        ran.clear()
        results, said = Path("/results"), []
        stack = dev("namespace.name=team", "release.name=mine")
        return smoke_test.run_smoke_test(
            stack, None, base="base", results=results, show_step=said.append, keep=keep
        )

    if failing is None:
        assert go() == ["arn:left"]
        steps = [" ".join(line.split()[:4]).rpartition("/")[2] for line in ran]
        trained = f"{Path(sys.executable).name} -m launcher"
        assert steps[2:-2] == [
            "pulumi up --yes --skip-preview",
            "connect",
            f"{trained} wait",
            f"{trained} results",
        ]
        assert "aws push --stack dev --base base" in ran[1]
        assert all("--namespace team --release mine" in line for line in ran if "-m launcher" in line)
        assert go(keep=True) == []
        assert not [line for line in ran if "destroy" in line or "search" in line]
        return
    with pytest.raises(CommandError, match=failing):
        go()
    assert "pulumi destroy" in ran[-2]
    assert ran[-1] == "search"
    assert ran.count("connect") == (0 if failing == "pulumi up" else 1)


def test_leftovers_have_stack_tags_and_are_not_being_deleted(account, client, dev) -> None:
    stack = dev()
    tags = [{"Key": k, "Value": v} for k, v in stack.tags.items()]
    kms = client("kms")
    keys = [
        kms.create_key(Tags=[{"TagKey": t["Key"], "TagValue": t["Value"]} for t in tags])["KeyMetadata"]
        for _ in range(2)
    ]
    kms.schedule_key_deletion(KeyId=keys[0]["KeyId"])
    ec2 = client("ec2")
    mine = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=[{"ResourceType": "vpc", "Tags": tags}])
    ec2.create_vpc(CidrBlock="10.1.0.0/16")
    left = smoke_test.find_leftovers(stack, client)
    assert [arn.rpartition("/")[2] for arn in left] == [mine["Vpc"]["VpcId"], keys[1]["KeyId"]]


def test_leftovers_without_tags_are_found_by_name(account, client, dev) -> None:
    """The tagging API returns no IAM resources, and EKS and CloudWatch create log groups without tags."""
    stack, iam, logs = dev(), client("iam"), client("logs")
    trust = '{"Version": "2012-10-17", "Statement": []}'

    def role(name: str, **tags: str) -> str:
        given = [{"Key": key, "Value": value} for key, value in tags.items()]
        about = iam.create_role(RoleName=name, Path="/teams/", AssumeRolePolicyDocument=trust, Tags=given)
        return str(about["Role"]["Arn"])

    mine = [role("paddle-training-dev-nodes-0123456"), role("paddle-training-dev-pods-1", **stack.tags)]
    role("paddle-training-dev-eu-nodes-0123456", Project="paddle-training", Stack="dev-eu")
    role("paddle-training-development")
    profile = iam.create_instance_profile(InstanceProfileName="paddle-training-dev-bastion-1")
    groups = [
        "/aws/containerinsights/paddle-training-dev/application",
        "/aws/eks/paddle-training-dev/cluster",
    ]
    for group in [*groups, "/aws/eks/paddle-training-dev-eu/cluster", "/aws/lambda/other"]:
        logs.create_log_group(logGroupName=group)
    logs.tag_log_group(logGroupName=groups[1], tags=stack.tags)
    left = smoke_test.find_leftovers(stack, client)
    arns = [f"arn:aws:logs:us-west-2:123456789012:log-group:{group}" for group in groups]
    assert left == sorted([*mine, profile["InstanceProfile"]["Arn"], *arns])
