"""Checks that the releases and the job of a new training are not used by another training."""

from __future__ import annotations

from collections.abc import Collection

import yaml

from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.cluster.releases import list_releases, volume_identity
from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import ClusterSession
from launcher.cli.launch import training_values
from launcher.cli.launch.training_values import Values


def check_job_name_is_free(session: ClusterSession, base: str, values: Values) -> None:
    """Raise UsageError if another release has a job with the same name on the same storage.

    Each of the two would replace the other's data and move its output. Releases in namespaces that this user
    may not list are not checked.
    """
    cluster, release, job = session.cluster, session.release, values["jobName"]
    merged = training_values.merge_values(yaml.safe_load(base) or {}, values)
    volume = volume_identity(merged, cluster.namespace)
    for other in list_releases(cluster):
        if (other.namespace, other.name) == (cluster.namespace, release):
            continue
        if other.run and other.run.job_name == job and other.volume == volume:
            raise UsageError(
                f"jobName {job!r} is taken: {other} has a job with this name on the same storage, and "
                f"release {release} would replace its data and its output",
                f"choose another name with --set jobName=NAME (or, to continue that training, --release "
                f"{other.name} -n {other.namespace})",
            )


def check_releases_are_free(cluster: Cluster, releases: Collection[str]) -> None:
    """Raise UsageError if one of the releases exists and its job has another name than the release.

    A sweep gives both the same name, so such a release is not of an earlier sweep and must not be replaced.
    """
    for release in list_releases(cluster, all_namespaces=False):
        if release.name in releases and release.run and release.run.job_name != release.name:
            raise UsageError(
                f"the sweep would replace {release}, which has job {release.run.job_name}",
                "choose another name for the sweep with --set jobName=NAME",
            )
