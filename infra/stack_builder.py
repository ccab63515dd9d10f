"""Build a stack: read its inputs, check them, then create the resources of its target.

Target kubeconfig has only the namespace and the release, on an existing cluster; `target_aws.py` has the other.

All checks come before the first resource.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi

from infra import chart_check, chart_values, cluster_preflight, naming
from infra.settings import Settings
from infra.settings_errors import SettingsError
from infra.stack_inputs import StackInputs, read_stack_inputs
from infra.training import DATA_LOSS_NOTE, Training


def check_chart_values(inputs: StackInputs) -> None:
    """Check the chart values by rendering the chart, with placeholders for outputs that do not exist yet.

    Without helm on PATH, the check is skipped with a warning.

    Raises:
        SettingsError: the chart rejects the values.
    """
    settings = inputs.settings
    if settings.compute == "off" or settings.release.keep_manual_values:
        return  # this update installs no release, or one with other values
    try:
        problems = list(
            chart_check.find_rejections(settings, inputs.user_values, inputs.folder, inputs.image)
        )
    except FileNotFoundError:
        pulumi.log.warn(
            "chart values were not checked: helm is not on PATH, so mistakes in them show only when the "
            "release is installed. Fix: install helm"
        )
        return
    if problems:
        raise SettingsError(problems)


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


def build_stack(
    settings: Settings, project: str, stack: str, folder: Path, region: str = ""
) -> dict[str, pulumi.Input[Any]]:
    """Create the resources of a stack and return its outputs.

    Raises:
        SettingsError: a setting is wrong in a way that can be known before the first resource; no resource
            was registered.
    """
    inputs = read_stack_inputs(settings, project, stack, folder)
    check_chart_values(inputs)
    if settings.target == "kubeconfig":
        cluster_preflight.check_cluster(settings, folder, inputs.owner, inputs.uses_host_ports)
        return create_kubeconfig_stack(inputs)
    # Imported only for this target: loading the AWS SDK's types takes longer than everything else together.
    from infra.target_aws import create_aws_stack  # noqa: PLC0415

    return create_aws_stack(inputs, region)
