"""`leftovers`: list or remove objects that a failed upgrade or an uninstall left in the cluster.

Helm compares an upgrade with the last release that succeeded, so it does not know what a failed upgrade has
created. Everything that the chart creates has the release's labels, and `run.json` in the release's
ConfigMap has the names of the Jobs and of the claim that the release's values create: all others are leftovers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from launcher.cli.cluster import object_states
from launcher.cli.cluster.cluster_api import Cluster, Object, labels
from launcher.cli.cluster.job_restart import recreate_job
from launcher.cli.cluster.releases import LIVE_STATES, ReleaseRun
from launcher.cli.job_sessions import ClusterSession, Session
from launcher.cli.shared_options import Format, OutputFormat, require_cluster, with_session
from launcher.cli.storage.run_files import read_job_files
from launcher.cli.storage.storage_access import StorageRequest
from launcher.cli.terminal import print_json
from launcher.schema import ManifestFile


@dataclass(frozen=True)
class Leftover:
    """An object with a release's labels that the release's values do not create (or no longer create)."""

    kind: str
    """job, persistent_volume_claim or persistent_volume."""
    name: str
    state: str
    kept: str = ""
    """Why the object must not be removed; empty if the object may be removed."""

    def __str__(self) -> str:
        """Return the object as messages show it."""
        return f"{self.kind.replace('_', ' ')} {self.name} ({self.state})"


@with_session
def leftovers(
    session: Session,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the objects; without it they are only listed.")
    ] = False,
    output: Format = OutputFormat.text,
) -> None:
    """List or remove what a failed upgrade, an uninstall or a deleted namespace left of a release.

    If the storage no longer has the release's data, --remove also starts its data Job again.
    """
    session = require_cluster(session, "leftovers")
    found, data_job = find_leftovers(session)
    if remove:
        remove_leftovers(session.cluster, found, data_job)
    if output is OutputFormat.json:
        name = object_states.name_of(data_job) if data_job else None
        print_json({"leftovers": [asdict(one) for one in found], "dataJob": name, "removed": remove})
        return
    for one in found:
        print(f"kept: {one}: {one.kept}" if one.kept else f"{'removed' if remove else 'left over'}: {one}")
    if data_job is not None:
        action = "started again" if remove else "would be started again"
        print(f"job {object_states.name_of(data_job)} {action}: the storage does not contain its data")
    if not found and data_job is None:
        print("nothing is left over")
    elif any(one.kept for one in found):
        at = f"{session.release} -n {session.cluster.namespace}"
        print(
            f"Fix: return to a revision N that worked (see helm history {at}): "
            f"helm get values {at} --revision N -o yaml > good.yaml; "
            f"helm upgrade {at} charts/paddle-training --reset-values -f good.yaml"
        )
    elif not remove:
        print("nothing was changed; run the command again with --remove to do this")


def select_leftovers(
    run: ReleaseRun | None, jobs: Sequence[Object], claims: Sequence[Object], volumes: Sequence[Object]
) -> list[Leftover]:
    """Return the leftovers among a release's objects, Jobs first.

    These are the objects that the values of `run` do not create; without a release (`run` None) all objects.
    """
    existing = {object_states.name_of(job) for job in jobs}
    if run is not None:
        jobs = [job for job in jobs if not object_states.is_started_by(job, run.cron_job)]
    upgrade_failed = run is not None and run.k8s_job not in existing
    found = []
    for job in jobs:
        if run is None or object_states.name_of(job) not in (run.k8s_job, run.k8s_data_job):
            state = object_states.job_state(job)[0]
            kept = ""
            if upgrade_failed and state in LIVE_STATES:
                kept = "an upgrade failed before it created the Job of its values: repeat the upgrade first"
            found.append(Leftover("job", object_states.name_of(job), state, kept))
    any_kept = any(one.kept for one in found)
    for kind, things in (("persistent_volume_claim", claims), ("persistent_volume", volumes)):
        for thing in things:
            if run is None or object_states.name_of(thing) != run.claim:
                state = str((thing.get("status") or {}).get("phase"))
                kept = "a Job above may use it" if any_kept else ""
                found.append(Leftover(kind, object_states.name_of(thing), state, kept))
    return found


def find_replaced_data(
    run: ReleaseRun, jobs: Sequence[Object], manifest: ManifestFile | None
) -> Object | None:
    """Return the data Job of `run` if it is complete, but its data is not on the storage; else None.

    The storage then has no data, or the data of another data Job. `manifest` describes the data on the
    storage; None: there is none.
    """
    job = next((job for job in jobs if object_states.name_of(job) == run.k8s_data_job), None)
    stored = manifest.data_digest if manifest else ""
    lost = stored != run.data_digest and object_states.job_state(job)[0] == "complete"
    return job if lost else None


def find_leftovers(session: ClusterSession) -> tuple[list[Leftover], Object | None]:
    """Return the leftovers, and the data Job that must be started again, if any."""
    cluster = session.cluster
    run = None if cluster.is_namespace_terminating() else session.run_if_installed()
    selector = labels(session.release)
    jobs = cluster.list_objects("job", selector)
    claims = cluster.list_objects("persistent_volume_claim", selector)
    found = select_leftovers(run, jobs, claims, cluster.list_volumes(session.release))
    if run is None or not any(object_states.name_of(job) == run.k8s_data_job for job in jobs):
        return found, None
    with session.storage(StorageRequest()) as storage:
        return found, find_replaced_data(run, jobs, read_job_files(storage).manifest)


def remove_leftovers(cluster: Cluster, found: Sequence[Leftover], data_job: Object | None) -> None:
    """Remove the leftovers that may be removed, and start the data Job again."""
    for one in found:
        if not one.kept:
            cluster.delete(one.kind, one.name)
    if data_job is not None:
        recreate_job(cluster, data_job)
