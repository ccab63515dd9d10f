"""`make cost` adds up what a stack has; `make aws-smoke` always destroys and looks for residue."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aws import cost, smoke
from aws import stack as stacks
from aws.__main__ import app
from aws.stack import CommandError, read
from infra.capacity import GIB, Size
from infra.problems import SettingsError
from infra.versions import PRIVATE_SERVICES


def by_name(stack):
    return {part.name: part for part in cost.parts(stack.settings)}


def test_three_nodes_cost_three_times_one(dev) -> None:
    one, three = by_name(dev("nodes.desired=1")), by_name(dev())
    assert three["nodes, m6i.large"].per_hour == pytest.approx(3 * one["nodes, m6i.large"].per_hour)
    assert three["EKS control plane"] == one["EKS control plane"]


def test_compute_off_leaves_key_and_zone_only(dev) -> None:
    assert set(by_name(dev("compute=off"))) == {"KMS key", "Route53 zone"}


def test_nat_none_pays_each_endpoint_in_each_zone(dev) -> None:
    parts = by_name(dev("network.nat=none", "network.zones=3"))
    assert parts["interface endpoints"].count == len(PRIVATE_SERVICES) * 3
    assert "NAT gateway with its address" not in parts


def test_an_existing_network_and_key_cost_nothing_more(dev) -> None:
    key = "kms.keyArn=arn:aws:kms:us-west-2:123456789012:key/0a0a0a0a-0000-0000-0000-000000000000"
    parts = by_name(dev("network.vpcId=vpc-0abc", "network.subnetIds=[subnet-0a,subnet-0b]", key))
    assert not {"NAT gateway with its address", "KMS key"} & set(parts)


def test_with_auto_a_small_node_stays_and_the_others_cost_while_they_are_there(dev) -> None:
    settings = dev("nodes.auto=true", "nodes.min=0", "nodes.desired=0", "nodes.max=4").settings
    busy, idle = ({p.name.partition(",")[0]: p for p in cost.parts(settings, n)} for n in (None, 0))
    assert (busy["nodes"].count, idle["nodes"].count) == (4, 0)
    assert idle["nodes"].per_hour == 0
    assert busy["system node"] == idle["system node"]
    changes = ["--set", "nodes.auto=true", "--set", "nodes.min=0"]
    shown = CliRunner().invoke(app, ["cost", "--stack", "dev", *changes])
    assert "idle" in shown.output


def test_sizes_of_a_family_cost_in_proportion_and_an_unknown_type_has_no_price() -> None:
    price, size = cost.instance("m6i.large")
    assert cost.instance("m6i.xlarge") == (2 * price, Size(2 * size.cpu, 2 * size.memory))
    assert cost.instance("m6i.4xlarge") == (8 * price, Size(8 * size.cpu, 8 * size.memory))
    assert cost.instance("t3.medium")[1] == Size(2, 4 * GIB)
    assert cost.instance("x9z.large") is cost.instance("m6i.metal") is None


def test_a_change_that_is_none_and_a_stack_that_is_not_there_are_one_sentence() -> None:
    with pytest.raises(SettingsError, match=r"SET = 'nodes.desired'\n.*KEY=VALUE"):
        read("dev", ["nodes.desired"])
    with pytest.raises(SettingsError, match=r"STACK = 'nowhere'\n.*one of dev.*\n.*no Pulumi.nowhere.yaml"):
        read("nowhere")


@pytest.mark.parametrize("failing", [None, "pulumi up", "launcher wait"])
def test_whatever_fails_destroy_and_the_search_for_residue_follow(failing, dev, monkeypatch) -> None:
    ran: list[str] = []

    def run(argv, *, capture=False) -> str:
        ran.append("connect" if capture else " ".join(argv))
        if failing is not None and failing in ran[-1]:
            raise CommandError(failing)
        return json.dumps({"kubeconfig": "{}"})

    monkeypatch.setattr(stacks, "run", run)
    monkeypatch.setattr(smoke, "run", run)
    monkeypatch.setattr(smoke, "residue", lambda stack, client: ran.append("search") or ["arn:left"])

    def go(*, keep: bool = False) -> list[str]:
        ran.clear()
        results, said = Path("/results"), []
        return smoke.smoke(dev(), None, base="base", results=results, say=said.append, keep=keep)

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


def test_residue_is_what_carries_the_stacks_tags_and_is_not_on_its_way_out(account, client, dev) -> None:
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
    left = smoke.residue(stack, client)
    assert [arn.rpartition("/")[2] for arn in left] == [mine["Vpc"]["VpcId"], keys[1]["KeyId"]]
