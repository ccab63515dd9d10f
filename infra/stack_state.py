"""Read the stack's state, as the last update left it, through the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

READ_STATE = "pulumi:pulumi:readStackResourceOutputs"


def read_outputs(project: str, stack: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the outputs of each resource in the state, by `<type>::<name>`."""
    name = f"{pulumi.get_organization()}/{project}/{stack}"
    found = pulumi.runtime.invoke(READ_STATE, {"stackName": name}).value.get("outputs", {})
    return {"::".join(urn.split("::")[2:]).rpartition("$")[2]: each["outputs"] for urn, each in found.items()}
