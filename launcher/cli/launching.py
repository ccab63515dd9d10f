"""`run`: from a program, data and a few settings to a training of the cluster, by push and helm."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher import files
from launcher.cli import leftovers, push, reasons, recipe, render, runlease, trying, view
from launcher.cli.cluster import CHART, NAME_LABEL, Cluster, labels
from launcher.cli.helm import Helm
from launcher.cli.options import confirmed
from launcher.cli.problems import CliError, UsageError
from launcher.cli.session import COPY_SECONDS, ClusterSession, NoClaimError
from launcher.cli.words import command

INTERRUPTED = 128 + signal.SIGINT
OWN = Path(__file__).parents[1] / "programs"
WRITTEN = "# Written by `run` of paddle-training: a whole training, over the values that `base` prints.\n"
RENAME = "Rename it."
REMOTE = ("s3://", "https://", "http://", "file://")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked for."""

    program: Path
    data: str | None
    """A file of this machine, or a data.source; None: what the values say."""
    values: Sequence[Path]
    settings: Sequence[str]
    """`key=value`, as `recipe.apply` takes them."""
    trainers: int | None
    passes: int | None
    check: bool = True
    yes: bool = False
    """A data file on the storage with other content may be replaced."""
    release: str = CHART
    base_release: str | None = None
    """Whose image and storage a new release takes over; None: the only one's."""
    keep: Path | None
    """Where the values are written; None: `JOB.values.yaml`."""
    by: str | None = None
    """A score that the program must have."""
    replace: bool = False
    """The release's present training may be at work."""


@dataclass(frozen=True)
class Recipe:
    """All that makes a training, on this machine still."""

    parcels: Sequence[push.Parcel]
    values: recipe.Values

    @property
    def job(self) -> str:
        """Its jobName."""
        return str(self.values["jobName"])


@dataclass(frozen=True)
class Launched:
    """What `launch` did."""

    session: ClusterSession
    changed: bool
    """False: the release had this very training already."""
    keep: Path
    """Where its values were written."""


def prepare(
    asked: Request, helm: Helm, say: Callable[[str], None], grid: Sequence[tuple[str, ...]] = ((),)
) -> list[Recipe]:
    """Looks at program and data on this machine: a recipe for each of the settings of `grid`.

    The first one brings the data along. Raises `LauncherError`; nothing was sent yet.
    """
    folder = asked.program if asked.program.is_dir() else OWN / asked.program
    if not folder.is_dir():
        ours = ", ".join(sorted(path.parent.name for path in OWN.glob(f"*/{push.CONFIG}")))
        raise UsageError(f"{asked.program} is no folder with a program. Those that come along: {ours}.")
    program = push.program(folder, recipe.storable(folder.resolve().name), asked.check, RENAME)
    source = None
    if asked.data is not None and not asked.data.startswith(REMOTE):
        source = push.source(Path(asked.data), recipe.storable(Path(asked.data).name), "--data", RENAME)
    defaults = helm.defaults()
    made: list[Recipe] = []
    for settings in grid:
        values = recipe.apply(_values(asked, program, source, defaults), settings, defaults)
        if asked.check:
            whole = recipe.merged(defaults, values)
            config = folder / program.values["training.config"].partition("/")[2]
            file = source.entries[0][1] if source else None
            found = trying.check(config, whole["training"], file, whole["data"], asked.by)
            say(f"{' '.join(['program', str(folder), *settings])}: {found}")
        made.append(Recipe([program, *([source] if source and not made else [])], values))
    return made


def _values(
    asked: Request, program: push.Parcel, source: push.Parcel | None, defaults: recipe.Values
) -> recipe.Values:
    values: recipe.Values = {"jobName": recipe.job_name(program.final)}
    for file in asked.values:
        try:
            read: Any = yaml.safe_load(file.read_text("utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            raise UsageError(f"-f {file} cannot be read: {error}") from error
        if not isinstance(read, dict):
            raise UsageError(f"-f {file} holds no values, but must be an object of YAML.")
        values = recipe.merged(values, read)
    own: dict[str, Any] = dict(program.values)
    if source is not None:
        own |= source.values
    elif asked.data is not None and asked.data != (values.get("data") or {}).get("source"):
        own |= {"data.source": asked.data, "data.sha256": ""}  # that of another source
    own |= {"trainers": asked.trainers} if asked.trainers else {}
    own |= {"training.passes": asked.passes} if asked.passes else {}
    values = recipe.apply(recipe.merged(values, recipe.nested(own)), asked.settings, defaults)
    if not recipe.merged(defaults, values)["data"]["source"]:
        raise UsageError(
            "there is no data to train on: give --data FILE, --data s3://…, or data.source in -f."
        )
    return values


def numbered(made: Recipe, number: int) -> Recipe:
    """The same as a job of its own, so that several can be trained at once."""
    end = f"-{number}"
    name = made.job[: recipe.JOB_NAME_LENGTH - len(end)].rstrip("-") + end
    return dataclasses.replace(made, values={**made.values, "jobName": name})


def launch(
    made: Recipe, asked: Request, helm: Helm, cluster: Cluster, say: Callable[[str], None]
) -> Launched:
    """Push what changed, write the values to a file, and upgrade the release to them.

    The leases of the release and of the job's name are held meanwhile: neither another `run` of the release
    nor one that gives another release this job gets through. Raises `LauncherError`; UsageError when this
    very training is stopped; OtherRunError when another `run` has one of the leases.
    """
    release, keep = asked.release, asked.keep or Path(f"{made.job}.values.yaml")
    if keep.exists() and not keep.read_text("utf-8").startswith(WRITTEN):
        raise UsageError(f"{keep} is there and was not written by `run`. Name another file with --keep FILE.")
    values = WRITTEN + yaml.safe_dump(made.values, sort_keys=False, allow_unicode=True)
    session = ClusterSession(cluster, release, say)
    with (
        runlease.held(cluster, release) as check_release,
        runlease.held(cluster, release, made.job) as check_job,
    ):
        there = session.is_there()
        giver = session if there else _giver(cluster, asked, say)
        base = _base(giver, helm)
        leftovers.refuse_shared_job(cluster, release, base, made.values)
        before = session.run().k8s_job if there else None
        job = helm.check(release, base, values, keep)["k8sJob"]
        stopped = _stopped(session) if there else set()
        if job == before and job in stopped:
            raise UsageError(
                f"training {made.job} of release {release} is stopped (its Job {job} is suspended), and "
                "program, data and values are as they were; nothing was sent. Fix: "
                f"{command('resume', '--follow', *session.options())}"
            )
        if there and job != before and before not in stopped and not asked.replace:
            _ask_to_replace(session, made.job)
        files.write_whole(keep, values)
        _push(made, giver, asked.yes, say)
        check_release()
        check_job()
        say(f"{command(*['base', *giver.options()])} |\n  {shlex.join(helm.upgrade(release, keep))}")
        helm.run(release, base, values, keep, f"run by {runlease.person()}")
        if stopped and (data_job := session.run().k8s_data_job) in stopped:
            cluster.suspend_job(data_job, False)  # helm leaves a Job of the same name suspended
    session.expect(job, lambda: _replaced(helm, release, job))
    return Launched(session, job != before, keep)


def _stopped(session: ClusterSession) -> set[str]:
    """Return the release's suspended Jobs that only `resume` starts again, by name; a queue starts others."""
    jobs = session.cluster.items("job", "list the release's Jobs", labels(session.release))
    suspended = (job for job in jobs if reasons.job_state(job)[0] == "suspended")
    return {reasons.name(job) for job in suspended if not reasons.queue(job)}


def _base(giver: ClusterSession, helm: Helm) -> str:
    """Return the cluster's values. Raises CliError that names the revision to roll back to when their claim
    does not exist."""
    try:
        return giver.base()
    except NoClaimError as error:
        revisions = helm.history(giver.release)
        claims = ((entry, helm.claim(giver.release, entry["revision"])) for entry in revisions)
        earlier = next((found for found in claims if found[1] not in ("", error.claim)), None)
        if earlier is None:
            raise
        at = ["-n", giver.cluster.namespace]
        back = shlex.join(["helm", "rollback", giver.release, str(earlier[0]["revision"]), *at])
        raise CliError(
            f"{error} Revision {earlier[0]['revision']} of helm is the last one with another claim "
            f"({earlier[1]}); the newest one is {_revision(revisions[0])}. Fix: {back}; then the same "
            "command again."
        ) from error


def _revision(entry: Mapping[str, Any]) -> str:
    return f"{entry['revision']} ({entry['description']}, {entry['updated']})"


def _replaced(helm: Helm, release: str, job: str) -> str:
    """Return what is said of a followed run that is no more the release's."""
    try:
        by = f"revision {_revision(helm.history(release)[0])} of helm"
    except CliError as error:
        by = f"an upgrade ({error})"
    return (
        f"run {job} was replaced by {by}; the new run's score is not shown. Checkpoints are kept. Fix: run "
        "the same command again when the new run has finished, or add --replace to stop it now. Training "
        "resumes from the newest checkpoint."
    )


def _giver(cluster: Cluster, asked: Request, say: Callable[[str], None]) -> ClusterSession:
    """The release whose image and storage a new one takes over: the only one, or the one so called as all are
    by default."""
    if asked.base_release is not None:
        return ClusterSession(cluster, asked.base_release, say)
    maps = cluster.items("config_map", "look for releases", f"{NAME_LABEL}={CHART}")
    known = [name for _, name in view.known_runs(maps)]
    if len(known) == 1 or CHART in known:
        return ClusterSession(cluster, CHART if CHART in known else known[0], say)
    place = f"namespace {cluster.namespace} on {cluster.name}"
    if not known:
        raise CliError(
            f"{place} has no release of this chart yet, whose image and storage a training could use. Make "
            "the first one with `make demo`, `pulumi up` or helm install; -n names another namespace."
        )
    raise UsageError(
        f"{place} has several releases ({', '.join(known)}) and none named {CHART}: whose image and storage "
        f"shall {asked.release} use? Name one of them with --base-release."
    )


def _ask_to_replace(session: ClusterSession, job: str) -> None:
    """Ask on a terminal, else raise UsageError, when the release is at work on another training."""
    seen = session.glance()
    if seen.over or seen.state == "missing":
        return
    run = session.run()
    at_work = (
        f"release {run.release} is training job {run.job_name} ({seen.state}: {render.waits_for(seen)}). "
        f"Starting {job} would stop it; its checkpoints are kept"
    )
    if not confirmed(f"{at_work}. Stop it?"):
        raise UsageError(
            f"{at_work}. Fix: add --replace; or wait for its end: {command('wait', *session.options())}; or "
            "give this one a release and job of its own: --release NAME --set jobName=NAME."
        )


def refuse_taken(cluster: Cluster, releases: Iterable[str]) -> None:
    """Raises UsageError when one of them is there with a job that is not called as it is: not a sweep's."""
    for name in releases:
        session = ClusterSession(cluster, name, lambda _: None)
        if session.is_there() and (job := session.run().job_name) != name:
            raise UsageError(
                f"release {name} in namespace {cluster.namespace} is of job {job}: a sweep would take it. "
                "Give the sweep another name with --set jobName=NAME."
            )


def _push(made: Recipe, giver: ClusterSession, yes: bool, say: Callable[[str], None]) -> None:
    with giver.storage(seconds=COPY_SECONDS, writable=True, job=made.job) as storage:
        for parcel in made.parcels:
            if not parcel.source:
                push.send(storage, parcel, True, say)  # the job's own
                continue
            try:
                push.send(storage, parcel, yes, say)
            except push.OtherContentError as error:
                where = f"sources/{parcel.final} on the storage has other content"
                if not confirmed(f"{where}. Replace it?"):
                    raise UsageError(
                        f"{where}, which other jobs may train on; it was not replaced. Say --yes to replace "
                        "it, or name the file otherwise."
                    ) from error
                push.send(storage, parcel, True, say)


@contextlib.contextmanager
def interrupted(session: ClusterSession, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C ends the looking, not the training; says so."""
    try:
        yield
    except SystemExit as end:
        if end.code == INTERRUPTED:
            at = session.options()
            say(
                f"\nthe training goes on. Look again: {command('status', *at)}; follow it: "
                f"{command('wait', *at)}; stop it: {command('stop', *at)} (resume continues it)"
            )
        raise


def farewell(session: ClusterSession, keep: Path) -> str:
    """What can be done with a run that is complete."""
    at, to = session.options(), f"results/{session.run().job_name}"
    lines = [
        ("take the model home", command("results", *at, "--to", to)),
        ("use it", command("predict", to, "COLUMN=VALUE")),
        ("serve it", command("serve", "--model", f"{to}/model")),
        ("its runs so far", command("runs", *at)),
        ("train again", "edit the program, or add --set KEY=VALUE, and run the same command"),
        ("its values", str(keep)),
    ]
    return "\n".join(f"  {what + ':':21}{how}" for what, how in lines)
