"""Build the chart values of a stack from its settings and outputs, and check them. Imports no pulumi.

The values come from three sources. First come the stack's own values (image, storage, processor of the nodes), then the
files of `valuesFiles` in their order, then the setting `values`. Later sources override earlier ones, as with
`helm -f`. A null restores the default, because pulumi-kubernetes does not pass nulls on to helm. The default is the
stack's own value or, for a key without such a value, the chart's default. A null in `NO_LIMIT` is an error.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import naming
from infra.aws_facts import GPU_TAINT
from infra.iam_policies import MODELS, SOURCES
from infra.settings import Problem, Settings, SettingsError, merge_values, read_yaml

CHART = "charts/paddle-training"
BUCKET_PLACEHOLDER = "{bucket}"

NO_LIMIT = (("training", "deadlineSeconds"), ("workDir", "sizeLimit"))
"""Values for which null means "no limit". A stack cannot set them to null, because the Release of pulumi-kubernetes
omits nulls, even with `allow_null_values` (tried in `values` and in `value_yaml_files`).
"""


@dataclass(frozen=True)
class StackOutputs:
    """Outputs of the stack's resources that become chart values. A field is "" if the stack has no such resource."""

    image: str
    file_system_id: str = ""
    access_point_id: str = ""
    file_system_host: str = ""
    bucket: str = ""


# Placeholders for outputs of resources that do not exist yet.
PLACEHOLDERS = StackOutputs(
    image="example.invalid/paddle-training@sha256:" + "0" * 64,
    file_system_id="fs-00000000000000000",
    access_point_id="fsap-00000000000000000",
    file_system_host="efs.example.internal",
    bucket="the-stacks-bucket",
)


@dataclass(frozen=True)
class StackInputs:
    """What is known about a stack before its resources are created: settings, names, and chart values.

    Attributes:
        folder: the project folder; paths in the settings are relative to it.
        image: the image of all pods; empty if the setting `image` is empty.
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
    def prefix(self) -> str:
        """Return the prefix of the names of the stack's resources."""
        return naming.prefix(self.project, self.stack)

    @property
    def uses_host_ports(self) -> bool:
        """Return whether the pods use host ports, which only a privileged namespace admits."""
        return self.effective_values.get("hostPorts") is True

    @property
    def owner(self) -> str:
        """Return the text that identifies this stack in the label of the namespace that the stack owns."""
        return self.prefix[:63].strip("-")

    @property
    def kubeconfig(self) -> str:
        """Return the path of the kubeconfig. A relative path in the settings is resolved in the project folder.

        A path that begins with `~` is resolved in the user's home folder. An absolute path is returned as the user
        wrote it, so that the stack's state does not differ between clones.
        """
        path = Path(self.settings.kubeconfig.path)
        return str(path if path.is_absolute() else self.folder / path.expanduser())

    def release_values(self, *outputs: str) -> dict[str, Any]:
        """Return the values of the Helm release.

        `outputs` are values for the fields of StackOutputs, in order, without the first field `image`.
        """
        return release_values(self.settings, StackOutputs(self.image, *outputs), self.user_values)


def read_stack_inputs(settings: Settings, project: str, stack: str, folder: Path) -> StackInputs:
    """Read the files that the settings refer to, and check the rules between settings and chart values.

    Raises:
        SettingsError: a file is missing or invalid, or a chart value conflicts with the settings.
    """
    user = user_values(settings, folder)
    effective = with_defaults(user, folder)
    if problems := list(value_problems(settings, effective)):
        raise SettingsError(problems)
    image = naming.image_reference(settings.image, folder / "launcher")
    return StackInputs(settings, project, stack, folder, image, user, effective)


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def user_values(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """Return the user's chart values: the files of `valuesFiles` in their order, overridden by the setting `values`.

    Keys whose value is null are left out.

    Raises:
        SettingsError: a file does not exist, is not YAML or contains no mapping, or a value of NO_LIMIT is null.
    """
    merged: dict[str, Any] = {}
    for name in settings.values_files:
        merged = merge_values(merged, read_yaml(project_folder / name, "paddle-training:valuesFiles"))
    merged = merge_values(merged, settings.values)
    why = "Pulumi omits a null, so the chart's default would apply"
    fix = "set it to a very large value, or remove it to get the default"
    problems = [
        Problem(f"{section}.{key}", "null", f"a value other than null: {why}. Fix: {fix}")
        for section, key in NO_LIMIT
        if isinstance(given := merged.get(section), Mapping) and given.get(key, "") is None
    ]
    if problems:
        raise SettingsError(problems)
    return _without_nulls(merged)


def with_defaults(values: Mapping[str, Any], project_folder: Path) -> dict[str, Any]:
    """Return chart values with the chart's defaults filled in."""
    return merge_values(read_yaml(project_folder / CHART / "values.yaml", CHART), values)


def storage_values(settings: Settings, outputs: StackOutputs) -> dict[str, Any]:
    """Return the chart value `storage` of this stack."""
    storage = settings.storage
    server = storage.server if storage.server != "" else outputs.file_system_host
    details = {
        "efs-csi": (
            "efsCsi",
            {"fileSystemId": outputs.file_system_id, "accessPointId": outputs.access_point_id},
        ),
        "nfs": ("nfs", {"server": server, "path": storage.path if storage.path != "" else "/"}),
        "hostPath": ("hostPath", {"path": storage.path}),
        "existingClaim": ("existingClaim", {"name": storage.claim}),
    }
    key, content = details[storage.type]
    return {"type": storage.type, key: content}


def _fill_in_bucket(value: Any, bucket: str) -> Any:
    if isinstance(value, str):
        return value.replace(BUCKET_PLACEHOLDER, bucket) if bucket != "" else value
    if isinstance(value, Mapping):
        return {key: _fill_in_bucket(item, bucket) for key, item in value.items()}
    return [_fill_in_bucket(item, bucket) for item in value] if isinstance(value, list) else value


def release_values(settings: Settings, outputs: StackOutputs, user: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the Helm release. `user` are the values that the function `user_values` returned."""
    base: dict[str, Any] = {"image": outputs.image, "storage": storage_values(settings, outputs)}
    if settings.target == "aws" and settings.nodes.is_arm:
        base["scheduling"] = {"architecture": "arm64"}
    filled: dict[str, Any] = _fill_in_bucket(merge_values(base, user), outputs.bucket)
    if settings.storage.type == "efs-csi":
        # The file-system policy admits only clients with IAM (infra/policies.yaml); a user's list would replace it.
        efs = filled["storage"].get("efsCsi") if isinstance(filled["storage"], dict) else None
        if isinstance(efs, dict) and isinstance(efs.setdefault("mountOptions", []), list):
            efs["mountOptions"] = list(dict.fromkeys([*efs["mountOptions"], "iam"]))
    if settings.target == "aws" and settings.nodes.has_gpus:
        # The data pods (and the pod of `helm test`) request no GPU, but run on the GPU nodes: these have CPUs and
        # memory to spare while their training pods wait for the data, and the system node is too small. So the
        # toleration is added to the user's, which would replace it as any list does.
        toleration = {"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}
        scheduling = filled.setdefault("scheduling", {})
        if isinstance(scheduling, dict) and isinstance(scheduling.setdefault("tolerations", []), list):
            scheduling["tolerations"].append(toleration)  # else the chart's schema rejects the value
    return filled


def value_problems(settings: Settings, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each chart value that conflicts with the settings; the chart's schema checks the rest."""
    training, data, network = values.get("training") or {}, values.get("data") or {}, settings.network
    source, bucket = str(data.get("source", "")), f"s3://{BUCKET_PLACEHOLDER}/"
    no_way_out = settings.target == "aws" and network.nat == "none" and network.vpc_id == ""
    if no_way_out and source.startswith(("https://", "http://")):
        limit, why = (
            "s3:// or file:// with network.nat none",
            "without NAT, the data pod reaches nothing outside AWS",
        )
        fix = "upload the source to the bucket (artifacts.uploads) and set data.source to s3://{bucket}/sources/…"
        yield Problem("data.source", source, f"{limit}: {why}. Fix: {fix}")
    for key, url, folders in (
        ("data.source", source, (SOURCES, MODELS)),
        ("data.testSource", str(data.get("testSource", "")), (SOURCES, MODELS)),
        ("training.initModelPath", str(training.get("initModelPath", "")), (MODELS,)),
        ("training.exportTo", f"{training.get('exportTo', '')}/", (MODELS,)),
    ):
        allowed = tuple(f"{bucket}{folder}" for folder in folders)
        if url.startswith(bucket) and not url.startswith(allowed):
            limit, why = f"below {' or '.join(allowed)}", "the pods' role allows no other keys"
            fix = "change the address, and the keys of artifacts.uploads with it"
            yield Problem(key, url.rstrip("/"), f"{limit}: {why}. Fix: {fix}")


def requested_by(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the requests of a pod's `resources`; a missing request equals the limit, as in Kubernetes."""
    return {**((resources or {}).get("limits") or {}), **((resources or {}).get("requests") or {})}


def pod_size_problems(
    values: Mapping[str, Any], machines: Mapping[str, Mapping[str, str]]
) -> Iterator[Problem]:
    """Yield a problem for each request of a pod that is larger than a node of one of the instance types.

    `values` have the chart's defaults filled in. `machines` maps each instance type to what a node of this type has:
    the quantities of cpu, memory and GPUs.
    """
    # Takes most of a second.
    from kubernetes.utils.quantity import parse_quantity  # noqa: PLC0415

    for key, section in (("resources", values), ("data.resources", values.get("data") or {})):
        for name, wanted in requested_by(section.get("resources")).items():
            for kind, machine in machines.items():
                try:
                    fits = name not in machine or parse_quantity(wanted) <= parse_quantity(machine[name])
                except ValueError:
                    continue  # the chart's schema rejects it
                if not fits:
                    why = f"a node of type {kind} has no more, so the pod would never start"
                    example = " with GPUs, for example g6.xlarge," if machine[name] == "0" else ""
                    fix = f"use larger types{example} in nodes.instanceTypes, or lower the value"
                    yield Problem(f"{key}: {name}", wanted, f"at most {machine[name]}: {why}. Fix: {fix}")


def run_helm_template(
    settings: Settings, user: Mapping[str, Any], folder: Path, image: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with the values of a stack's release; return its exit code, stdout and stderr.

    `user` are the values that `user_values` returned. If `image` is empty, a placeholder is used as the image. helm
    contacts no cluster.

    Raises:
        FileNotFoundError: helm is not on PATH.
        subprocess.TimeoutExpired: helm has not finished after 60 s.
    """
    outputs = PLACEHOLDERS if image == "" else dataclasses.replace(PLACEHOLDERS, image=image)
    argv = ["helm", "template", settings.release.name, str(folder / CHART)]
    # Without --kube-version, helm assumes the Kubernetes version it was built for.
    argv += ["--namespace", settings.namespace.name, "--kube-version", f"{settings.cluster.version}.0"]
    values = json.dumps(release_values(settings, outputs, user))  # JSON is valid YAML
    return subprocess.run(
        [*argv, "--values", "-"], input=values, capture_output=True, text=True, timeout=60, check=False
    )


def check_chart(inputs: StackInputs) -> None:
    """Check the values of the release by rendering the chart, with placeholders for outputs that do not exist yet.

    The rules for values are in the chart (its schema and `_validate*.tpl`). Without this check, helm would apply them
    only when it installs the release. On target aws, that is half an hour after the first resource was created.

    With `compute: off` or `release.keepManualValues`, this function checks nothing.

    Raises:
        SettingsError: the chart rejects the values; the error contains helm's message.
        FileNotFoundError: helm is not on PATH.
        subprocess.TimeoutExpired: helm has not finished after 60 s.
    """
    settings = inputs.settings
    if settings.compute == "off" or settings.release.keep_manual_values:
        return  # this update installs no release, or one with other values
    done = run_helm_template(settings, inputs.user_values, inputs.folder, inputs.image)
    if done.returncode != 0:
        raise SettingsError(
            text="the chart rejects the stack's values; no resource was created or changed.\n"
            f"{done.stderr.strip()}\nFix: correct the stack's valuesFiles or values"
        )
