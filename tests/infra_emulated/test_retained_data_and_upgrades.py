"""A stack's lifetime with the real engine: reuse of retained data, and Kubernetes upgrades."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from aws import destroy_plan, smoke_test
from aws.stack_access import CommandError, read_stack
from testkit.aws_emulator import inventory
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.pulumi_engine import REGION, Engine, Result

pytestmark = pytest.mark.timeout(2700)

Make = Callable[..., Engine]
CLUSTER, NODES, ADDON = "aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup", "aws:eks/addon:Addon"
FILES, POINT, BUCKET = (
    "aws:efs/fileSystem:FileSystem",
    "aws:efs/accessPoint:AccessPoint",
    "aws:s3/bucket:Bucket",
)
KEY, REGISTRY, LOGS = "aws:kms/key:Key", "aws:ecr/repository:Repository", "aws:cloudwatch/logGroup:LogGroup"
KEPT = (FILES, POINT, BUCKET, KEY, REGISTRY, LOGS)
DATA = 5  # file system, bucket, registry, key and log group


def _ids(account: Account) -> set[str]:
    return {record.id for record in account.all() if record.type in KEPT}


def _imported(done: Result) -> set[str]:
    return {step.type for step in done.steps if step.op == "import"}


@pytest.mark.seconds(20)
def test_up_after_protected_destroy_reuses_data(dev_stack: Make, account: Account) -> None:
    account.change(late_logs=True)
    engine = dev_stack("dev", "storage.backup=true")
    engine.up()
    cloud, made = MotoCloud(account, REGION), _ids(account)
    outputs = engine.outputs()
    bucket, kept = outputs["bucket"], outputs["kept"]
    cloud.client("s3").put_object(Bucket=bucket, Key="models/trained", Body=b"weights")
    assert len(_plan(engine, protect=True).kept_data) == DATA

    ended = engine.destroy()
    _assert_kept(account, kept, made, ended)
    forgotten = engine.preview(fails=True)
    assert "an earlier destroy of paddle-training-dev kept it" in forgotten.text, forgotten.text
    engine.adopt(kept)
    # Settings that changed in the meantime are applied to the imported resources. The cluster is not needed for it.
    engine.config(
        "paddle-training:storage.archiveAfterDays=90",
        "paddle-training:cluster.logRetentionDays=30",
        "paddle-training:compute=off",
    )
    again = engine.up()
    assert _imported(again) == set(KEPT), again.text
    assert not {step.type for step in again.steps if step.op == "create"} & set(KEPT)
    assert _ids(account) == made
    assert cloud.client("s3").get_object(Bucket=bucket, Key="models/trained")["Body"].read() == b"weights"
    assert engine.outputs()["fileSystemId"] in made
    days = account.all(FILES)[0].inputs["lifecyclePolicies"][0]["transitionToIa"]
    assert (days, account.all(LOGS)[0].inputs["retentionInDays"]) == ("AFTER_90_DAYS", 30)
    _rename_component(engine)
    engine.up("--refresh", "--expect-no-changes")
    assert _ids(account) == made

    engine.config("paddle-training:storage.protect=false")
    with pytest.raises(CommandError, match=r"would keep .*file system fs-"):
        _plan(engine, protect=False)
    engine.up()
    assert len(_plan(engine, protect=False).removed_data) == DATA
    engine.destroy()
    assert "storage.adopt.fileSystem" in engine.preview(fails=True).text, (
        "deleted resources must not stay in the settings"
    )
    engine.pulumi("config", "rm", "--path", "paddle-training:storage.adopt", "--stack", "dev")
    group = "/aws/eks/paddle-training-dev/cluster"
    assert inventory.list_leftovers(account, REGION) == [f"log-group {group}"]
    # The control plane's last log lines created the group again, without retention and tags: it is imported too.
    third = engine.up()
    assert _imported(third) == {LOGS}
    found = cloud.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"][0]
    assert found["retentionInDays"] == 30


def _rename_component(engine: Engine) -> None:
    """Give the storage component another type, as a later version of the program may."""
    storage, context = (engine.project / "infra" / name for name in ("efs_storage.py", "aws_context.py"))
    for path, old, new in (
        (storage, "paddle:infra:Storage", "paddle:infra:Files"),
        (
            context,
            "FORMER_TYPES: Mapping[str, tuple[str, ...]] = {}",
            'FORMER_TYPES: Mapping[str, tuple[str, ...]] = {"paddle:infra:Files": ("paddle:infra:Storage",)}',
        ),
    ):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def _plan(engine: Engine, *, protect: bool) -> destroy_plan.DestroyPlan:
    """Return what `make destroy` would tell about the stack's state."""
    state = json.loads(engine.pulumi("stack", "export", "--stack", "dev").text)
    return destroy_plan.plan_destroy(state, "dev", protect=protect)


def _assert_kept(account: Account, kept: dict[str, str], made: set[str], ended: Result) -> None:
    """Check that a protected destroy kept the data and nothing else, and that it is listed."""
    assert _ids(account) == made
    left = {record.type for record in account.all()}
    assert not left & {CLUSTER, NODES, ADDON, "aws:ec2/vpc:Vpc", "aws:ec2/natGateway:NatGateway"}
    backups = account.all("aws:efs/backupPolicy:BackupPolicy")
    assert [record.inputs["backupPolicy"]["status"] for record in backups] == ["ENABLED"]
    retained = {line.split()[2] for line in ended.text.splitlines() if line.endswith("[retain] ")}
    for part in ("efs", "pods", "artifacts", "launcher", "key"):
        assert f"paddle-training-dev-{part}" in retained, f"destroy must list what it keeps:\n{ended.text}"
    # What `python -m aws kept --stack dev` lists. moto's tagging service does not list registries.
    listed = smoke_test.find_leftovers(read_stack("dev"), MotoCloud(account, REGION).client)
    names = [arn.rpartition(":")[2].rpartition("/")[2] for arn in listed]
    key, group = kept["key"].rpartition("/")[2], kept["logs"].rpartition("/")[2]
    assert sorted(names) == sorted([kept["accessPoint"], kept["fileSystem"], kept["bucket"], key, group])


@pytest.mark.seconds(20)
def test_kubernetes_upgrade_starts_with_control_plane_and_nodes_keep_their_image(
    dev_stack: Make, account: Account
) -> None:
    spot = ("nodes.capacity=SPOT", "nodes.fallback=true", "nodes.auto=true", "nodes.min=0", "nodes.desired=0")
    engine = dev_stack("dev", "storage.protect=false", *spot)
    engine.up()
    groups = {record.inputs["nodeGroupName"].rpartition("-")[0]: record for record in account.all(NODES)}
    # The autoscaler added two nodes, which is not drift. A newer machine image is used only on request.
    gang = groups["paddle-training-dev-nodes"]
    MotoCloud(account, REGION).client("eks").update_nodegroup_config(
        clusterName="paddle-training-dev",
        nodegroupName=gang.inputs["nodeGroupName"],
        scalingConfig={"minSize": 0, "desiredSize": 2, "maxSize": 3},
    )
    account.change(image_date="20261120", addon_release=1)
    engine.config("paddle-training:nodes.amiRelease=newest")
    planned = engine.preview("--refresh")
    updated = [step for step in planned.of(NODES) if step.op == "update"]
    assert {step.name.rpartition("-")[2] for step in updated} == {"nodes", "fallback", "system"}, planned.text
    assert {path for step in updated for path in step.diff} == {"releaseVersion"}, planned.text
    engine.config("paddle-training:nodes.amiRelease=", "paddle-training:nodes.max=5")
    raised = engine.up()
    assert {path for step in raised.of(NODES) for path in step.diff} <= {
        "scalingConfig.maxSize",
        "scalingConfig.desiredSize",
    }, raised.text
    assert raised.of(ADDON) == [], raised.text
    engine.config("paddle-training:cluster.upgradeAddons=true")
    planned = engine.preview()
    assert {(step.op, *step.diff) for step in planned.of(ADDON)} == {("update", "addonVersion")}, planned.text
    engine.config("paddle-training:cluster.upgradeAddons=false")
    assert sorted(g.inputs["scalingConfig"]["desiredSize"] for g in account.all(NODES)) == [0, 1, 2]

    engine.config("paddle-training:cluster.version=1.36")
    upgraded = engine.up()
    assert {(step.type, path) for step in upgraded.steps for path in step.diff} >= {
        (CLUSTER, "version"),
        (NODES, "version"),
        (NODES, "releaseVersion"),
        (ADDON, "addonVersion"),
    }, upgraded.text
    assert {record.outputs["version"] for record in account.all(CLUSTER)} == {"1.36"}

    # AWS upgrades the control plane at the end of standard support: no downgrade is requested, and no node changes.
    account.upgrade_control_plane("paddle-training-dev", "1.37")
    followed = engine.up()
    assert "the control plane has 1.37" in followed.text
    assert followed.of(CLUSTER) == [], followed.text
    assert followed.of(NODES) == followed.of(ADDON) == [], followed.text
    assert {record.outputs["version"] for record in account.all(CLUSTER)} == {"1.37"}
    engine.config("paddle-training:cluster.version=1.37")
    engine.up()
    assert {record.inputs["version"] for record in account.all(NODES)} == {"1.37"}
    assert {record.inputs["addonVersion"] for record in account.all(ADDON)} == {"v37.1.0-eksbuild.1"}
