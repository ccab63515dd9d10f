"""`make cost` adds up the prices of a stack; `make aws-smoke` always destroys and searches for leftovers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aws import hourly_cost, smoke_test
from aws import stack_access as stacks
from aws.__main__ import app
from aws.stack_access import CommandError, read_stack
from infra.constants import PRIVATE_SERVICES
from infra.node_capacity import GIB, Size
from infra.settings_errors import SettingsError


def by_name(stack):
    return {part.name: part for part in hourly_cost.cost_items(stack.settings)}


def test_cost_is_proportional_to_nodes(dev) -> None:
    one, three = by_name(dev("nodes.desired=1")), by_name(dev())
    assert three["nodes, m6i.large"].per_hour == pytest.approx(3 * one["nodes, m6i.large"].per_hour)
    assert three["EKS control plane"] == one["EKS control plane"]


def test_cost_compute_off_has_only_key_and_zone(dev) -> None:
    assert set(by_name(dev("compute=off"))) == {"KMS key", "Route53 zone"}


def test_cost_nat_none_counts_endpoints_in_each_zone(dev) -> None:
    parts = by_name(dev("network.nat=none", "network.zones=3"))
    assert parts["interface endpoints"].count == len(PRIVATE_SERVICES) * 3
    assert "NAT gateway with its address" not in parts


def test_cost_existing_network_and_key_are_free(dev) -> None:
    key = "kms.keyArn=arn:aws:kms:us-west-2:123456789012:key/0a0a0a0a-0000-0000-0000-000000000000"
    parts = by_name(dev("network.vpcId=vpc-0abc", "network.subnetIds=[subnet-0a,subnet-0b]", key))
    assert not {"NAT gateway with its address", "KMS key"} & set(parts)


def test_cost_auto_idle_counts_only_system_node(dev) -> None:
    settings = dev("nodes.auto=true", "nodes.min=0", "nodes.desired=0", "nodes.max=4").settings
    busy, idle = (
        {p.name.partition(",")[0]: p for p in hourly_cost.cost_items(settings, n)} for n in (None, 0)
    )
    assert (busy["nodes"].count, idle["nodes"].count) == (4, 0)
    assert idle["nodes"].per_hour == 0
    assert busy["system node"] == idle["system node"]
    changes = ["--set", "nodes.auto=true", "--set", "nodes.min=0"]
    shown = CliRunner().invoke(app, ["cost", "--stack", "dev", *changes])
    assert "idle" in shown.output


def test_instance_price_is_proportional_to_size_or_none() -> None:
    price, size = hourly_cost.find_instance("m6i.large")
    assert hourly_cost.find_instance("m6i.xlarge") == (2 * price, Size(2 * size.cpu, 2 * size.memory))
    assert hourly_cost.find_instance("m6i.4xlarge") == (8 * price, Size(8 * size.cpu, 8 * size.memory))
    assert hourly_cost.find_instance("t3.medium")[1] == Size(2, 4 * GIB)
    assert hourly_cost.find_instance("x9z.large") is hourly_cost.find_instance("m6i.metal") is None


def test_read_stack_invalid_change_or_unknown_stack_raises() -> None:
    with pytest.raises(SettingsError, match=r"SET = 'nodes.desired'\n.*KEY=VALUE"):
        read_stack("dev", ["nodes.desired"])
    with pytest.raises(SettingsError, match=r"STACK = 'nowhere'\n.*one of dev.*\n.*no Pulumi.nowhere.yaml"):
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
        return smoke_test.run_smoke_test(
            dev(), None, base="base", results=results, say=said.append, keep=keep
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
