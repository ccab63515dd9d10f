"""Puts a stack together.

Settings → checks → components → outputs. All checks come before the first resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi

from infra import chart_check, chart_values, checks, naming, preflight
from infra.problems import SettingsError
from infra.settings import Settings
from infra.training import LOST, Training, TrainingArgs, wait_seconds


@dataclass(frozen=True)
class Plan:
    """Everything that is known before the first resource."""

    settings: Settings
    project: str
    stack: str
    folder: Path
    image: str
    own_values: Mapping[str, Any]
    effective: Mapping[str, Any]

    @property
    def privileged(self) -> bool:
        """Whether the pods need host ports."""
        return self.effective.get("hostPorts") is True

    def training_args(self, values: pulumi.Input[Mapping[str, Any]], **more: Any) -> TrainingArgs:
        """What every target gives the release alike."""
        release, namespace = self.settings.release, self.settings.namespace
        labels = {
            "app.kubernetes.io/managed-by": "pulumi",
            preflight.OWNER_LABEL: owner(self.project, self.stack),
        }
        return TrainingArgs(
            namespace=namespace.name,
            create_namespace=namespace.create,
            labels=labels,
            privileged=self.privileged,
            release=release.name,
            values=values,
            project_folder=self.folder,
            wait_seconds=wait_seconds(self.effective) if release.wait else None,
            keep_manual_values=release.keep_manual_values,
            **more,
        )


def owner(project: str, stack: str) -> str:
    """The value of the namespace's label that says whose it is."""
    return naming.prefix(project, stack)[:63].strip("-")


def plan(settings: Settings, project: str, stack: str, folder: Path) -> Plan:
    """Reads the files that the settings name and checks what spans settings and values.

    Raises:
        SettingsError: a file is absent or wrong, or the values cannot work on this stack.
    """
    effective = chart_values.effective(settings, folder)
    problems = list(checks.value_problems(settings, effective))
    if problems:
        raise SettingsError(problems)
    return Plan(
        settings=settings,
        project=project,
        stack=stack,
        folder=folder,
        image=naming.image_reference(settings.image, folder / "launcher"),
        own_values=chart_values.own_values(settings, folder),
        effective=effective,
    )


def ask_the_chart(known: Plan) -> None:
    """Renders the chart with placeholders for what only the resources know.

    Raises:
        SettingsError: the chart refuses the values.
    """
    settings = known.settings
    if settings.compute == "off" or settings.release.keep_manual_values:
        return  # no release, or one with other values
    try:
        problems = list(chart_check.refused(settings, known.own_values, known.folder, known.image))
    except FileNotFoundError:
        pulumi.log.warn("helm is not on PATH: mistakes in the chart's values show only when it is installed")
        return
    if problems:
        raise SettingsError(problems)


def on_existing_cluster(known: Plan) -> dict[str, pulumi.Input[Any]]:
    """Target kubeconfig: only the release. Returns the stack's outputs."""
    settings = known.settings
    facts = chart_values.Facts(image=known.image)
    path = Path(settings.kubeconfig.path)
    training = Training(
        naming.prefix(known.project, known.stack),
        known.training_args(
            chart_values.build(settings, facts, known.own_values),
            # As written where that is unambiguous: the state then reads the same from every clone.
            kubeconfig=str(path if path.is_absolute() else known.folder / path.expanduser()),
            context=settings.kubeconfig.context,
        ),
    )
    return {
        "namespace": settings.namespace.name,
        "release": training.release.name,
        "image": known.image,
        "destroyLoses": LOST,
    }


def build(
    settings: Settings, project: str, stack: str, folder: Path, region: str = ""
) -> dict[str, pulumi.Input[Any]]:
    """Makes the stack and returns its outputs. `region` is the one of target aws.

    Raises:
        SettingsError: something is wrong that can be known before the first resource; none was registered
            then.
    """
    known = plan(settings, project, stack, folder)
    ask_the_chart(known)
    if settings.target == "kubeconfig":
        preflight.check_cluster(settings, folder, owner(project, stack), known.privileged)
        return on_existing_cluster(known)
    # Imported only where it is used: the AWS SDK's types take longer to load than all else together.
    from infra import aws_stack  # noqa: PLC0415

    return aws_stack.build(known, region)
