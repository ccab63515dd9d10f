"""Wiring of target aws, by mocks: roles, and the policy of the person who deploys."""

from __future__ import annotations

import json

from infra import policies
from infra.deployer_actions import ACTIONS

from .support import EVERYTHING, Recorder, default, everything


def test_every_role_has_the_path_and_the_boundary_that_were_asked_for() -> None:
    roles = everything().of("aws:iam/role:Role")
    assert {role.inputs["path"] for role in roles} == {"/teams/"}
    assert {role.inputs["permissionsBoundary"] for role in roles} == {
        EVERYTHING["iam"]["permissionsBoundary"]
    }
    assert not [r for r in default().of("aws:iam/role:Role") if "permissionsBoundary" in r.inputs]


def test_every_role_is_used() -> None:
    made = everything()
    texts = str([args.inputs for args in made.resources if args.typ != "aws:iam/role:Role"])
    for role in made.of("aws:iam/role:Role"):
        by_arn, by_profile = f"arn:aws:mock:::{role.name}", made.of("InstanceProfile")
        assert by_arn in texts or role.name in [p.inputs["role"] for p in by_profile], role.name


def test_no_policy_of_aws_with_full_access_is_attached() -> None:
    attached = [a.inputs["policyArn"] for a in everything().of("RolePolicyAttachment")]
    assert attached
    assert not [arn for arn in attached if "FullAccess" in arn or "Administrator" in arn]


def _types(recorder: Recorder) -> set[str]:
    return {args.typ for args in recorder.resources if args.typ.startswith("aws:")}


def test_the_deployers_policy_covers_the_resource_types_in_use_and_no_others() -> None:
    used = _types(everything()) | _types(default())
    assert used == set(ACTIONS)


def test_the_deployers_policy_has_no_wildcard_action() -> None:
    document = json.loads(policies.deployer())
    actions = [action for statement in document["Statement"] for action in statement["Action"]]
    assert actions
    assert not [action for action in actions if "*" in action]
    assert len(actions) == len(set(actions))


def test_the_deployer_hands_roles_to_the_services_in_use_only() -> None:
    document = json.loads(policies.deployer())
    passing = [s for s in document["Statement"] if "iam:PassRole" in s["Action"]]
    assert [s["Action"] for s in passing] == [["iam:PassRole"]]
    services = {json.loads(r.inputs["assumeRolePolicy"])["Statement"][0]["Principal"]["Service"]
                for r in everything().of("aws:iam/role:Role")}  # fmt: skip
    assert set(passing[0]["Condition"]["StringEquals"]["iam:PassedToService"]) == services
