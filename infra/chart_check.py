"""Asks the chart itself whether its values can work, before any resource is made. Imports no pulumi.

The chart has the rules (its schema, and `_validate*.tpl`), and would otherwise tell of a broken one only when
the release is made: on target aws half an hour after the network. `helm template` reaches no cluster.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.chart_values import CHART, Facts, build
from infra.problems import Problem
from infra.settings import Settings
from launcher import misspelt

SECONDS = 60
# Stand-ins for what only a stack's resources know.
FACTS = Facts(
    image="example.invalid/paddle-training@sha256:" + "0" * 64,
    file_system_id="fs-00000000000000000",
    access_point_id="fsap-00000000000000000",
    file_system_host="efs.example.internal",
    bucket="the-stacks-bucket",
)
# As the templates write it: `paddle-training.fault` in _validate.tpl.
_FAULT = re.compile(r"(.+?) is (.*?), but must be (.*?): (.*?)\. (.*)\.")


def template(
    settings: Settings, own: Mapping[str, Any], folder: Path, image: str = ""
) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart in `folder`, with the release's values of a stack.

    Args:
        settings: the stack's.
        own: the person's values, from `chart_values.own_values`.
        folder: the project's.
        image: the stack's image, if it has one.

    Raises:
        FileNotFoundError: helm is not on PATH.
    """
    facts = FACTS if image == "" else dataclasses.replace(FACTS, image=image)
    argv = ["helm", "template", settings.release.name, str(folder / CHART)]
    # helm by itself believes in whatever Kubernetes it was built for.
    argv += ["--namespace", settings.namespace.name, "--kube-version", f"{settings.cluster.version}.0"]
    values = json.dumps(build(settings, facts, own))  # JSON is YAML
    return subprocess.run(
        [*argv, "--values", "-"], input=values, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def _problem(line: str, values: Mapping[str, Any], schema: Mapping[str, Any]) -> Problem:
    mend = "correct it in the stack's valuesFiles or values"
    if found := _FAULT.fullmatch(line):
        key, text, limit, reason, better = found.groups()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        return Problem(key, value, limit, reason, better)
    if at := misspelt.AT.fullmatch(line):
        path, value, node = [key for key in at[1].split("/") if key], values, schema
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else value
            node = node.get("properties", {}).get(key, node)
        if name := misspelt.unknown(at[2]):
            known, key = list(node.get("properties", {})), ".".join([*path, name])
            limit, why = f"one of {', '.join(known)}", "the chart has no such value"
            return Problem(key, value.get(name), limit, why, misspelt.meant(name, known) or mend)
        if path:
            return Problem(".".join(path), value, at[2], node.get("description", ""), mend)
    return Problem("values", line, "what charts/paddle-training takes", "helm refuses them", mend)


def refused(settings: Settings, own: Mapping[str, Any], folder: Path, image: str = "") -> Iterator[Problem]:
    """Each fault that the chart has with the values; the arguments are those of `template`."""
    done = template(settings, own, folder, image)
    said = done.stderr.strip() if done.returncode else ""
    lines = [line.strip().removeprefix("- ") for line in said.splitlines() if line.lstrip().startswith("- ")]
    lines = [line for line in lines if not line.endswith(": validation failed")]
    schema = json.loads((folder / CHART / "values.schema.json").read_text(encoding="utf-8"))
    for line in lines if lines else [said] * (said != ""):
        yield _problem(line, own, schema)
