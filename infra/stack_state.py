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
    """Return the outputs of each resource in the state, by `<type>::<name>`.

    Raises:
        pulumi.RunError: the engine has no such call.
    """
    name = f"{pulumi.get_organization()}/{project}/{stack}"
    try:
        found = pulumi.runtime.invoke(READ_STATE, {"stackName": name}).value.get("outputs", {})
    except Exception as error:
        if "unrecognized function" not in str(error):
            raise
        raise pulumi.RunError(
            f"this Pulumi engine cannot read the state of its own stack ({READ_STATE}), so what an earlier destroy "
            f"kept cannot be told from what the stack has; nothing was changed. Fix: use Pulumi {TESTED}"
        ) from error
    return {"::".join(urn.split("::")[2:]).rpartition("$")[2]: each["outputs"] for urn, each in found.items()}
