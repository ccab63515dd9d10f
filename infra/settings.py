"""Every setting of a stack, read in one place into frozen dataclasses. Imports no pulumi.

`load` takes the stack's configuration as the engine hands it over (a mapping of `namespace:key` to text,
objects as JSON) and raises one SettingsError that lists all mistakes. Rules between several settings are in
`checks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra import checks
from infra.aws_settings import Artifacts, Bastion, Cluster, Dns, Iam, Kms, Network, Nodes
from infra.problems import Problem, SettingsError
from infra.reading import camel, choice, read, rule
from infra.rules import LABEL, blank_or, is_label, label

PROJECT = "paddle-training"


@dataclass(frozen=True)
class Kubeconfig:
    """Which existing cluster; target kubeconfig only. Never the ambient one."""

    path: str = ""
    context: str = ""


@dataclass(frozen=True)
class Namespace:
    """Where the release lives. `create: false` uses one that is there and is never removed."""

    name: str = label("paddle")
    create: bool = True


@dataclass(frozen=True)
class Release:
    """The Helm release. Names longer than 53 characters are refused by helm itself."""

    name: str = rule(
        "paddle-training",
        lambda value: is_label(value) and len(value) <= 53,
        "a DNS label of at most 53 characters",
        "helm takes no other name",
        "use a name such as paddle-training",
    )
    wait: bool = False
    keep_manual_values: bool = False


@dataclass(frozen=True)
class Storage:
    """Shared storage. On aws efs-csi and nfs are the stack's own EFS, and `protect` is what destroy keeps."""

    type: str = choice(
        "efs-csi", "efs-csi", "nfs", "hostPath", "existingClaim", reason="the chart mounts these"
    )
    protect: bool = True
    path: str = rule(
        "",
        lambda value: value == "" or value.startswith("/"),
        "an absolute path",
        "it is a folder of the nodes (hostPath) or an exported one (nfs)",
        "begin it with a slash",
    )
    server: str = ""
    claim: str = rule(
        "", blank_or(LABEL), "a DNS label", "it is a claim's name", "use the claim's metadata.name"
    )
    throughput: str = choice(
        "elastic", "elastic", "bursting", reason="bursting starves once its credits are spent"
    )
    backup: bool = True
    archive_after_days: int = rule(
        30,
        lambda days: days in (0, 1, 7, 14, 30, 60, 90, 180, 270, 365),
        "0 (never), 1, 7, 14, 30, 60, 90, 180, 270 or 365",
        "EFS moves unread files to cheaper storage after one of these",
        "use 30",
    )


@dataclass(frozen=True)
class Settings:
    """A stack's settings. What the training does is not here: it is in the chart's values (`valuesFiles`)."""

    target: str = choice(
        "aws", "aws", "kubeconfig", reason="a stack makes its own AWS cluster or uses one there is"
    )
    compute: str = choice("on", "on", "off", reason="off removes cluster, nodes and NAT and keeps the data")
    image: str = ""
    values_files: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    kubeconfig: Kubeconfig = field(default_factory=Kubeconfig)
    namespace: Namespace = field(default_factory=Namespace)
    release: Release = field(default_factory=Release)
    storage: Storage = field(default_factory=Storage)
    network: Network = field(default_factory=Network)
    cluster: Cluster = field(default_factory=Cluster)
    nodes: Nodes = field(default_factory=Nodes)
    dns: Dns = field(default_factory=Dns)
    artifacts: Artifacts = field(default_factory=Artifacts)
    kms: Kms = field(default_factory=Kms)
    bastion: Bastion = field(default_factory=Bastion)
    iam: Iam = field(default_factory=Iam)
    tags: dict[str, str] = rule(  # noqa: RUF009 - it makes a default_factory
        {},
        lambda own: all(
            0 < len(k) <= 128 and len(v) <= 256 and not k.startswith("aws:") for k, v in own.items()
        ),
        "keys of 1 to 128 characters that do not begin with aws:, values of at most 256",
        "AWS takes no other tags",
        "shorten or rename the tag",
    )


_TEXTS = {"target", "compute", "image"}
# Words that other tools write for on and off.
_SWITCH = {"true": "on", "false": "off"}


def decode(config: Mapping[str, str], project: str) -> dict[str, Any]:
    """The project's own keys of the engine's configuration, decoded."""
    found: dict[str, Any] = {}
    for full_key, text in config.items():
        namespace, _, key = full_key.partition(":")
        if namespace != project:
            continue
        if key in _TEXTS:
            found[key] = _SWITCH.get(text, text) if key == "compute" else text
            continue
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _section(problem: Problem) -> str:
    return problem.key.partition(".")[0]


def load(config: Mapping[str, str], project: str = PROJECT) -> Settings:
    """The settings of a stack.

    Args:
        config: `namespace:key` → text, objects and lists as JSON, as `pulumi config --json` or the engine
            gives it.
        project: namespace of the stack's own keys.

    Raises:
        SettingsError: a key is unknown, of the wrong type, or breaks a rule; all of them in one message.
    """
    problems: list[Problem] = []
    settings = read(Settings, decode(config, project), f"{project}:", problems)
    # A section with a mistake holds a default in its place: what its settings are together is not known yet.
    broken = {_section(problem) for problem in problems}
    together = checks.settings_problems(settings, config.get("aws:region", ""))
    problems.extend(problem for problem in together if _section(problem) not in broken)
    if problems:
        raise SettingsError(problems)
    return settings


def keys() -> list[str]:
    """All top-level keys, as a stack's file writes them."""
    return [camel(name) for name in Settings.__dataclass_fields__]
