"""Read the stack's state, as the last update left it, through the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

# A function of the engine itself that Pulumi's reference does not list. It is in the engine's sources
# (pkg/resource/deploy/builtins.go) since the first releases of version 3; it ran with version TESTED.
READ_STATE = "pulumi:pulumi:readStackResourceOutputs"
TESTED = "3.259.0"


def read_outputs(project: str, stack: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the resources in the state: `<type>::<name>` → the resource's outputs.

    Raises:
        pulumi.RunError: this engine has no function that reads the state.
    """
    name = f"{pulumi.get_organization()}/{project}/{stack}"
    try:
        found = pulumi.runtime.invoke(READ_STATE, {"stackName": name}).value.get("outputs", {})
    except Exception as error:
        if "unrecognized function" not in str(error):
            raise
        raise pulumi.RunError(
            f"this Pulumi engine has no function {READ_STATE}, so the program cannot read which resources are in the "
            f"stack's state and which ones an earlier destroy kept; nothing was changed. Fix: use Pulumi {TESTED}"
        ) from error
    return {"::".join(urn.split("::")[2:]).rpartition("$")[2]: each["outputs"] for urn, each in found.items()}
