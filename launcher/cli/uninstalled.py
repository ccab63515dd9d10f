"""The storage of a release that is gone: its claim, an image to read with, and its job's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from launcher.cli import reasons
from launcher.cli.cluster import CHART, NAME_LABEL, RELEASE_LABEL, Cluster
from launcher.cli.problems import CliError, UsageError
from launcher.cli.storage import Storage, json_file, small_files
from launcher.cli.view import Run

NO_JOB = "sources"  # the folder next to all jobs'
ANY_FIX = "install a release with the same storage, or read the volume's folder with --path DIR"


def find(
    cluster: Cluster, release: str, claim: str | None, image: str | None, takes: Sequence[str] = ()
) -> Run:
    """Return a Run with the claim and the image through which the storage of an uninstalled release is read.

    Its `job_name` is NO_JOB. `claim` and `image` None: those of the release's own claim, else of the only
    claim, and of any release of the namespace. `takes`: which of job, claim and image the command has as
    options; an error names no other ones.

    Raises:
        UsageError: neither tells which claim or image; names the claims that there are.
    """
    others = []
    for entry in cluster.items("config_map", "look for releases", f"{NAME_LABEL}={CHART}"):
        with suppress(KeyError, ValueError, TypeError):  # another version's
            name = str((entry["metadata"].get("labels") or {}).get(RELEASE_LABEL))
            others.append(Run.of(name, cluster.namespace, json.loads(entry["data"]["run.json"])))
    claims = cluster.items("persistent_volume_claim", "look for the storage")
    names = [reasons.name(one) for one in claims]
    own = [
        reasons.name(one)
        for one in claims
        if (one["metadata"].get("labels") or {}).get(RELEASE_LABEL) == release
    ]
    fit = [name for name in names if name == claim] if claim else own or names
    listed = ", ".join(
        name + "".join(f" (of release {other.release})" for other in others if other.claim == name)
        for name in names
    )
    if len(fit) != 1:
        wanted = (
            f"no claim {claim}" if claim else f"no release {release}, and which claim was its is not known"
        )
        raise UsageError(
            f"namespace {cluster.namespace} on {cluster.name} has {wanted}. Its claims: {listed or 'none'}. "
            + _fix(
                takes,
                claim="--claim NAME",
                job="--release NAME of one on the same storage with --job NAME",
            )
        )
    like = next((other for other in others if other.claim == fit[0]), others[0] if others else None)
    if like is not None:
        return replace(
            like, release=release, job_name=NO_JOB, claim=fit[0], image=image or like.image, k8s_data_job=""
        )
    if image is None:
        raise UsageError(
            f"claim {fit[0]} is there, but namespace {cluster.namespace} has no release whose image could "
            "read it. " + _fix(takes, image="--image IMAGE, the launcher's image")
        )
    about = {
        "jobName": NO_JOB,
        "claim": fit[0],
        "image": image,
        "trainers": 0,
        "passes": 0,
        "k8sJob": release,
    }
    return Run.of(release, cluster.namespace, about)


def _fix(takes: Sequence[str], **options: str) -> str:
    """Return the fixes by those of the options that the command takes, and the one that every command has."""
    fixes = [text for name, text in options.items() if name in takes]
    return f"Fix: {'; or '.join([*fixes, ANY_FIX])}."


def own_job(storage: Storage, release: str, takes: Sequence[str] = ()) -> Storage:
    """Return the only job's folder that this release trained in. Raises CliError that names the jobs."""
    found = small_files(storage.sibling("."), ["*/output/run.json"])
    releases = {
        path.split("/", 1)[0]: (json_file(content) or {}).get("release") for path, content in found.items()
    }
    own = [job for job, by in releases.items() if by == release]
    if len(own) == 1:
        return storage.sibling(own[0])
    listed = ", ".join(f"{job} (of release {by})" for job, by in releases.items()) or "none"
    raise CliError(
        f"there is no release {release}, and the storage has {len(own) or 'no'} jobs that it trained. "
        f"Jobs there: {listed}. {_fix(takes, job='--job NAME')}"
    )
