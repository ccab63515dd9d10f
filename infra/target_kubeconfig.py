"""Target kubeconfig: only the namespace and the release, on an existing cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi

from infra import chart_values, naming
from infra.stack_inputs import StackInputs
from infra.training import DATA_LOSS_NOTE, Training


def create_kubeconfig_stack(inputs: StackInputs) -> dict[str, pulumi.Input[Any]]:
    """Create the release on the cluster of `kubeconfig.context`, and return the stack's outputs."""
    settings = inputs.settings
    outputs = chart_values.StackOutputs(image=inputs.image)
    path = Path(settings.kubeconfig.path)
    training = Training(
        naming.prefix(inputs.project, inputs.stack),
        inputs,
        values=chart_values.release_values(settings, outputs, inputs.user_values),
        # An absolute path stays as written, so that the state is the same from every clone.
        kubeconfig=str(path if path.is_absolute() else inputs.folder / path.expanduser()),
        context=settings.kubeconfig.context,
    )
    return {
        "namespace": settings.namespace.name,
        "release": training.release.name,
        "image": inputs.image,
        "destroyLoses": DATA_LOSS_NOTE,
    }
