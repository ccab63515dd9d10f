"""Check an existing cluster (target kubeconfig) before any resource is registered.

The checks run in previews and updates, change nothing and take at most a few seconds. A destroy does not run
the program, so it works even if the cluster no longer exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.settings import Settings
from infra.settings_errors import Problem, SettingsError, setting_problem

# One attempt; 5 s to connect and 5 s for the response, so that a preview fails quickly.
TIMEOUT = (5, 5)

OWNER_LABEL = "paddle-training/stack"
ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"


def read_kubeconfig(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """Return the kubeconfig, after checking that it has the context of the settings.

    Raises:
        SettingsError: the file does not exist or is not a kubeconfig, or it has no such context.
    """
    wanted = settings.kubeconfig
    path = project_folder / Path(wanted.path).expanduser()
    fix = "start the local cluster (make cluster), or set the path of your cluster's kubeconfig"
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        listed = loaded.get("contexts") if isinstance(loaded, Mapping) else None
        contexts, why = (listed, "") if isinstance(listed, list) else ([], "it lists no contexts")
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    except (yaml.YAMLError, UnicodeDecodeError):
        why = "it is not YAML"
    if why != "":
        raise SettingsError(
            [setting_problem("kubeconfig.path", wanted.path, "a readable kubeconfig file", why, fix)]
        )
    names = [str(context.get("name")) for context in contexts if isinstance(context, Mapping)]
    if wanted.context not in names:
        limit = f"one of {', '.join(names)}" if names else "a context of that file"
        why = f"{wanted.path} has no such context"
        fix = "set the context explicitly; the current context of the file is not used"
        raise SettingsError([setting_problem("kubeconfig.context", wanted.context, limit, why, fix)])
    return dict(loaded)


def _unreachable(settings: Settings, server: str, why: str) -> SettingsError:
    problem = setting_problem(
        "kubeconfig.context",
        settings.kubeconfig.context,
        "a reachable cluster",
        f"{server}: {why}",
        "start the cluster (make cluster for the local one) or correct the kubeconfig. If the cluster no "
        "longer exists, remove its state: PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy --refresh",
    )
    return SettingsError([problem])


def configuration(kubeconfig: Mapping[str, Any], context: str) -> Any:
    """Return a Kubernetes client configuration (`client.Configuration`) for one context, without retries.

    Raises:
        kubernetes.config.ConfigException: the kubeconfig is invalid.
    """
    # Importing the client takes over a second, and target aws does not need it.
    from kubernetes import client, config  # noqa: PLC0415

    holder = client.Configuration()
    config.load_kube_config_from_dict(kubeconfig, context=context, client_configuration=holder)
    holder.retries = False
    return holder


def check_cluster(settings: Settings, project_folder: Path, owner: str, privileged: bool) -> None:
    """Check that the stack can be installed on the cluster.

    Args:
        owner: this stack's value of the namespace label `paddle-training/stack`.
        privileged: whether the pods use host ports, which only a privileged namespace admits.

    Raises:
        SettingsError: the kubeconfig is invalid; the API server does not answer; the namespace belongs to
            another owner, does not exist, or does not admit the pods; or the release whose values should be
            kept does not exist.
    """
    loaded = read_kubeconfig(settings, project_folder)
    from kubernetes import client, config  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        holder = configuration(loaded, settings.kubeconfig.context)
    except (config.ConfigException, ValueError, OSError) as error:
        raise _unreachable(settings, "the kubeconfig", " ".join(str(error).split())) from error
    with client.ApiClient(holder) as api:
        core = client.CoreV1Api(api)
        try:
            namespace = core.read_namespace(settings.namespace.name, _request_timeout=TIMEOUT)
        except client.ApiException as error:
            if error.status == 401:
                raise _unreachable(
                    settings, str(holder.host), "the API server rejected the credentials (401)"
                ) from error
            if error.status != 404:
                return  # a user who may not read namespaces may still be allowed to install a release
            namespace = None
        except (HTTPError, OSError) as error:
            raise _unreachable(settings, str(holder.host), _short(error)) from error
        labels = None if namespace is None else dict(namespace.metadata.labels or {})
        problems = namespace_problems(settings, labels, owner, privileged)
        if problems:
            raise SettingsError(problems)
        if settings.release.keep_manual_values and not _has_release(core, settings):
            key, limit = "release.keepManualValues", "false until the release exists"
            why = f"namespace {settings.namespace.name} has no release {settings.release.name}"
            raise SettingsError(
                [setting_problem(key, True, limit, why, "set it to false for the first pulumi up")]
            )


def _short(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return " ".join(str(reason if reason is not None else error).split()).rpartition(": ")[2]


def _has_release(core: Any, settings: Settings) -> bool:
    from kubernetes.client import ApiException  # noqa: PLC0415

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
    """Return why the stack cannot use its namespace (an empty list if it can), from the namespace's labels.

    `labels` is None if the namespace does not exist; `owner` and `privileged` as of `check_cluster`.
    """
    name, create = settings.namespace.name, settings.namespace.create
    level = (labels or {}).get(ENFORCE_LABEL)
    if create and labels is not None and labels.get(OWNER_LABEL) != owner:
        holder = labels.get(OWNER_LABEL)
        limit = "a namespace that does not exist yet, or that this stack created"
        why = f"it belongs to stack {holder}" if holder is not None else "it was not created by this stack"
        why += "; a destroy of this stack would delete it with everything in it"
        fix = "use another name, or set namespace.create to false to use it without owning it"
    elif not create and labels is None:
        limit, why = "an existing namespace, with namespace.create false", "the cluster has no such namespace"
        fix = f"kubectl create namespace {name}, or set namespace.create to true"
    elif not create and privileged and level in ("baseline", "restricted"):
        limit = "a namespace whose Pod Security level admits host ports"
        why = f"it enforces {level}, and hostPorts is true"
        fix = f"kubectl label namespace {name} {ENFORCE_LABEL}=privileged --overwrite, or hostPorts: false"
    else:
        return []
    return [setting_problem("namespace.name", name, limit, why, fix)]
