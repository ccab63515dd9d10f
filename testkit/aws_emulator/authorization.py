"""The part of IAM's evaluation that the generated policies use: actions, resources and string conditions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

# Operators of a condition, and whether the value may contain wildcards.
_OPERATORS = {
    "ArnEquals": True,
    "ArnLike": True,
    "Bool": False,
    "ForAllValues:StringEquals": False,
    "ForAnyValue:StringEquals": False,
    "ForAnyValue:StringLike": True,
    "StringEquals": False,
    "StringLike": True,
    "StringNotEquals": False,
}


def statements(policies: Iterable[str]) -> list[dict[str, Any]]:
    """Return the statements of IAM documents."""
    return [statement for text in policies for statement in json.loads(text)["Statement"]]


def actions(policies: Iterable[str]) -> list[str]:
    """Return the actions of all statements of IAM documents."""
    return [action for statement in statements(policies) for action in statement["Action"]]


def is_allowed(
    granted: Iterable[Mapping[str, Any]],
    action: str,
    resource: str = "",
    context: Mapping[str, str] | None = None,
) -> bool:
    """Return whether a statement allows the action.

    `granted` are statements with the effect Allow; `context` are the condition keys of the request. Without `resource`,
    resources and conditions are not compared.

    Raises:
        KeyError: a statement has an operator that this function does not know.
    """
    return any(
        (
            action in statement["Action"]
            or any(fnmatchcase(action, each) for each in _list(statement["Action"]))
        )
        and (resource == "" or (_names(statement, resource) and _meets(statement, context or {})))
        for statement in granted
    )


def _names(statement: Mapping[str, Any], resource: str) -> bool:
    return any(fnmatchcase(resource, pattern) for pattern in _list(statement["Resource"]))


def _meets(statement: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    for operator, keys in statement.get("Condition", {}).items():
        wild = _OPERATORS[operator]
        for key, values in keys.items():
            given = context.get(key)
            if given is None and operator.startswith("ForAllValues"):
                continue  # met without a value, as in IAM
            # A condition on a key that the request lacks is not met, and its negation is.
            found = given is not None and any(
                fnmatchcase(given, value) if wild else given == value for value in _list(values)
            )
            if found is ("Not" in operator):
                return False
    return True


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
