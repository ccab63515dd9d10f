"""`leftovers`: what a failed upgrade, an uninstall or a deleted namespace left of a release in the cluster.

Helm compares an upgrade with the last release that succeeded, so it knows nothing of what one that failed has
made. All that the chart makes carries the release's labels, and `run.json` names what its values mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from launcher.cli import reasons, recipe, view
from launcher.cli.cluster import CHART, NAME_LABEL, Cluster, labels
from launcher.cli.problems import CliError, UsageError
from launcher.cli.session import ClusterSession, status_files
from launcher.cli.view import Object, Run

GONE_SECONDS = 120.0  # for an ended Job to disappear with its pods
_OF_THE_OLD = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
)
_WRITTEN_LABELS = {
    f"{prefix}{name}" for prefix in ("", "batch.kubernetes.io/") for name in ("controller-uid", "job-name")
}


@dataclass(frozen=True)
class Leftover:
    """An object that the release's values do not name.

    `kind` is job, persistent_volume_claim or persistent_volume; `kept` says why it must stay, or is empty.
    """

    kind: str
    name: str
    state: str
    kept: str = ""

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.name} ({self.state})"


def of(
    run: Run | None, jobs: Sequence[Object], claims: Sequence[Object], volumes: Sequence[Object]
) -> list[Leftover]:
    """All objects of a release that `run` does not name, Jobs first; `run` None: the release is gone."""
    present = {reasons.name(job) for job in jobs}
    halfway = run is not None and run.k8s_job not in present
    found = []
    for job in jobs:
        if run is None or reasons.name(job) not in (run.k8s_job, run.k8s_data_job):
            state = reasons.job_state(job)[0]
            kept = ""
            if halfway and state in ("running", "suspended"):
                kept = "an upgrade failed before it made the Job of its values: upgrade first"
            found.append(Leftover("job", reasons.name(job), state, kept))
    held = any(one.kept for one in found)
    for kind, things in (("persistent_volume_claim", claims), ("persistent_volume", volumes)):
        for thing in things:
            if run is None or reasons.name(thing) != run.claim:
                state = str((thing.get("status") or {}).get("phase"))
                kept = "a Job above may use it" if held else ""
                found.append(Leftover(kind, reasons.name(thing), state, kept))
    return found


def replaced_data(run: Run, jobs: Sequence[Object], manifest: Mapping[str, Any] | None) -> Object | None:
    """The data Job that is complete although the storage holds other data than it made."""
    job = next((job for job in jobs if reasons.name(job) == run.k8s_data_job), None)
    there = (manifest or {}).get("dataDigest")
    lost = there != run.data_digest and reasons.job_state(job)[0] == "complete"
    return job if lost else None


def again(job: Object) -> Object:
    """The same Job as it was before Kubernetes wrote into it."""
    meta = {key: value for key, value in job["metadata"].items() if key not in _OF_THE_OLD}
    meta["annotations"] = {
        k: v for k, v in (meta.get("annotations") or {}).items() if not k.startswith("batch.")
    }
    spec = {key: value for key, value in job["spec"].items() if key != "selector"}
    template = dict(spec["template"])
    kept = {k: v for k, v in template["metadata"].get("labels", {}).items() if k not in _WRITTEN_LABELS}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": kept}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def look(session: ClusterSession) -> tuple[list[Leftover], Object | None]:
    """What is left over, and the data Job that must be made again, if any."""
    cluster = session.cluster
    run = None if cluster.ending() else session.known_run()
    jobs = cluster.items("job", "list the release's Jobs", labels(session.release))
    claims = cluster.items("persistent_volume_claim", "list the release's claims", labels(session.release))
    found = of(run, jobs, claims, cluster.volumes(session.release))
    if run is None or not any(reasons.name(job) == run.k8s_data_job for job in jobs):
        return found, None
    with session.storage() as storage:
        return found, replaced_data(run, jobs, status_files(storage)["manifest"])


def remove(cluster: Cluster, found: Sequence[Leftover], data: Object | None) -> None:
    """Remove what need not be kept, and make the data Job again."""
    for one in found:
        if not one.kept:
            cluster.delete(one.kind, one.name)
    if data is not None:
        _make_again(cluster, data)


def _make_again(cluster: Cluster, job: Object) -> None:
    name = reasons.name(job)
    cluster.delete("job", name)
    deadline = time.monotonic() + GONE_SECONDS
    while cluster.find("job", name, "look at the data Job") is not None:
        if time.monotonic() > deadline:
            raise CliError(f"the data Job {name} is still there {GONE_SECONDS:.0f} s after its deletion.")
        time.sleep(0.5)
    cluster.create_job(again(job))


def refuse_shared_job(cluster: Cluster, release: str, base: str, values: Mapping[str, Any]) -> None:
    """Raise UsageError when another release has a job of the same name on the same storage.

    Each would replace the other's data and move its output aside. `base` is YAML of chart values, `values` go
    over it. Releases of namespaces that this user may not list are not seen.
    """
    own = _volume(recipe.merged(yaml.safe_load(base) or {}, values), cluster.namespace)
    for place, name, there in release_maps(cluster):
        try:
            job = json.loads(there["run.json"]).get("jobName")
        except (KeyError, ValueError, AttributeError):  # another version's
            continue
        if (place, name) == (cluster.namespace, release) or job != values["jobName"]:
            continue
        if storage_of(there.get("base.yaml") or "", place) == own:
            raise UsageError(
                f"jobName {job!r} is taken: release {name} in namespace {place} has a job of that name on "
                f"the same storage, and release {release} would replace its data and its output. Fix: --set "
                f"jobName=NAME for this one; or --release {name} for the same training again; or helm "
                f"uninstall {name} -n {place}."
            )


def release_maps(cluster: Cluster) -> list[tuple[str, str, dict[str, str]]]:
    """Return (namespace, release, data of its ConfigMap) of all releases that this user may list."""
    selector = f"{NAME_LABEL}={CHART}"
    maps = cluster.items_everywhere("config_map", "look for releases", selector)
    data = {(one["metadata"].get("namespace"), reasons.name(one)): one.get("data") or {} for one in maps}
    return [(place, name, data[place, f"{name}-run"]) for place, name in view.known_runs(maps)]


def storage_of(base: str, namespace: str) -> Any:
    """What tells whether two releases write to the same volume; `base`: YAML of a release's chart values."""
    return _volume(yaml.safe_load(base) or {}, namespace)


def _volume(values: Mapping[str, Any], namespace: str) -> Any:
    storage = values.get("storage") or {}
    kind = str(storage.get("type"))
    place = storage.get("efsCsi" if kind == "efs-csi" else kind)
    return (kind, place, namespace if kind == "existingClaim" else "")
