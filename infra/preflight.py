"""Looks at an existing cluster before any resource is registered: changes nothing, waits at most a few
seconds.

Used by target kubeconfig, in previews and updates alike. A destroy does not run the program, so a cluster
that is gone never stands in its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.problems import P, Problem, SettingsError, wrong
from infra.settings import Settings

# One try, five seconds to connect and five for the answer: a preview should fail while its reader still looks
# at it.
TIMEOUT = (5, 5)

OWNER_LABEL = "paddle-training/stack"
ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"


def kubeconfig_file(settings: Settings, project_folder: Path) -> Path:
    """The kubeconfig's path; a relative one is relative to the project."""
    return project_folder / Path(settings.kubeconfig.path).expanduser()


def read_kubeconfig(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """The kubeconfig, known to hold the wanted context.

    Raises:
        SettingsError: the file is absent or no kubeconfig, or it has no such context.
    """
    known = settings.kubeconfig
    mend = "Start the local cluster (make cluster), or set the path of your cluster's kubeconfig"
    try:
        loaded = yaml.safe_load(kubeconfig_file(settings, project_folder).read_text(encoding="utf-8"))
        listed = loaded.get("contexts") if isinstance(loaded, Mapping) else None
        contexts, why = (listed, "") if isinstance(listed, list) else ([], "it lists no contexts")
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    except (yaml.YAMLError, UnicodeDecodeError):
        why = "it is no YAML"
    if why != "":
        raise SettingsError(
            [wrong("kubeconfig.path", known.path, f"a readable kubeconfig file: {why}. {mend}")]
        )
    names = [str(context.get("name")) for context in contexts if isinstance(context, Mapping)]
    if known.context not in names:
        limit = f"one of {', '.join(names)}" if names else "a context of that file"
        said = f"{limit}: {known.path} has no such context. Name one; the current one is never used by itself"
        raise SettingsError([wrong("kubeconfig.context", known.context, said)])
    return dict(loaded)


def _unreachable(settings: Settings, server: str, why: str) -> SettingsError:
    problem = Problem(
        f"{P}kubeconfig.context",
        settings.kubeconfig.context,
        "a cluster that answers",
        f"{server}: {why}",
        "start the cluster (make cluster for the local one) or correct the kubeconfig; to drop the state of "
        "a cluster that is gone: PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy --refresh",
    )
    return SettingsError([problem])


def configuration(kubeconfig: Mapping[str, Any], context: str) -> Any:
    """Return the client's configuration for one context: every request is tried once.

    Raises:
        kubernetes.config.ConfigException: the kubeconfig is wrong.
    """
    # The client takes over a second to import, and no other target or test needs it.
    from kubernetes import client, config  # noqa: PLC0415

    holder = client.Configuration()
    config.load_kube_config_from_dict(kubeconfig, context=context, client_configuration=holder)
    holder.retries = False
    return holder


def check_cluster(settings: Settings, project_folder: Path, owner: str, privileged: bool) -> None:
    """Asks the cluster whether the stack could work on it.

    Args:
        settings: the stack's, with target kubeconfig.
        project_folder: what a relative kubeconfig path is relative to.
        owner: this stack's name, as the namespace's label `paddle-training/stack` carries it.
        privileged: whether the pods need host ports, which only a privileged namespace admits.

    Raises:
        SettingsError: the kubeconfig is wrong, the API does not answer within seconds, the namespace is
            somebody else's or absent, or its Pod Security refuses the pods, or a release whose values are to
            be kept is absent.
    """
    loaded = read_kubeconfig(settings, project_folder)
    from kubernetes import client, config  # noqa: PLC0415
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        holder = configuration(loaded, settings.kubeconfig.context)
    except (config.ConfigException, ValueError, OSError) as error:
        raise _unreachable(settings, "the kubeconfig", " ".join(str(error).split())) from error
    with client.ApiClient(holder) as api:
        core = client.CoreV1Api(api)
        try:
            namespace = core.read_namespace(settings.namespace.name, _request_timeout=TIMEOUT)
        except ApiException as error:
            if error.status == 401:
                raise _unreachable(
                    settings, str(holder.host), "it refuses these credentials (401)"
                ) from error
            if error.status != 404:
                return  # an account that may not read namespaces may still be allowed to release into one
            namespace = None
        except (HTTPError, OSError) as error:
            raise _unreachable(settings, str(holder.host), _short(error)) from error
        labels = None if namespace is None else dict(namespace.metadata.labels or {})
        problems = namespace_problems(settings, labels, owner, privileged)
        if problems:
            raise SettingsError(problems)
        if settings.release.keep_manual_values and not _has_release(core, settings):
            said = (
                f"false until the release is there: namespace {settings.namespace.name} has no release "
                f"{settings.release.name} whose values could be kept. Run pulumi up with false first"
            )
            raise SettingsError([wrong("release.keepManualValues", True, said)])


def _short(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return " ".join(str(reason if reason is not None else error).split()).rpartition(": ")[2]


def _has_release(core: Any, settings: Settings) -> bool:
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415

    selector = f"owner=helm,name={settings.release.name}"
    try:
        found = core.list_namespaced_secret(
            settings.namespace.name, label_selector=selector, limit=1, _request_timeout=TIMEOUT
        )
    except ApiException:
        return False
    return len(found.items) > 0


def namespace_problems(
    settings: Settings, labels: Mapping[str, str] | None, owner: str, privileged: bool
) -> list[Problem]:
    """What is wrong with the namespace as it is. Pure.

    Args:
        settings: the stack's.
        labels: the namespace's labels, or None when there is no such namespace.
        owner: this stack's name.
        privileged: whether the pods need host ports.
    """
    name, create, said = settings.namespace.name, settings.namespace.create, ""
    level = (labels or {}).get(ENFORCE_LABEL)
    if create and labels is not None and labels.get(OWNER_LABEL) != owner:
        holder = labels.get(OWNER_LABEL)
        whose = f"belongs to stack {holder}" if holder is not None else "was not made by this stack"
        said = (
            f"a namespace that is not there yet, or this stack's own: it is there and {whose}; a destroy of "
            "this stack would remove it with all that others have in it. "
            "Choose another name, or set namespace.create to false to use it without owning it"
        )
    elif not create and labels is None:
        said = (
            "a namespace that is there, with namespace.create false: the cluster has no such namespace. "
            f"kubectl create namespace {name}, or set namespace.create to true"
        )
    elif not create and privileged and level in ("baseline", "restricted"):
        said = (
            f"a namespace whose Pod Security admits host ports: it enforces {level}, and hostPorts is true. "
            f"kubectl label namespace {name} {ENFORCE_LABEL}=privileged --overwrite, or hostPorts: false"
        )
    return [wrong("namespace.name", name, said)] if said != "" else []
