"""Check chart values with `helm template` before any resource is created. Imports no pulumi.

The chart contains the rules (its schema and `_validate*.tpl`), but would apply them only when the release is
installed: on target aws, half an hour after the first resource. `helm template` contacts no cluster.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.chart_values import CHART, StackOutputs, release_values
from infra.settings import Settings
from infra.settings_errors import Problem

SECONDS = 60
# Placeholders for outputs of resources that do not exist yet.
PLACEHOLDERS = StackOutputs(
    image="example.invalid/paddle-training@sha256:" + "0" * 64,
    file_system_id="fs-00000000000000000",
    access_point_id="fsap-00000000000000000",
    file_system_host="efs.example.internal",
    bucket="the-stacks-bucket",
)
# Messages of the templates: `paddle-training.fault` in _validate.tpl.
_TEMPLATE_FAULT = re.compile(r"(.+?) is (.*?), but must be (.*?): (.*?)\. (?:Fix: )?(.*)\.")
# Messages of the schema: `at '/training/batchSize': got string, want integer`.
_SCHEMA_FAULT = re.compile(r"at '/?([^']*)': (.*)")
_UNKNOWN_VALUE = re.compile(r"additional properties '([^']+)'.* not allowed")


def run_helm_template(
    settings: Settings, user: Mapping[str, Any], folder: Path, image: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with the values of a stack's release; return its exit code, stdout and stderr.

    `user` are the values from `chart_values.user_values`. If `image` is empty, a placeholder is used.

    Raises:
        FileNotFoundError: helm is not on PATH.
    """
    outputs = PLACEHOLDERS if image == "" else dataclasses.replace(PLACEHOLDERS, image=image)
    argv = ["helm", "template", settings.release.name, str(folder / CHART)]
    # Without --kube-version, helm assumes the Kubernetes version it was built for.
    argv += ["--namespace", settings.namespace.name, "--kube-version", f"{settings.cluster.version}.0"]
    values = json.dumps(release_values(settings, outputs, user))  # JSON is valid YAML
    return subprocess.run(
        [*argv, "--values", "-"], input=values, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def find_rejections(
    settings: Settings, user: Mapping[str, Any], folder: Path, image: str = ""
) -> Iterator[Problem]:
    """Yield a Problem for each value that the chart rejects; arguments as of `run_helm_template`."""
    done = run_helm_template(settings, user, folder, image)
    message = done.stderr.strip() if done.returncode else ""
    lines = [line.strip() for line in message.splitlines()]
    faults = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    faults = [line for line in faults if not line.endswith(": validation failed")]
    schema = json.loads((folder / CHART / "values.schema.json").read_text(encoding="utf-8"))
    for line in faults if faults else [message] * (message != ""):
        yield _problem(line, user, schema)


def _problem(line: str, values: Mapping[str, Any], schema: Mapping[str, Any]) -> Problem:
    fix = "correct it in the stack's valuesFiles or values"
    if found := _TEMPLATE_FAULT.fullmatch(line):
        key, text, limit, reason, better_fix = found.groups()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        return Problem(key, value, limit, reason, better_fix)
    if found := _SCHEMA_FAULT.fullmatch(line):
        path, value, node = [key for key in found[1].split("/") if key], values, schema
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else value
            node = node.get("properties", {}).get(key, node)
        if unknown := _UNKNOWN_VALUE.fullmatch(found[2]):
            name, known = unknown[1], list(node.get("properties", {}))
            close = difflib.get_close_matches(name, known, 1)
            return Problem(
                ".".join([*path, name]),
                value.get(name),
                f"one of {', '.join(known)}",
                "the chart has no such value",
                f"did you mean {close[0]}?" if close else fix,
            )
        if path:
            return Problem(".".join(path), value, found[2], node.get("description", ""), fix)
    return Problem("values", line, "values of charts/paddle-training", "helm rejects them", fix)
