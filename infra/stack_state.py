"""Read the stack's state, as the last update left it, through the engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pulumi

# A function of the engine itself that Pulumi's reference does not list. It is in the engine's sources
# (pkg/resource/deploy/builtins.go) since the first releases of version 3; it ran with version TESTED.
READ_STATE = "pulumi:pulumi:readStackResourceOutputs"
TESTED = "3.259.0"

# The engine saves the state during an update, also while it answers this call. With a backend in files
# (pulumi login file://…), "failed to load checkpoint: EOF" was seen then; the next read finds a complete state.
HALF_WRITTEN = "failed to load checkpoint"
PAUSES = (0.1, 0.3, 1.0, 3.0)  # seconds before each further read


def read_outputs(project: str, stack: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the resources in the state: `<type>::<name>` → the resource's outputs.

    Raises:
        pulumi.RunError: this engine has no function that reads the state.
    """
    name = f"{pulumi.get_organization()}/{project}/{stack}"
    try:
        found = _read_state(name)
    except Exception as error:
        if "unrecognized function" not in str(error):
            raise
        raise pulumi.RunError(
            f"this Pulumi engine has no function {READ_STATE}, so the program cannot read which resources are in the "
            f"stack's state and which ones an earlier destroy kept; nothing was changed. Fix: use Pulumi {TESTED}"
        ) from error
    return {"::".join(urn.split("::")[2:]).rpartition("$")[2]: each["outputs"] for urn, each in found.items()}


def _read_state(name: str) -> Mapping[str, Any]:
    """Return urn → resource of the stack `name`; read again, a few times, if the state was being written."""
    for seconds in PAUSES:
        try:
            return dict(pulumi.runtime.invoke(READ_STATE, {"stackName": name}).value.get("outputs", {}))
        except Exception as error:
            if HALF_WRITTEN not in str(error):
                raise
            time.sleep(seconds)
    return dict(pulumi.runtime.invoke(READ_STATE, {"stackName": name}).value.get("outputs", {}))
