"""`StackInputs`: everything about a stack that is known before its first resource.

`stack_builder.py` reads it once; both targets build from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import chart_values, naming, settings_rules
from infra.settings import Settings
from infra.settings_errors import SettingsError


@dataclass(frozen=True)
class StackInputs:
    """The settings of a stack, its names, and the chart values that its files define.

    Attributes:
        folder: the project folder; paths in the settings are relative to it.
        image: the image of all pods, or an empty text.
        user_values: chart values from `valuesFiles` and `values`.
        effective_values: `user_values` with the chart's defaults filled in.
    """

    settings: Settings
    project: str
    stack: str
    folder: Path
    image: str
    user_values: Mapping[str, Any]
    effective_values: Mapping[str, Any]

    @property
    def uses_host_ports(self) -> bool:
        """Return whether the pods use host ports, which only a privileged namespace admits."""
        return self.effective_values.get("hostPorts") is True

    @property
    def owner(self) -> str:
        """Return the value of the namespace's label that identifies the stack that owns it."""
        return naming.prefix(self.project, self.stack)[:63].strip("-")


def read_stack_inputs(settings: Settings, project: str, stack: str, folder: Path) -> StackInputs:
    """Read the files that the settings refer to, and check the rules between settings and chart values.

    Raises:
        SettingsError: a file is missing or invalid, or the values cannot work on this stack.
    """
    effective = chart_values.effective_values(settings, folder)
    problems = list(settings_rules.value_problems(settings, effective))
    if problems:
        raise SettingsError(problems)
    return StackInputs(
        settings=settings,
        project=project,
        stack=stack,
        folder=folder,
        image=naming.image_reference(settings.image, folder / "launcher"),
        user_values=chart_values.user_values(settings, folder),
        effective_values=effective,
    )
