"""Build a stack: read its inputs, check them, then create the resources of its target.

All checks come before the first resource.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi

from infra import chart_check, cluster_preflight
from infra.settings import Settings
from infra.settings_errors import SettingsError
from infra.stack_inputs import StackInputs, read_stack_inputs
from infra.target_kubeconfig import create_kubeconfig_stack


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
