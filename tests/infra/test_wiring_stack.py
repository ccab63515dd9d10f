"""Target aws with mocks: components, names and tags of the whole stack."""

from __future__ import annotations

import importlib
import re

import pytest

from infra.settings import SettingsError

from .recording_mocks import EVERYTHING, aws_stack, everything


def _takes_tags(token: str) -> bool:
    module, kind = re.fullmatch(r"aws:(\w+)/\w+:(\w+)", token).groups()  # type: ignore[union-attr]
    return hasattr(getattr(importlib.import_module(f"pulumi_aws.{module}"), kind), "tags")


def test_every_taggable_resource_has_stack_tags() -> None:
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


def test_bucket_object_has_only_stack_tags() -> None:
    made = aws_stack(**EVERYTHING | {"tags": {f"k{n}": "v" for n in range(20)}})
    tags = made.one("BucketObjectv2").inputs["tags"]
    assert set(tags) == {"Project", "Stack", "ManagedBy", "KubernetesCluster", "Name"}


def test_launch_template_tags_instances_and_volumes() -> None:
    for specification in everything().one("LaunchTemplate").inputs["tagSpecifications"]:
        assert specification["tags"]["Stack"] == "dev"


def test_names_begin_with_project_and_stack() -> None:
    for args in everything().resources:
        if not args.typ.startswith("pulumi:"):
            assert args.name.startswith("paddle-training-dev"), args.name


def test_stack_name_too_long_raises() -> None:
    aws_stack(name="s" * 28)
    with pytest.raises(SettingsError, match="at most 44 characters"):
        aws_stack(name="s" * 29)


def test_budget_counts_stack_tag_and_has_two_alarms() -> None:
    budget = everything().one("budgets/budget:Budget").inputs
    assert budget["costFilters"] == [
        {"name": "TagKeyValue", "values": ["user:KubernetesCluster$paddle-training-dev"]}
    ]
    assert [alarm["threshold"] for alarm in budget["notifications"]] == [80, 100]
    assert {mail for alarm in budget["notifications"] for mail in alarm["subscriberEmailAddresses"]} == {
        "owner@example.com"
    }
