"""Names, tags, digests, addresses, quantities."""

from __future__ import annotations

import ipaddress
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import capacity, cidr, naming
from infra.quantities import number


def _folder(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "a.py").write_text("a")
    (root / "sub" / "b.py").write_text("b")
    return root


def test_a_folders_digest_is_the_same_in_every_clone(tmp_path: Path) -> None:
    one, other = _folder(tmp_path / "one"), _folder(tmp_path / "other")
    (other / "__pycache__").mkdir()
    (other / "__pycache__" / "a.cpython-311.pyc").write_text("x")
    (other / "old.pyc").write_text("x")
    (other / ".hidden").write_text("x")
    assert naming.folder_digest(one) == naming.folder_digest(other)


@pytest.mark.parametrize("change", ["content", "name", "more"])
def test_a_folders_digest_changes_with_its_files(tmp_path: Path, change: str) -> None:
    folder = _folder(tmp_path / "one")
    before = naming.folder_digest(folder)
    if change == "content":
        (folder / "a.py").write_text("A")
    elif change == "name":
        (folder / "a.py").rename(folder / "c.py")
    else:
        (folder / "more.py").write_text("")
    assert naming.folder_digest(folder) != before


def test_moving_bytes_between_name_and_content_changes_the_digest(tmp_path: Path) -> None:
    for name, content in (("one/ab", "c"), ("other/a", "bc")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    assert naming.folder_digest(tmp_path / "one") != naming.folder_digest(tmp_path / "other")


def test_the_launchers_digest_takes_the_place_of_its_placeholder(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "launcher")
    assert naming.image_reference("x:{launcher}", folder) == f"x:{naming.folder_digest(folder)[:12]}"
    assert naming.image_reference("x@sha256:1", tmp_path / "absent") == "x@sha256:1"


def test_a_persons_tags_never_replace_the_stacks_own() -> None:
    tags = naming.tags("paddle-training", "dev", {"Stack": "other", "Team": "x"})
    assert tags["Stack"] == "dev"
    assert tags["Team"] == "x"


def test_names_carry_project_and_stack_in_letters_that_aws_takes() -> None:
    assert naming.prefix("paddle-training", "Org/dev.1") == "paddle-training-org-dev-1"


@given(
    st.integers(16, 22).flatmap(
        lambda bits: st.integers(0, 2**bits - 1).map(
            lambda n: f"{ipaddress.IPv4Address(n << (32 - bits))}/{bits}"
        )
    ),
    st.integers(1, 3),
)
def test_subnets_lie_inside_the_vpc_and_share_no_address(block: str, zones: int) -> None:
    plans = cidr.plan(block, zones)
    nets = [ipaddress.IPv4Network(net) for plan in plans for net in (plan.private, plan.public)]
    assert len(plans) == zones
    assert all(net.subnet_of(ipaddress.IPv4Network(block)) for net in nets)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(nets, 2))
    assert all(net.prefixlen <= 28 for net in nets), "AWS takes no subnet smaller than /28"


@given(st.integers(1, 2))
def test_one_more_zone_moves_none_of_the_others(zones: int) -> None:
    assert cidr.plan("10.0.0.0/16", zones) == cidr.plan("10.0.0.0/16", zones + 1)[:zones]


@pytest.mark.parametrize(("block", "zones"), [("10.0.0.0/15", 2), ("10.0.0.0/23", 2), ("10.0.0.0/16", 4)])
def test_a_network_that_cannot_be_cut_is_an_error(block: str, zones: int) -> None:
    with pytest.raises(ValueError, match=r"zones|not between"):
        cidr.plan(block, zones)


@pytest.mark.parametrize(
    ("text", "value"),
    [("250m", 0.25), ("1", 1.0), (2, 2.0), ("1.5Gi", 1.5 * 2**30), ("512Mi", 2**29), ("1G", 1e9)],
)
def test_quantities_read_as_kubernetes_reads_them(text: object, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "x", "1GiB", "-1", "1 Gi"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        number(text)


@pytest.mark.parametrize(
    ("kind", "arm"),
    [
        ("m6i.large", False),
        ("m7g.large", True),
        ("t4g.medium", True),
        ("c7gn.large", True),
        ("g5.xlarge", False),
    ],
)
def test_graviton_types_are_told_by_their_family(kind: str, arm: bool) -> None:
    assert capacity.is_arm(kind) is arm


def test_a_node_never_offers_pods_more_than_it_has() -> None:
    for cores, gib in ((2, 4), (2, 8), (64, 128)):
        whole = capacity.Size(cores, gib * capacity.GIB)
        left = capacity.for_pods(whole)
        assert 0 < left.cpu < whole.cpu
        assert 0 < left.memory < whole.memory


def test_with_host_ports_a_node_holds_one_trainer_however_large_it_is() -> None:
    node, pod = capacity.Size(64, 2**40), capacity.Size(1, 2**30)
    placed, data = capacity.held(node=node, nodes=2, trainers=3, trainer=pod, data=pod, one_a_node=True)
    assert (placed, data) == (2, True)


def test_a_data_pod_that_finds_no_room_is_seen() -> None:
    node, pod = capacity.Size(1, 2**30), capacity.Size(1, 2**30)
    placed, data = capacity.held(node=node, nodes=3, trainers=3, trainer=pod, data=pod, one_a_node=False)
    assert (placed, data) == (3, False)
