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


def _problem(line: str) -> Problem:
    found = _FAULT.fullmatch(line)
    mend = "correct it in the stack's valuesFiles or values"
    if found is None:
        return Problem("values", line, "what charts/paddle-training takes", "helm refuses them", mend)
    key, text, limit, reason, better = found.groups()
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return Problem(key, value, limit.rstrip(","), reason, better)


def problems(said: str) -> Iterator[Problem]:
    """Each fault that helm tells of, from `render`."""
    lines = [line.removeprefix("- ") for line in said.splitlines() if line.startswith("- ")]
    for line in lines if lines else [said] * (said != ""):
        yield _problem(line)


def refused(
    values: Mapping[str, Any], release: str, namespace: str, folder: Path, version: str = versions.KUBERNETES
) -> list[Problem]:
    """Everything that the chart has against `values`."""
    return list(problems(render(values, release, namespace, folder, version)))
