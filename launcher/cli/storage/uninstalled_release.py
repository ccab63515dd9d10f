"""The storage of an uninstalled release: its claim, an image for the reader pod, its job's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launcher.cli.cluster import object_states
from launcher.cli.cluster.cluster_api import RELEASE_LABEL, Cluster
from launcher.cli.cluster.releases import SOURCES, ReleaseRun, list_releases
from launcher.cli.errors import CliError, UsageError
from launcher.cli.storage.run_files import OUTPUT, FoundFiles, check_intact
from launcher.cli.storage.storage_access import Storage, StorageRequest, read_small_files
from launcher.paths import OutputPaths

_OTHER_FIX = "install a release with the same storage, or read the volume's folder with --path DIR"


def find_storage(cluster: Cluster, release: str, request: StorageRequest) -> ReleaseRun:
    """Return a run with the claim and the image through which the storage of an uninstalled release is read.

    The claim is that of the request, else the one with the release's label, else the only one. The image is
    that of the request, else that of another release of the namespace. The returned `job_name` is SOURCES,
    the folder next to the jobs' folders, because the release's job is unknown until `find_own_job` searches it.

    Raises UsageError if the claim or the image is not determined; the message lists the claims.
    """
    runs = [one.run for one in list_releases(cluster, all_namespaces=False)]
    others = [run for run in runs if run is not None]
    claims = cluster.list_objects("persistent_volume_claim")
    names = [object_states.name_of(one) for one in claims]
    owned = [
        object_states.name_of(one)
        for one in claims
        if (one["metadata"].get("labels") or {}).get(RELEASE_LABEL) == release
    ]
    candidates = [name for name in names if name == request.claim] if request.claim else owned or names
    listed = ", ".join(
        name + "".join(f" (of release {other.release})" for other in others if other.claim == name)
        for name in names
    )
    place = f"namespace {cluster.namespace} on {cluster.name}"
    if len(candidates) != 1:
        missing = f"no claim {request.claim}"
        if not request.claim:
            missing = f"no release {release}, and no claim that can be identified as the one that it had"
        raise UsageError(
            f"cannot find the storage of release {release}: {place} has {missing}. "
            f"Claims there: {listed or 'none'}",
            f"choose the claim with --claim NAME; or {_OTHER_FIX}",
        )
    claim = candidates[0]
    like = next((other for other in others if other.claim == claim), others[0] if others else None)
    if like is not None:
        image = request.image or like.image
        return replace(like, release=release, job_name=SOURCES, claim=claim, image=image, k8s_data_job="")
    if request.image is None:
        raise UsageError(
            f"a pod that reads claim {claim} needs an image, and {place} has no release whose image it could use",
            f"give the launcher's image with --image IMAGE; or {_OTHER_FIX}",
        )
    about = {
        "jobName": SOURCES,
        "claim": claim,
        "image": request.image,
        "trainers": 0,
        "passes": 0,
        "k8sJob": release,
    }
    return ReleaseRun.from_json(release, cluster.namespace, about)


def find_own_job(storage: Storage, release: str) -> Storage:
    """Return the folder of the only job that this release trained.

    Raises CliError, which lists the jobs, if the release trained none or several.
    """
    names = (OUTPUT.run_json.as_posix(), OUTPUT.run_copy.as_posix())
    found = FoundFiles(read_small_files(storage.sibling("."), [f"*/{name}" for name in names]))
    releases = {}
    for job in dict.fromkeys(path.split("/", 1)[0] for path in found.contents):
        record = found.run(OutputPaths(Path(job) / OUTPUT.root))
        releases[job] = record.release if record else "unknown"
    owned = [job for job, by in releases.items() if by == release]
    check_intact(
        found.damage, f"release {release} is not installed; choose its job with --job NAME, because of damage"
    )
    if len(owned) == 1:
        return storage.sibling(owned[0])
    listed = ", ".join(f"{job} (of release {by})" for job, by in releases.items()) or "none"
    raise CliError(
        f"release {release} is not installed, and the storage has {len(owned) or 'no'} jobs that it trained. "
        f"Jobs there: {listed}",
        f"choose one with --job NAME; or {_OTHER_FIX}",
    )
