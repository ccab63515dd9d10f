"""Wiring of target aws, by mocks: components, names and tags of the whole stack."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from .support import ROOT, everything


def test_everything_is_made_by_component_and_nothing_beside() -> None:
    components = {args.typ for args in everything().resources if args.typ.startswith("paddle:infra:")}
    names = [
        "Key",
        "Network",
        "Storage",
        "Artifacts",
        "Registry",
        "Cluster",
        "Nodes",
        "Dns",
        "Bastion",
        "Training",
    ]
    assert components == {f"paddle:infra:{name}" for name in names}


def _takes_tags(token: str) -> bool:
    module, kind = re.fullmatch(r"aws:(\w+)/\w+:(\w+)", token).groups()  # type: ignore[union-attr]
    return hasattr(getattr(importlib.import_module(f"pulumi_aws.{module}"), kind), "tags")


def test_every_taggable_resource_carries_the_one_tag_set() -> None:
    for args in everything().resources:
        if args.typ.startswith("aws:") and _takes_tags(args.typ) and "bucketObject" not in args.typ:
            assert (
                args.inputs["tags"].items()
                >= {
                    "Project": "paddle-training",
                    "Stack": "dev",
                    "ManagedBy": "pulumi",
                    "KubernetesCluster": "paddle-training-dev",
                    "Team": "paddle",
                }.items()
            ), args.name
    for specification in everything().one("LaunchTemplate").inputs["tagSpecifications"]:
        assert specification["tags"]["Stack"] == "dev"


def test_every_name_carries_project_and_stack() -> None:
    for args in everything().resources:
        if not args.typ.startswith("pulumi:"):
            assert args.name.startswith("paddle-training-dev"), args.name


def test_each_of_the_programs_files_can_be_held_in_mind() -> None:
    for path in [*Path(ROOT / "infra").glob("*.py"), ROOT / "__main__.py"]:
        lines = len(path.read_text().splitlines())
        assert lines <= (60 if path.name == "__main__.py" else 350), f"{path.name} has {lines} lines"
