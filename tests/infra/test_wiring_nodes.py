"""Target aws with mocks: the node group and its launch template."""

from __future__ import annotations

import pytest

from infra import aws_facts

from .recording_mocks import aws_stack, default, everything, running


def test_nodes_without_gpus_have_no_taint_and_the_driver_only_efs_csi() -> None:
    """EKS sets a node group's taints after the EFS driver has removed its own, which then stays for ever."""
    assert "taints" not in default().one("NodeGroup").inputs
    assert aws_facts.ADDON_EFS_CSI in {addon.inputs["addonName"] for addon in default().of("Addon")}
    made = aws_stack(storage={"type": "hostPath", "path": "/shared"})
    assert aws_facts.ADDON_EFS_CSI not in {addon.inputs["addonName"] for addon in made.of("Addon")}


def test_nodes_are_in_one_zone_unless_single_zone_is_false() -> None:
    """The control plane keeps all zones; traffic between trainers in two zones would be charged."""
    ids = default().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]
    assert len(ids) == 2
    assert default().one("NodeGroup").inputs["subnetIds"] == ids[:1]


def test_several_zones_have_one_node_group_each_so_that_no_group_is_rebalanced() -> None:
    ids = default().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]
    made = aws_stack(nodes={"singleZone": False, "min": 1, "desired": 3, "max": 5})
    groups = {group.name.partition("-dev-")[2]: group.inputs for group in made.of("NodeGroup")}
    assert {part: group["subnetIds"] for part, group in groups.items()} == {
        "nodes-a": ids[:1],
        "nodes-b": ids[1:],
    }
    sizes = [group["scalingConfig"] for group in groups.values()]
    assert [(s["minSize"], s["desiredSize"], s["maxSize"]) for s in sizes] == [(1, 2, 3), (0, 1, 2)]
    release = made.before(made.one("Release"))
    assert all(any(name.endswith(f"-dev-{part}") for name in release) for part in groups)


def test_autoscaler_may_add_all_nodes_in_any_zone() -> None:
    """A gang needs all its nodes, and one zone may have no capacity."""
    auto = {"auto": True, "capacity": "SPOT", "fallback": True, "singleZone": False, "min": 0, "max": 4}
    made = aws_stack(nodes=auto, answers=running(**{"nodes-a": {"sizes": (0, 3, 4)}}))
    groups = {group.name.partition("-dev-")[2]: group.inputs for group in made.of("NodeGroup")}
    assert set(groups) == {"nodes-a", "nodes-b", "fallback-a", "fallback-b", "system"}
    sizes = {part: group["scalingConfig"] for part, group in groups.items() if part != "system"}
    assert {size["maxSize"] for size in sizes.values()} == {4}
    assert {part: size["desiredSize"] for part, size in sizes.items() if size["desiredSize"]} == {
        "nodes-a": 3
    }


def test_more_zones_than_nodes_are_valid_sizes_of_node_groups() -> None:
    nodes = {"singleZone": False, "min": 0, "desired": 1, "max": 1}
    made = aws_stack(nodes=nodes, values={"trainers": 1}, network={"zones": 3})
    sizes = [group.inputs["scalingConfig"] for group in made.of("NodeGroup")]
    assert [(size["desiredSize"], size["maxSize"]) for size in sizes] == [(1, 1), (0, 1), (0, 1)]


def test_node_count_change_updates_only_scaling() -> None:
    one = aws_stack(nodes={"desired": 1}, values={"trainers": 1}).one("NodeGroup").inputs
    three = default().one("NodeGroup").inputs
    assert {key for key in three if one.get(key) != three[key]} == {"scalingConfig"}


def test_graviton_nodes_use_arm_image() -> None:
    group = (
        aws_stack(nodes={"instanceTypes": ["m7g.large"]}, values={"runtime": "v1"}).one("NodeGroup").inputs
    )
    assert group["amiType"] == "AL2023_ARM_64_STANDARD"


def test_autoscaler_knows_disk_of_nodes_that_do_not_run_yet() -> None:
    key = "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage"
    made = aws_stack(
        nodes={"auto": True, "capacity": "SPOT", "fallback": True, "diskGib": 80, "min": 0},
    )
    disks = {group.name.rpartition("-")[2]: group.inputs["tags"].get(key) for group in made.of("NodeGroup")}
    assert disks == {"nodes": "70Gi", "fallback": "70Gi", "system": None}


def test_key_pair_and_placement_group_are_in_launch_template() -> None:
    template = everything().one("LaunchTemplate").inputs
    assert template["keyName"] == "mine"
    assert template["placement"]["groupName"] == everything().one("PlacementGroup").name
    assert len(everything().one("NodeGroup").inputs["subnetIds"]) == 1
    assert "keyName" not in default().one("LaunchTemplate").inputs


NEWEST = "1.35.2-20261109"
GROUP = "paddle-training-dev-nodes"
AUTO = {"auto": True, "min": 1, "desired": 3, "max": 40}


@pytest.mark.parametrize(
    ("sizes", "desired", "ignored"),
    [
        ((1, 30, 40), 30, True),  # nothing to change: EKS gets no request
        ((1, 30, 30), 30, False),  # a new maximum sends all three numbers
        ((0, 0, 40), 1, False),
        ((1, 50, 50), 40, False),
    ],
)
def test_auto_keeps_live_number_of_nodes(sizes: tuple[int, int, int], desired: int, ignored: bool) -> None:
    made = aws_stack(nodes=AUTO, answers=running(nodes={"sizes": sizes}))
    assert made.one("NodeGroup", GROUP).inputs["scalingConfig"]["desiredSize"] == desired
    assert ("scalingConfig" in made.ignored[GROUP]) is ignored


def test_auto_new_group_starts_at_minimum() -> None:
    for image in ("", "registry/launcher@sha256:1"):
        group = aws_stack(nodes=AUTO, image=image).one("NodeGroup", GROUP)
        assert group.inputs["scalingConfig"] == {"minSize": 1, "desiredSize": 1, "maxSize": 40}


@pytest.mark.parametrize(
    ("pinned", "running_version", "wanted_version", "release"),
    [
        ("", None, "1.35", NEWEST),
        ("", "1.35", "1.35", "ignored"),
        ("newest", "1.35", "1.35", NEWEST),
        ("1.35.0-20260901", "1.35", "1.35", "1.35.0-20260901"),
        # An upgrade of Kubernetes replaces the nodes anyway.
        ("", "1.35", "1.36", NEWEST),
    ],
)
def test_machine_image_of_a_group_changes_only_on_request(
    pinned: str, running_version: str | None, wanted_version: str, release: str
) -> None:
    group = {"sizes": (1, 3, 3), "version": running_version}
    made = aws_stack(
        nodes={"amiRelease": pinned},
        cluster={"admins": ["role/Admin"], "version": wanted_version},
        answers=running(wanted_version, nodes=group) if running_version else {},
    )
    ignored = made.ignored.get(GROUP, [])
    assert ("releaseVersion" in ignored) is (release == "ignored")
    assert ("version" in ignored) is (running_version == wanted_version)
    assert made.one("NodeGroup").inputs["version"] == wanted_version
    if release != "ignored":
        assert made.one("NodeGroup").inputs["releaseVersion"] == release


def test_number_of_nodes_that_the_owner_sets_is_applied_whatever_runs() -> None:
    """Without nodes.auto, no input of the sizes is ignored: also a change back to the number of the last update."""
    for sizes in ((1, 3, 3), (1, 1, 3)):
        made = aws_stack(nodes={"min": 1, "desired": 3, "max": 3}, answers=running(nodes={"sizes": sizes}))
        assert made.one("NodeGroup", GROUP).inputs["scalingConfig"]["desiredSize"] == 3
        assert "scalingConfig" not in str(made.ignored[GROUP])


def test_fallback_group_has_on_demand_nodes_of_the_same_template() -> None:
    spot = {"auto": True, "capacity": "SPOT", "min": 1, "desired": 3, "max": 40}
    made = aws_stack(nodes={**spot, "fallback": True})
    first, second = (made.one("NodeGroup", f"dev-{part}").inputs for part in ("nodes", "fallback"))
    assert (first["capacityType"], second["capacityType"]) == ("SPOT", "ON_DEMAND")
    assert second["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 40}
    changed = {key for key in first if first[key] != second[key]}
    assert changed == {"capacityType", "scalingConfig", "tags"}
    assert made.one("Release", "autoscaler").inputs["values"]["fallback"] is True
    live = aws_stack(nodes={**spot, "fallback": True}, answers=running(fallback={"sizes": (0, 7, 40)}))
    assert live.one("NodeGroup", "dev-fallback").inputs["scalingConfig"]["desiredSize"] == 7
    assert len(aws_stack(nodes=spot).of("NodeGroup")) == 2, "the system group and one for training"


def test_step_from_one_to_three_nodes_of_the_tutorial_changes_only_sizes() -> None:
    """`nodes.min` keeps nodes without a training; `nodes.desired` has no effect with `nodes.auto`."""
    auto = {"auto": True, "max": 6}
    before, after, ignored = (
        aws_stack(nodes={**auto, **given}, answers=running(nodes={"sizes": (1, 1, 6)}))
        .one("NodeGroup", GROUP)
        .inputs
        for given in ({"min": 1}, {"min": 3}, {"min": 1, "desired": 9})
    )
    assert {key for key in after if before.get(key) != after[key]} == {"scalingConfig"}
    assert after["scalingConfig"] == {"minSize": 3, "desiredSize": 3, "maxSize": 6}
    assert ignored == before
