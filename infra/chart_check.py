"""Asks the chart itself whether its values can work, before any resource is made. Imports no pulumi.

The chart has the rules (its schema, and `_validate*.tpl`), and would otherwise tell of a broken one only when
the release is made: on target aws half an hour after the network. `helm template` reaches no cluster.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra import versions
from infra.chart_values import CHART
from infra.problems import Problem

SECONDS = 60
# As the templates write it: `paddle-training.fault` in _validate.tpl.
_FAULT = re.compile(r"(.+?) is (.*?), but must be (.*?): (.*?)\. (.*)\.")
# As helm tells what the schema refuses.
_AT = re.compile(r"at '/?([^']*)': (.*)")


def available() -> bool:
    """Whether there is a helm to ask."""
    return shutil.which("helm") is not None


def render(values: Mapping[str, Any], release: str, namespace: str, folder: Path, version: str) -> str:
    """What helm says against these values; empty when it renders them."""
    done = subprocess.run(
        [
            *("helm", "template", release, str(folder / CHART), "--namespace", namespace),
            *("--kube-version", f"{version}.0", "--values", "-"),
        ],
        input=json.dumps(values),  # JSON is YAML
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stderr.strip() if done.returncode else ""


def _problem(line: str, values: Mapping[str, Any], schema: Mapping[str, Any]) -> Problem:
    mend = "correct it in the stack's valuesFiles or values"
    if found := _FAULT.fullmatch(line):
        key, text, limit, reason, better = found.groups()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        return Problem(key, value, limit.rstrip(","), reason, better)
    if (at := _AT.fullmatch(line)) and at[1]:
        value, node = values, schema
        for key in at[1].split("/"):
            value = value.get(key) if isinstance(value, Mapping) else value
            node = node.get("properties", {}).get(key, node)
        return Problem(at[1].replace("/", "."), value, at[2], node.get("description", ""), mend)
    return Problem("values", line, "what charts/paddle-training takes", "helm refuses them", mend)


def problems(said: str, values: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Each fault that helm tells of, from `render`; `schema` is the chart's values.schema.json."""
    lines = [line.strip().removeprefix("- ") for line in said.splitlines() if line.lstrip().startswith("- ")]
    lines = [line for line in lines if not line.endswith(": validation failed")]
    for line in lines if lines else [said] * (said != ""):
        yield _problem(line, values, schema)


def refused(
    values: Mapping[str, Any], release: str, namespace: str, folder: Path, version: str = versions.KUBERNETES
) -> list[Problem]:
    """Everything that the chart has against `values`."""
    schema = json.loads((folder / CHART / "values.schema.json").read_text(encoding="utf-8"))
    return list(problems(render(values, release, namespace, folder, version), values, schema))
