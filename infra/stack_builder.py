"""Build a stack: read its inputs, check them, then create the resources of its target.

For target `kubeconfig` this module creates only the namespace and the release, on an existing cluster. For target
`aws`, `target_aws.py` creates the AWS resources too.

All checks come before the first resource. `pulumi destroy` does not run the program, so it needs none of the checks and
works even if the cluster no longer exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi

from infra import chart_values, training
from infra.chart_values import StackInputs
from infra.settings import Settings, SettingsError
from infra.training import DATA_LOSS_NOTE, ENFORCE_LABEL, OWNER_LABEL, Training


def check_cluster(inputs: StackInputs) -> None:
    """Check that the stack can be installed on the existing cluster of the settings.

    If the API server rejects a request with status 403, what depends on its answer is not checked: a user who may not
    read namespaces may still be allowed to install a release.

    Raises:
        SettingsError: the cluster cannot be read for another reason; the namespace belongs to another owner or does not
            admit the pods; or `release.keepManualValues` is true, but the release does not exist.
    """
    settings, name = inputs.settings, inputs.settings.namespace.name
    kubeconfig, context, release = inputs.kubeconfig, settings.kubeconfig.context, settings.release

    def read_labels(api: Any) -> dict[str, str] | None:
        try:
            return dict(api.read_namespace(name, _request_timeout=training.TIMEOUT).metadata.labels or {})
        except Exception as error:
            if getattr(error, "status", 0) == 404:
                return None
            raise

    try:
        labels = training.read_cluster(kubeconfig, context, read_labels)
        if text := namespace_problem(inputs, labels):
            raise SettingsError([settings.problem("namespace.name", text)])
        if release.keep_manual_values and not training.read_revisions(
            kubeconfig, context, name, release.name
        ):
            why = f"namespace {name} has no release {release.name}"
            text = f"false until the release exists: {why}. Fix: set it to false for the first pulumi up"
            raise SettingsError([settings.problem("release.keepManualValues", text)])
    except training.UnreadableError as error:
        if error.status == 403:
            return
        fix = (
            "start the cluster (make cluster for the local one) or correct the kubeconfig. If the cluster no longer "
            "exists, remove its state: PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy --refresh"
        )
        text = f"the context of a reachable cluster in {settings.kubeconfig.path}: {error}. Fix: {fix}"
        raise SettingsError([settings.problem("kubeconfig.context", text)]) from error


def namespace_problem(inputs: StackInputs, labels: Mapping[str, str] | None) -> str:
    """Return why the stack cannot use its namespace, as the text of a Problem; an empty text if it can.

    `labels` are the labels of the namespace, or None if it does not exist.
    """
    name, create = inputs.settings.namespace.name, inputs.settings.namespace.create
    level = (labels or {}).get(ENFORCE_LABEL)
    if create and labels is not None and labels.get(OWNER_LABEL) != inputs.owner:
        holder = labels.get(OWNER_LABEL)
        why = f"it belongs to stack {holder}" if holder is not None else "it was not created by this stack"
        return (
            f"a namespace that does not exist yet, or that this stack created: {why}; a destroy of this stack would "
            "delete it with everything in it. Fix: use another name, or set namespace.create to false to use it "
            "without owning it"
        )
    if not create and inputs.uses_host_ports and level in ("baseline", "restricted"):
        return (
            f"a namespace whose Pod Security level admits host ports: it enforces {level}, and hostPorts is true. Fix: "
            f"kubectl label namespace {name} {ENFORCE_LABEL}=privileged --overwrite, or hostPorts: false"
        )
    return ""


def create_kubeconfig_stack(inputs: StackInputs) -> dict[str, pulumi.Input[Any]]:
    """Create the namespace (`namespace.create`) and the release on the cluster of `kubeconfig.context`.

    Return the stack's outputs.
    """
    settings = inputs.settings
    made = Training(
        inputs,
        values=inputs.release_values(),
        kubeconfig=inputs.kubeconfig,
        context=settings.kubeconfig.context,
    )
    return {
        "namespace": settings.namespace.name,
        "release": made.release.name,
        "image": inputs.image,
        "destroyLoses": DATA_LOSS_NOTE,
    }


def build_stack(settings: Settings, project: str, stack: str, folder: Path) -> dict[str, pulumi.Input[Any]]:
    """Create the resources of a stack and return its outputs.

    Raises:
        SettingsError: a check found an invalid setting. All checks come before the first resource, so no resource was
            registered.
    """
    inputs = chart_values.read_stack_inputs(settings, project, stack, folder)
    try:
        chart_values.check_chart(inputs)
    except FileNotFoundError:
        pulumi.log.warn(
            "chart values were not checked: helm is not on PATH, so mistakes in them show only when the "
            "release is installed. Fix: install helm"
        )
    if settings.target == "kubeconfig":
        check_cluster(inputs)
        return create_kubeconfig_stack(inputs)
    # Imported only for this target: loading the AWS SDK's types takes longer than everything else together.
    from infra.target_aws import create_aws_stack  # noqa: PLC0415

    return create_aws_stack(inputs)
