"""Patterns and ready-made rules of settings. Imports no pulumi."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from infra.reading import rule

# RFC 1123 label: what Kubernetes takes as the name of a namespace or release.
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
ZONE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+")
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
ADMIN = re.compile(r"(arn:aws[a-z-]*:iam::\d{12}:)?(role|user)/[\w+=,.@/-]+")
POLICY_ARN = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+")
KEY_ARN = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[\w-]+")


def is_label(value: str) -> bool:
    """Whether `value` is a DNS label (RFC 1123)."""
    return LABEL.fullmatch(value) is not None


def is_network(value: str) -> bool:
    """Whether `value` is an IPv4 network without host bits, such as 10.0.0.0/16."""
    try:
        ipaddress.IPv4Network(value)
    except ValueError:
        return False
    return True


def blank_or(pattern: re.Pattern[str]) -> Any:
    return lambda value: value == "" or pattern.fullmatch(value) is not None


def label(default: str) -> Any:
    return rule(
        default,
        is_label,
        "a DNS label: lower-case letters, digits and dashes, at most 63 characters",
        "Kubernetes takes no other name",
        f"use a name such as {default}",
    )


def network(default: str) -> Any:
    return rule(
        default,
        is_network,
        "an IPv4 network in CIDR form without host bits",
        "subnets are cut out of it by arithmetic",
        f"use a network such as {default}",
    )


def count(default: int, low: int, high: int, reason: str) -> Any:
    return rule(
        default, lambda n: low <= n <= high, f"{low} to {high}", reason, f"use a number from {low} to {high}"
    )
