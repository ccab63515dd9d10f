"""Policy documents as JSON text: those in policies.yaml, and the rights of deployer and previews. Imports no pulumi."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.settings import DnsSettings, IamSettings

VERSION = "2012-10-17"


def _document(statements: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps({"Version": VERSION, "Statement": list(statements)}, sort_keys=True)


def _allow(actions: Sequence[str], resources: Sequence[str] | str, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": sorted(actions), "Resource": resources, **more}


def _read(name: str) -> Any:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader


def _filled(content: Any, names: Mapping[str, str]) -> Any:
    """Return the content of a YAML file with each `{name}` in its texts replaced by `names[name]`."""
    return json.loads(re.sub(r"\{(\w+)\}", lambda found: names[found[1]], json.dumps(content)))


POLICIES = _read("policies.yaml")
"""Name → content of each document in policies.yaml."""
# Prefixes of the bucket that pods use: they read sources, and read and write models.
SOURCES = "sources/"
MODELS = "models/"
GITHUB = "token.actions.githubusercontent.com"


def policy(document: str, **names: str) -> str:
    """Return the document `document` of policies.yaml as JSON. Each `{name}` in it is replaced by the argument `name`.

    Raises:
        KeyError: there is no such document, or the document contains a `{name}` that was not passed.
    """
    constant = {"sources": SOURCES, "models": MODELS, "github": GITHUB}
    content = _filled(POLICIES[document], constant | names)
    return _document(content) if isinstance(content, list) else json.dumps(content, sort_keys=True)


RULES: list[dict[str, Any]] = _read("deployer_permissions.yaml")
"""The rights of the user who deploys: the rules of deployer_permissions.yaml."""


def full_names(rule: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a list for each service in a rule: the rule's actions of this service, as `service:Name`."""
    for service, names in rule["actions"].items():
        yield [f"{service}:{name}" for name in names.split()]


def actions() -> list[str]:
    """Return all actions of RULES as `service:Name`, sorted."""
    return sorted({name for rule in RULES for names in full_names(rule) for name in names})


# IAM does not count whitespace; a role accepts ten managed policies.
MANAGED_POLICY_CHARACTERS = 6144
# Created by `make state` for all stacks of an account.
STATE_ALIAS = "alias/paddle-training-state"
STATE_BUCKETS = "paddle-training-state-"
STATE_TAG = "make state"
DEFAULT_DNS = DnsSettings()


def deployer(
    prefix: str,
    iam: IamSettings,
    *,
    partition: str = "aws",
    account: str = "*",
    dns: DnsSettings = DEFAULT_DNS,
    key_arn: str = "",
) -> list[str]:
    """Return policy documents that let a user create, change and remove a stack; each fits the size limit of a policy.

    The user can change resources that have the stack's tag or name prefix, DNS records with the names of the setting
    `dns`, and the bucket and key of `make state`. For some other resources, the rules in deployer_permissions.yaml
    limit only the kind of resource, for example network interfaces. Actions without any limit are in the rules with a
    `reason`. The user can put any inline policy on the stack's roles; only a permissions boundary limits what the roles
    may do. `key_arn` is the setting `kms.keyArn`: EKS creates a grant for this key in the user's name, so the user may
    create grants.

    An `account` of `*` has the same effect as the account's id, because an IAM policy applies only in its own account.
    """
    own = f"arn:{partition}:iam::{account}"
    roles, profiles = f"{own}:role{iam.path}{prefix}-*", f"{own}:instance-profile{iam.path}{prefix}-*"
    names = {
        **{
            "partition": partition,
            "account": account,
            "prefix": prefix,
            "roles": roles,
            "profiles": profiles,
        },
        **{"zone": dns.zone or "paddle.internal", "externalName": dns.external_name or "api.paddle.internal"},
        **{"stateAlias": STATE_ALIAS, "stateBuckets": STATE_BUCKETS, "stateTag": STATE_TAG},
    }
    grants = [_allow(["kms:CreateGrant"], key_arn)] if key_arn != "" else []
    return _packed([*_scoped(names, iam.permissions_boundary), *grants])


def _scoped(names: Mapping[str, str], boundary: str) -> Iterator[dict[str, Any]]:
    """Yield the statements of `RULES`, in which `names` replace the names in braces.

    `boundary` is the ARN of the permissions boundary that all roles must have; empty: they have none.
    """
    for rule in _filled(RULES, names):
        condition = rule.get("condition", {})
        if boundary != "" and rule.get("boundary") == "absent":
            continue
        if boundary != "" and rule.get("boundary") == "required":
            condition |= {"StringEquals": {"iam:PermissionsBoundary": boundary}}
        for actions in full_names(rule):
            limits = {"Condition": condition} if condition else {}
            yield _allow(actions, rule.get("resources", "*"), **limits)


def preview(partition: str) -> list[str]:
    """Return policy documents of the role that previews pull requests: read resources and Pulumi's state.

    The role can read objects only of the bucket with Pulumi's state, and use only the key of this state, because a
    preview runs the branch's unreviewed program with this role.
    """
    kinds = ("Describe", "Get", "List")
    excluded = ["s3:GetObject", "s3:GetObjectTagging", "s3:ListBucketVersions"]
    excluded += ["ecr:GetAuthorizationToken", "ssm:GetParameter"]
    reads = [name for name in actions() if name.partition(":")[2].startswith(kinds)]
    by_alias = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": STATE_ALIAS}}
    return _packed(
        [
            *_by_service([name for name in reads if name not in excluded]),
            _allow(["ssm:GetParameter"], f"arn:{partition}:ssm:*:*:parameter/aws/service/*"),
            _allow(["s3:GetObject"], f"arn:{partition}:s3:::{STATE_BUCKETS}*"),
            _allow(["kms:Decrypt"], "*", Condition=by_alias),
        ]
    )


def _by_service(actions: Sequence[str]) -> list[dict[str, Any]]:
    grouped = itertools.groupby(sorted(actions), lambda action: action.partition(":")[0])
    return [_allow(list(group), "*") for _, group in grouped]


def _packed(statements: Iterable[dict[str, Any]]) -> list[str]:
    documents: list[list[dict[str, Any]]] = [[]]
    for statement in statements:
        if len(_document([*documents[-1], statement]).replace(" ", "")) > MANAGED_POLICY_CHARACTERS:
            documents.append([])
        documents[-1].append(statement)
    return [_document(document) for document in documents]
