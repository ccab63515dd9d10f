"""The chart's releases: the run that each describes, the storage that each writes to, and helm, which upgrades them.

The chart writes a ConfigMap `<release>-run`, whose key `run.json` describes the run. The release's values are in a
Secret of helm, because the variables of the pods (`extraEnv`) are not for everybody who may read ConfigMaps.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

import launcher
from launcher.cli import object_states
from launcher.cli.cluster_api import CHART, NAME_LABEL, RELEASE_LABEL, Cluster, Object
from launcher.cli.errors import CliError, UsageError
from launcher.schema import KEY, from_json

SOURCES = "sources"
"""The folder next to the jobs' folders, for the files that file:// sources refer to."""
_FILE_SCHEME = "file://"
LIVE_STATES = ("running", "suspended")
"""States of a Job whose run needs its folder."""


@dataclass(frozen=True, kw_only=True)
class ReleaseRun:
    """The content of key `run.json` of ConfigMap `<release>-run` (fields: docs/reference/pods.md)."""

    release: str
    namespace: str
    job_name: str = field(metadata={KEY: "jobName"})
    job_path: str = field(default="/home/jobpath", metadata={KEY: "jobPath"})
    claim: str
    image: str
    image_pull_policy: str = field(default="IfNotPresent", metadata={KEY: "imagePullPolicy"})
    image_pull_secrets: list[Any] = field(default_factory=list, metadata={KEY: "imagePullSecrets"})
    service_account: str = field(default="default", metadata={KEY: "serviceAccount"})
    trainers: int
    passes: int
    k8s_job: str = field(metadata={KEY: "k8sJob"})
    """The training Job. With a CronJob: its newest Job, or the name of the CronJob before its first Job."""
    k8s_data_job: str = field(default="", metadata={KEY: "k8sDataJob"})
    cron_job: str = field(default="", metadata={KEY: "cronJob"})
    """The CronJob of `training.schedule`; empty without a schedule."""
    data_prepared_by: str = field(default="", metadata={KEY: "dataPreparedBy"})
    """`dataJob` or `trainingPods`; empty with data.enabled false."""
    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    packages: str = ""
    """The chart value `training.packages`."""
    uid: int = 10001
    gid: int = 10001
    data: dict[str, Any] = field(default_factory=dict)
    """The chart values `data.source` and `data.testSource`, and those that describe the format of the rows. An address
    with http(s) has no query, because the query may be a secret."""
    cluster_values: list[str] = field(default_factory=list, metadata={KEY: "clusterValues"})
    """Names of the chart's values that describe the cluster, not one training."""

    @classmethod
    def from_json(cls, release: str, namespace: str, value: Mapping[str, Any]) -> ReleaseRun:
        """Return the run that `value` describes. Raises ValueError if a key is missing or has another type."""
        known = {key: entry for key, entry in value.items() if entry not in (None, "")}
        return from_json(cls, {**known, "release": release, "namespace": namespace})

    def with_newest_job(self, jobs: Sequence[Object]) -> ReleaseRun:
        """Return the run of the newest of `jobs` that the CronJob has started; `k8s_job` is that Job's name.

        The `data_digest` of such a run ends with the Job's name, since each Job prepares data of its own. Without
        a CronJob, or before the CronJob's first Job, return this run unchanged.
        """
        started = [job for job in jobs if object_states.is_started_by(job, self.cron_job)]
        if not started:
            return self
        newest = max(started, key=lambda job: str(job["metadata"]["creationTimestamp"]))
        name = object_states.name_of(newest)
        return replace(self, k8s_job=name, data_digest=f"{self.data_digest}-{name}")

    @property
    def is_prepared_in_training_pods(self) -> bool:
        """Return whether the training pods prepare the data, so that there is no data Job."""
        return self.data_prepared_by == "trainingPods"

    @property
    def source_files(self) -> list[str]:
        """All components of the paths of the run's `file://` addresses.

        One component of each path is the name of a file or folder in `sources/` that the run reads.
        """
        urls = [str(self.data.get(key) or "") for key in ("source", "testSource")]
        return [name for url in urls if url.startswith(_FILE_SCHEME) for name in url.split("/")[2:]]


@dataclass(frozen=True)
class Release:
    """A release of the training chart, as its ConfigMap `<release>-run` describes it."""

    namespace: str
    name: str
    run: ReleaseRun | None = None
    """None if another version of the chart wrote the ConfigMap, so that the job and the sources are unknown."""
    volume: tuple[Any, ...] | None = None
    """A tuple that identifies the release's volume (`volume_identity`); None if it is unknown."""
    state: str = ""
    """State of the run: `running`, `suspended` or `over`; empty if it was not read."""

    def __str__(self) -> str:
        """Return `release NAME in namespace NAMESPACE`, for messages."""
        return f"release {self.name} in namespace {self.namespace}"


def volume_identity(values: Mapping[str, Any], namespace: str) -> tuple[Any, ...]:
    """Return a tuple that identifies the volume of a release in `namespace` with these chart values.

    Two releases with equal tuples write to the same volume. Two releases with different tuples usually write to
    different volumes, but two claims may lead to the same file system.
    """
    storage = values.get("storage") or {}
    kind = str(storage.get("type"))
    place = storage.get("efsCsi" if kind == "efs-csi" else kind)
    return (kind, place, namespace if kind == "existingClaim" else "")


def list_releases(cluster: Cluster, *, all_namespaces: bool = True) -> list[Release]:
    """Return the releases of all namespaces that this user may list, or of the cluster's namespace only.

    The releases are sorted by namespace and name.
    """
    list_maps = cluster.list_in_all_namespaces if all_namespaces else cluster.list_objects
    found = []
    for entry in list_maps("config_map", {NAME_LABEL: CHART}):
        meta, content = entry.get("metadata", {}), entry.get("data") or {}
        name, namespace = (meta.get("labels") or {}).get(RELEASE_LABEL), str(meta.get("namespace"))
        if not name or meta.get("name") != f"{name}-run":
            continue
        run = volume = None
        with suppress(KeyError, ValueError, TypeError, AttributeError):
            about = json.loads(content["run.json"])
            volume = volume_identity(about, namespace) if about["storage"] else None
            run = ReleaseRun.from_json(name, namespace, about)
        found.append(Release(namespace, str(name), run, volume))
    return sorted(found, key=lambda release: (release.namespace, release.name))


def merge_values(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides`, as helm merges values files: objects are merged by key, all else is replaced.

    A null is kept in the result, because helm must get the null to remove the chart's default.
    """
    both = dict(base)
    for key, value in overrides.items():
        old = both.get(key)
        both[key] = (
            merge_values(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return both


class ReleaseNotFoundError(CliError):
    """The namespace has no such release; the message lists the releases that exist."""

    def __init__(self, cluster: Cluster, release: str) -> None:
        """Compose the message. It says which releases exist in the namespaces that this user may list."""
        problem = f"namespace {cluster.namespace} on {cluster.name} has no release {release} of this chart"
        try:
            known = list_releases(cluster)
        except CliError:
            super().__init__(
                f"{problem}, and this user may not list which others exist",
                "give the right names with --release and --namespace",
            )
            return
        options = "; ".join(f"--release {one.name} --namespace {one.namespace}" for one in known)
        super().__init__(
            problem if options else f"{problem}, nor has any other namespace that this user can list",
            f"choose one of: {options}" if options else "create one with helm install or pulumi up",
        )


def list_storage_users(cluster: Cluster, claim: str) -> list[Release]:
    """Return the releases that use the same storage as a claim (PVC) of the cluster's namespace, with their states.

    Releases in namespaces that this user may not list are missing. A release is also returned if it is unknown which
    volume the release has. If it is unknown which volume the claim has, all releases are returned.
    """
    jobs = cluster.list_in_all_namespaces("job", {NAME_LABEL: CHART})
    found, volumes = [], []
    for release in list_releases(cluster):
        if release.run is None:
            found.append(release)
            continue
        own = [job for job in jobs if job["metadata"].get("namespace") == release.namespace]
        run = release.run.with_newest_job(own)
        names = (run.k8s_job, run.k8s_data_job)
        states = [object_states.job_state(job)[0] for job in own if object_states.name_of(job) in names]
        state = next((live for live in LIVE_STATES if live in states), "over")
        found.append(replace(release, run=run, state=state))
        if release.volume and (release.namespace, run.claim) == (cluster.namespace, claim):
            volumes.append(release.volume)
    return [release for release in found if not volumes or release.volume in (None, *volumes)]


COMMAND_SECONDS = 300.0  # one helm command may take so long


def find_chart() -> Path:
    """Return the folder of the chart that comes with the launcher. Raises UsageError if it is absent."""
    package = Path(launcher.__file__).resolve().parent
    for charts in (package / "charts", package.parent / "charts"):  # installed; a clone
        if (charts / CHART / "Chart.yaml").is_file():
            return charts / CHART
    raise UsageError(
        f"the chart {CHART} is not next to the launcher in {package}",
        "run the command in a clone of the project, or pip install '.' there again",
    )


@functools.cache
def read_defaults() -> dict[str, Any]:
    """Return the default values of the chart that comes with the launcher. Callers must not change the dict."""
    return dict(yaml.safe_load((find_chart() / "values.yaml").read_text("utf-8")))


class Helm:
    """Runs helm from PATH for the releases of a cluster's namespace.

    If a command of helm fails, the method raises CliError with helm's own message.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Store the options with which helm selects the cluster.

        helm gets the name of the cluster's context, so it uses this context even if another one becomes the current
        context of the kubeconfig.
        """
        self._options = ["-n", cluster.namespace, *cluster.kubeconfig_options]
        self._options += ["--kube-context", cluster.context] if cluster.context else []

    def read_values(self, release: str) -> dict[str, Any]:
        """Return the values that were given to the deployed revision of a release, without the chart's defaults.

        If no revision is deployed, because the first installation failed, return the values of the newest revision.
        """
        revisions = json.loads(self._run(["history", release, "-o", "json", *self._options]))
        chosen = max(revisions, key=lambda one: (one["status"] == "deployed", one["revision"]))
        words = ["get", "values", release, "--revision", str(chosen["revision"]), "-o", "json"]
        return json.loads(self._run([*words, *self._options])) or {}

    def upgrade_command(self, release: str, *files: str) -> list[str]:
        """Return the command line (argv) that installs or upgrades a release to the values of these files.

        Without --cleanup-on-fail, helm would forget the objects that a failed upgrade has created.
        """
        chart, here = find_chart(), Path.cwd()
        short = chart.relative_to(here) if chart.is_relative_to(here) else chart
        argv = ["helm", "upgrade", "--install", release, str(short), *self._options]
        argv += ["--reset-values", "--cleanup-on-fail"]
        return [*argv, *(word for file in files for word in ("-f", file))]

    def check(self, release: str, values: Mapping[str, Any]) -> str:
        """Return the name of the training Job that an upgrade to these values would create; nothing is changed.

        Runs `helm upgrade --dry-run=server`.

        Raises UsageError if the chart or the cluster rejects the values, if helm fails for another reason, or if the
        values set training.schedule.
        """
        try:
            answer = self._upgrade(release, values, "--dry-run=server", "-o", "json")
        except CliError as error:
            raise UsageError(
                f"release {release} cannot be upgraded, and nothing was changed: {error}"
            ) from error
        manifest = yaml.safe_load_all(json.loads(answer)["manifest"])
        name = ("ConfigMap", f"{release}-run")
        found = next(one for one in manifest if one and (one["kind"], one["metadata"]["name"]) == name)
        about = json.loads(found["data"]["run.json"])
        if about.get("cronJob"):
            raise UsageError(
                f"training.schedule is set, but `run` starts a training now; nothing of {release} was changed",
                "remove training.schedule here; once the training works, set it with helm upgrade",
            )
        return str(about["k8sJob"])

    def upgrade(self, release: str, values: Mapping[str, Any], description: str) -> None:
        """Install a release, or upgrade it, to exactly these values; `description` is shown by `helm history`."""
        self._upgrade(release, values, "--description", description)

    def _upgrade(self, release: str, values: Mapping[str, Any], *more: str) -> str:
        text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
        return self._run([*self.upgrade_command(release, "-")[1:], *more], text)

    def uninstall(self, release: str) -> None:
        """Uninstall a release, if it is installed. The storage keeps its data and results."""
        self._run(["uninstall", release, "--ignore-not-found", *self._options])

    def _run(self, words: Sequence[str], given: str = "") -> str:
        program = shutil.which("helm")
        if program is None:
            raise UsageError(
                "helm is not on PATH; it installs and upgrades the release of a training",
                "install helm 3.14 or newer (https://helm.sh/docs/intro/install); in a clone, "
                'eval "$(make -s env)" adds the clone\'s helm to PATH',
            )
        # Variables such as HELM_KUBECONTEXT and HELM_KUBEAPISERVER may select another cluster than ours.
        env = {name: text for name, text in os.environ.items() if not name.startswith("HELM_KUBE")}
        run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        try:
            ended = run([program, *words], input=given, env=env)
        except subprocess.TimeoutExpired as error:
            raise CliError(
                f"helm {words[0]} timed out after {COMMAND_SECONDS:.0f} s",
                "check that the cluster answers (kubectl get pods), and run this again",
            ) from error
        if ended.returncode:
            raise CliError(
                f"{shlex.join(['helm', *words])} failed: {ended.stderr.strip()}",
                "correct what helm reports, then run the same command again. While `helm history` shows a pending "
                "revision, another helm changes the release, or was killed while it did: then helm rollback (or, if "
                "it is the only revision, helm uninstall)",
            )
        return ended.stdout
