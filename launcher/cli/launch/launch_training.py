"""Start a training on the cluster: compute its values, upload program and data, and upgrade the release."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.cli.cluster import object_states, run_lease
from launcher.cli.cluster.cluster_api import CHART, Cluster, labels
from launcher.cli.cluster.helm import Helm
from launcher.cli.cluster.job_restart import restart_failed_training
from launcher.cli.cluster.releases import list_releases
from launcher.cli.errors import CliError, UsageError
from launcher.cli.job_sessions import ClusterSession, MissingClaimError
from launcher.cli.launch import training_values, uploads
from launcher.cli.launch.check_before_upload import check_program
from launcher.cli.launch.launch_options import LaunchOptions
from launcher.cli.launch.name_conflicts import check_job_name_is_free
from launcher.cli.launch.training_values import Values
from launcher.cli.shared_options import confirm
from launcher.cli.storage.storage_access import COPY_SECONDS, StorageRequest
from launcher.cli.suggested_commands import command_text
from launcher.cli.views.status_text import describe_wait
from launcher.io import files
from launcher.io.program_folders import find_program_folder

_FILE_MARK = "# Written by `run` of paddle-training:"
_FILE_TITLE = f"{_FILE_MARK} the values of one training, which override those that `base` prints.\n"
RENAME_FIX = "rename your folder or file"
SCRIPT_RUNTIME = "collective"
"""The chart's runtime for users' scripts, which only the image can run and which may read data of their own."""
_REMOTE = ("s3://", "https://", "http://", "file://")
Report = Callable[[str], None]


@dataclass(frozen=True)
class TrainingPlan:
    """The files to upload and the chart values of one training, before anything is sent to the cluster."""

    uploads: Sequence[uploads.Upload]
    values: Values

    @property
    def job(self) -> str:
        """The jobName of the training."""
        return str(self.values["jobName"])

    def numbered(self, number: int) -> TrainingPlan:
        """Return the same training with another jobName, which ends with `number`."""
        end = f"-{number}"
        name = self.job[: training_values.JOB_NAME_LENGTH - len(end)].rstrip("-") + end
        return dataclasses.replace(self, values={**self.values, "jobName": name})


@dataclass(frozen=True)
class LaunchResult:
    """The result of `launch`: the release of the training, and the path of its values file."""

    session: ClusterSession
    changed: bool
    """False: the release had this training already, and it has not failed."""
    keep: Path
    """The file with the training's values."""


@dataclass(frozen=True)
class CheckedLaunch:
    """A training whose values helm and the cluster accept."""

    values: str
    """The training's values as YAML."""
    base: str
    """The values that describe the cluster, as YAML."""
    base_session: ClusterSession
    """The release from which `base` was read: this one, or if it is new the one whose storage it will use."""
    k8s_job: str
    """The name of the training Job."""
    current_job: str | None
    """The training Job of the release now; None for a new release."""
    stopped_jobs: frozenset[str]
    """The release's Jobs that `stop` has suspended."""


def plan_trainings(
    options: LaunchOptions, helm: Helm, report: Report, grid: Sequence[tuple[str, ...]] = ((),)
) -> list[TrainingPlan]:
    """Check program and data on this machine; return a plan for each combination of settings in `grid`.

    Every plan uploads the program, but only the first one a local data file.

    Raises:
        LauncherError: the program, a row or a value is invalid; nothing was sent.
    """
    folder = find_program_folder(options.program)
    name = training_values.make_storage_name(folder.resolve().name)
    program = uploads.plan_program(folder, name, options.check, RENAME_FIX)
    source = None
    if options.data is not None and not options.data.startswith(_REMOTE):
        name = training_values.make_storage_name(Path(options.data).name)
        source = uploads.plan_source(Path(options.data), name, "--data", RENAME_FIX)
    defaults = helm.read_defaults()
    values = _compute_values(options, program, source, defaults)
    plans: list[TrainingPlan] = []
    for settings in grid:
        chosen = training_values.apply_settings(values, settings, defaults)
        complete = training_values.merge_values(defaults, chosen)
        if complete["runtime"] == SCRIPT_RUNTIME:
            report(
                f"program {folder}: {complete['training']['config']} is a script, which is not run before the upload"
            )
        elif options.check:
            config = folder / program.values["training.config"].partition("/")[2]
            file = source.entries[0][1] if source else None
            checked = check_program(config, complete["training"], file, complete["data"], options.by)
            report(f"{' '.join(['program', str(folder), *settings])}: {checked}")
        plans.append(TrainingPlan([program, *([source] if source and not plans else [])], chosen))
    return plans


def _compute_values(
    options: LaunchOptions, program: uploads.Upload, source: uploads.Upload | None, defaults: Values
) -> Values:
    values: Values = {"jobName": training_values.make_job_name(program.name)}
    for file in options.values or ():
        try:
            read: Any = yaml.safe_load(file.read_text("utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UsageError(
                f"-f {file} cannot be read: {error}", "give a YAML file, in UTF-8, with chart values"
            ) from error
        if not isinstance(read, dict):
            raise UsageError(f"-f {file} is not a YAML object", "write values such as training: {passes: 3}")
        values = training_values.merge_values(values, read)
    given: dict[str, Any] = dict(program.values)
    if source is not None:
        given |= source.values
    elif options.data is not None and options.data != (values.get("data") or {}).get("source"):
        given |= {"data.source": options.data, "data.sha256": ""}  # the sha256 in a file is of another source
    given |= {"trainers": options.trainers} if options.trainers else {}
    given |= {"training.passes": options.passes} if options.passes else {}
    values = training_values.merge_values(values, training_values.nest_keys(given))
    values = training_values.apply_settings(values, options.settings or (), defaults)
    complete = training_values.merge_values(defaults, values)
    own_data = complete["runtime"] == SCRIPT_RUNTIME and not complete["data"]["enabled"]
    if not (complete["data"]["source"] or own_data):
        raise UsageError(
            "there is no data to train on",
            "give --data FILE, --data s3://…, or data.source in a values file (-f)",
        )
    return values


def launch(
    plan: TrainingPlan, options: LaunchOptions, helm: Helm, cluster: Cluster, report: Report
) -> LaunchResult:
    """Upload what has changed, write the values to a file, and upgrade the release to them.

    The leases of the release and of the job's name are held meanwhile, so that no other `run` changes this
    release or starts the same job in another release.

    Raises:
        UsageError: the values are rejected, this training is stopped, or the user does not confirm.
        OtherRunError: another `run` holds one of the leases.
        LauncherError: the cluster, the storage or helm failed.
    """
    keep = options.keep or Path(f"{plan.job}.values.yaml")
    if keep.exists() and not keep.read_text("utf-8", "replace").startswith(_FILE_MARK):
        raise UsageError(
            f"the file {keep} exists, and `run` did not write it", "give another file with --keep FILE"
        )
    session = ClusterSession(cluster, options.release, report)
    with (
        run_lease.hold_lease(cluster, options.release) as check_release,
        run_lease.hold_lease(cluster, options.release, plan.job) as check_job,
    ):
        checked = _check(plan, options, helm, session, keep)
        _confirm_replacement(checked, options, session, plan.job)
        files.write_atomically(keep, checked.values)
        _upload(plan, checked.base_session, options.yes, report)
        check_release()
        check_job()
        restarted = _apply(checked, helm, session, keep)
    session.expect_run(checked.k8s_job, lambda: _describe_replacement(helm, options.release, checked.k8s_job))
    return LaunchResult(session, restarted or checked.k8s_job != checked.current_job, keep)


def _check(
    plan: TrainingPlan, options: LaunchOptions, helm: Helm, session: ClusterSession, keep: Path
) -> CheckedLaunch:
    """Check that helm and the cluster accept the plan's values; change nothing.

    Raises:
        UsageError: the values are rejected, the job's name is taken, or this training is stopped.
        CliError: there is no release whose image and storage a new one could use, or the cluster is unreachable.
    """
    release = options.release
    current = session.run_if_installed()
    if current and current.cron_job and not options.replace:
        raise UsageError(
            f"release {release} has training.schedule, which `run` would remove",
            "use another release and job (--release NAME --set jobName=NAME), or add --replace",
        )
    base_session = session if current else _choose_base_release(session, options.base_release)
    base = _read_base(base_session, helm)
    check_job_name_is_free(session, base, plan.values)
    current_job = current.k8s_job if current else None
    values = _FILE_TITLE + yaml.safe_dump(plan.values, sort_keys=False, allow_unicode=True)
    k8s_job = helm.check(release, base, values, keep)["k8sJob"]
    stopped = _find_stopped_jobs(session) if current else frozenset()
    if k8s_job == current_job and k8s_job in stopped:
        raise UsageError(
            f"training {plan.job} of release {release} is stopped (its Job {k8s_job} is suspended), and "
            "program, data and values have not changed; nothing was sent",
            f"resume it: {command_text('resume', '--follow', *session.options())}",
        )
    return CheckedLaunch(values, base, base_session, k8s_job, current_job, stopped)


def _apply(checked: CheckedLaunch, helm: Helm, session: ClusterSession, keep: Path) -> bool:
    """Print the equivalent helm command, and upgrade the release to the checked values.

    helm does nothing about a training that has failed with these values; it is started again. Return whether it was.

    `keep` is the file in which the values stay (`JOB.values.yaml`), for the printed command.
    """
    base = command_text("base", *checked.base_session.options())
    session.report(
        f"upgrading the release, as if you ran:\n  {base} |\n"
        f"  {shlex.join(helm.upgrade_command(session.release, keep))}"
    )
    description = f"run by {run_lease.user_and_host()}"
    helm.upgrade(session.release, checked.base, checked.values, keep, description)
    if checked.stopped_jobs and (data_job := session.run().k8s_data_job) in checked.stopped_jobs:
        session.cluster.suspend_job(data_job, False)  # helm leaves a Job with the same name suspended
    return restart_failed_training(session.cluster, session.run(), session.report)


def _find_stopped_jobs(session: ClusterSession) -> frozenset[str]:
    """Return the names of the release's suspended Jobs that `resume` must start.

    Jobs with a Kueue queue are left out: the queue starts them.
    """
    jobs = session.cluster.list_objects("job", "list the release's Jobs", labels(session.release))
    suspended = (job for job in jobs if object_states.job_state(job)[0] == "suspended")
    return frozenset(object_states.name_of(job) for job in suspended if not object_states.queue_of(job))


def _read_base(session: ClusterSession, helm: Helm) -> str:
    """Return the values that describe the cluster.

    Raises:
        CliError: the PersistentVolumeClaim in these values does not exist; the message has the revision to which
            helm can roll back.
    """
    try:
        return session.read_base_values()
    except MissingClaimError as error:
        revisions = helm.list_revisions(session.release)
        claims = ((entry, helm.read_claim(session.release, entry["revision"])) for entry in revisions)
        earlier = next((found for found in claims if found[1] not in ("", error.claim)), None)
        if earlier is None:
            raise
        revision = earlier[0]["revision"]
        namespace = ["-n", session.cluster.namespace]
        rollback = shlex.join(["helm", "rollback", session.release, str(revision), *namespace])
        raise CliError(
            f"the claim {error.claim} of release {session.release} does not exist. Revision {revision} of "
            f"helm is the last one with another claim ({earlier[1]}); the newest is "
            f"{_describe_revision(revisions[0])}",
            f"{rollback}; then run the same command again",
        ) from error


def _describe_revision(entry: Mapping[str, Any]) -> str:
    return f"{entry['revision']} ({entry['description']}, {entry['updated']})"


def _describe_replacement(helm: Helm, release: str, job: str) -> str:
    """Return the message for a user who follows run `job` after another run has replaced it in the release."""
    try:
        by = f"revision {_describe_revision(helm.list_revisions(release)[0])} of helm"
    except CliError as error:
        by = f"an upgrade ({error})"
    return (
        f"run {job} was replaced by {by}; the new run's score is not shown. Checkpoints are kept. Fix: run "
        "the same command again when the new run has finished, or add --replace to stop it now. Training "
        "resumes from the newest checkpoint."
    )


def _choose_base_release(session: ClusterSession, given: str | None) -> ClusterSession:
    """Return a session on the release whose image and storage a new release uses.

    That is the release `given`, else the release with the default name, else the only release of the namespace.

    Raises:
        CliError: the namespace has no release yet.
        UsageError: the namespace has several releases, and none has the default name.
    """
    cluster = session.cluster
    if given is not None:
        return ClusterSession(cluster, given, session.report)
    known = [release.name for release in list_releases(cluster, all_namespaces=False)]
    if len(known) == 1 or CHART in known:
        return ClusterSession(cluster, CHART if CHART in known else known[0], session.report)
    place = f"namespace {cluster.namespace} on {cluster.name}"
    if not known:
        raise CliError(
            f"{place} has no release of this chart yet, whose image and storage a training could use",
            "create the first release with `make demo`, `pulumi up` or helm install, or choose another "
            "namespace with -n",
        )
    raise UsageError(
        f"{place} has several releases ({', '.join(known)}), and none has the default name {CHART}: it is "
        f"unclear whose image and storage the new release {session.release} must use",
        "choose one with --base-release NAME",
    )


def _confirm_replacement(
    checked: CheckedLaunch, options: LaunchOptions, session: ClusterSession, job: str
) -> None:
    """Ask the user before another training of the release is stopped. Raises UsageError for the answer no."""
    current = checked.current_job
    if current in (None, checked.k8s_job) or current in checked.stopped_jobs or options.replace:
        return
    view = session.poll_view()
    if view.is_over or view.state == "missing":
        return
    run = session.run()
    problem = (
        f"release {run.release} is training job {run.job_name} ({view.state}: {describe_wait(view)}). "
        f"Starting {job} would stop it; its checkpoints are kept"
    )
    if not confirm(f"{problem}. Stop it?"):
        raise UsageError(
            problem,
            "add --replace to stop the present training (or, to keep it, use another release and job: --release NAME "
            "--set jobName=NAME)",
        )


def _upload(plan: TrainingPlan, session: ClusterSession, yes: bool, report: Report) -> None:
    request = StorageRequest(job=plan.job, seconds=COPY_SECONDS, writable=True)
    with session.storage(request) as storage:
        for upload in plan.uploads:
            replace = yes or not upload.is_source  # the program is used by this job only
            try:
                uploads.send(storage, upload, replace, report)
            except uploads.OtherContentError as error:
                problem = f"sources/{upload.name} on the storage has other content"
                if not confirm(f"{problem}. Replace it?"):
                    raise UsageError(
                        f"the storage has other content for sources/{upload.name} than your file; it was not replaced, "
                        "since other jobs may train on it",
                        "replace it with --yes, or rename the file",
                    ) from error
                uploads.send(storage, upload, True, report)


def describe_next_steps(session: ClusterSession, keep: Path, is_program: bool) -> str:
    """Return the commands that are useful after a complete run, one on each line; `is_program`: of runtime fleet."""
    options, to = session.options(), f"results/{session.run().job_name}"
    use = (
        ("predict with it", command_text("predict", to, "COLUMN=VALUE")),
        ("serve it", command_text("serve", "--model", f"{to}/model")),
    )
    lines = [
        ("copy the model", command_text("results", *options, "--to", to)),
        *(use if is_program else ()),
        ("list the job's runs", command_text("runs", *options)),
        ("train again", "edit the program, or add --set KEY=VALUE, and run the same command"),
        ("values", str(keep)),
    ]
    return "\n".join(f"  {title + ':':21}{how}" for title, how in lines)
