"""Start a training on the cluster: compute its values from the options of `run` or `sweep`, upload, upgrade.

A stopped or failed training continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from launcher.cli import object_states, packages, run_lease, uploads
from launcher.cli.cluster_api import CHART, NAMESPACE, Cluster, Object, connect, user_and_host
from launcher.cli.errors import CliError, UsageError
from launcher.cli.job_sessions import ClusterSession
from launcher.cli.releases import (
    Helm,
    ReleaseRun,
    list_releases,
    merge_values,
    read_defaults,
    volume_identity,
)
from launcher.cli.run_display import describe_wait
from launcher.cli.shared_options import Context, Kubeconfig, Namespace, ProgramOptions
from launcher.cli.storage import COPY_SECONDS, StorageRequest
from launcher.cli.terminal import command_text, confirm, report
from launcher.io import files, spelling
from launcher.io.program_folders import find_program_folder, is_script_file
from launcher.settings import SCRIPT_RUNTIMES, DataSettings, TrainSettings, settings_of
from launcher.settings.parsers import BadValueError

_FILE_MARK = "# Written by `run` of paddle-training:"
_FILE_TITLE = f"{_FILE_MARK} the values of one training, which override the values that `base` prints.\n"
_REMOTE = ("s3://", "https://", "http://", "file://")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(ProgramOptions):
    """The options that `run` and `sweep` share."""

    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER|URL",
            help="The training data: a file of this machine, or a folder of files for a script (it is uploaded), "
            "s3://…, https://…, or file://NAME for a file on the storage; default: data.source of the values.",
        ),
    ] = None
    trainers: Annotated[int | None, typer.Option(min=1, help="Number of training pods.")] = None
    passes: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None
    base_release: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The release whose image and storage a new release uses."),
    ] = None
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Replace a data file with the same name on the storage without asking."
        ),
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="First parse the first rows and train on some of them on this machine."
        ),
    ] = True
    namespace: Namespace = NAMESPACE
    kubeconfig: Kubeconfig = None
    context: Context = None

    def connect(self) -> Cluster:
        """Return a client for the cluster of the options. Raises UsageError for an unusable kubeconfig."""
        return connect(self.kubeconfig, self.context, self.namespace)


@dataclass(frozen=True)
class TrainingPlan:
    """The files to upload and the chart values of one training, before anything is sent to the cluster."""

    uploads: Sequence[uploads.Upload]
    values: Values
    requirements: Path | None = None
    """The file with the packages that the program needs; None: the program needs only the packages of the image."""

    @property
    def job(self) -> str:
        """The jobName of the training."""
        return str(self.values["jobName"])


def plan_trainings(
    options: LaunchOptions, grid: Sequence[tuple[str, ...]] = ((),), by: str | None = None
) -> list[TrainingPlan]:
    """Check program and data on this machine; return a plan for each combination of settings in `grid`.

    Every plan contains the upload of the program. Only the first plan contains the upload of a local data file, because
    the other trainings use the same file.

    Args:
        options: the options of the command.
        grid: combinations of settings, each setting as `key=value`.
        by: a score that the program must have; None: no score is required.

    Raises LauncherError if the program, a row or a value is invalid; nothing was sent.
    """
    folder = find_program_folder(options.program)
    in_files, of_data, source = read_values(options.values or ()), dict[str, str](), None
    if options.data is not None and not options.data.startswith(_REMOTE):
        data_format = (_compute_values(options, in_files, {}).get("data") or {}).get("format")
        source = uploads.plan_source(Path(options.data), data_format)
        of_data = source.values
    elif options.data is not None and options.data != (in_files.get("data") or {}).get("source"):
        of_data = {
            "data.source": options.data,
            "data.sha256": "",
        }  # the sha256 in a file is of another source
    values = _compute_values(options, in_files, of_data)
    given = str((values.get("training") or {}).get("config") or "")
    main = options.script or given.partition("/")[2] or (given if is_script_file(given) else "")
    program = uploads.plan_program(folder, options.check, main)
    fix = "name what the program does not need in its file .launcherignore, or give --yes"
    program.confirm_size("the program's folder", uploads.LARGE_BYTES, options.yes, fix)
    requirements = packages.find_requirements(folder, options.requirements)
    if requirements and (values.get("training") or {}).get("packages"):
        report(f"{requirements} is not read, because the values have training.packages")
        requirements = None
    values = merge_values(_suggest_values(program, values), nest_keys(program.values))
    if "jobName" not in values:
        values = {"jobName": make_job_name(program.name), **values}
    plans: list[TrainingPlan] = []
    for settings in grid:
        chosen = apply_settings(values, settings)
        complete = complete_values(chosen)
        is_script = complete["runtime"] in SCRIPT_RUNTIMES
        if not complete["data"]["source"] and (complete["data"]["enabled"] or not is_script):
            raise UsageError(
                "there is no data to train on",
                "give --data FILE, --data s3://…, or data.source in a values file (-f)",
            )
        if not is_script and complete["data"]["format"] == "files":
            raise UsageError(
                f"data.format is files, but {program.values['training.config']} is a program, which reads rows",
                "give --data FILE with rows, or use a script",
            )
        if is_script:
            report(
                f"program {folder}: {complete['training']['config']} is a script, which is not run before the upload"
            )
        elif options.check:
            config = folder / program.values["training.config"].partition("/")[2]
            file = source.entries[0][1] if source else None
            checked = uploads.check_program(config, complete["training"], file, complete["data"], by)
            report(f"{' '.join(['program', str(folder), *settings])}: {checked}")
        sent = [program, *([source] if source and not plans else [])]
        plans.append(TrainingPlan(sent, chosen, requirements))
    return plans


def _suggest_values(program: uploads.Upload, values: Values) -> Values:
    """Return `values` with the values that a script needs, if they are not set.

    These are `runtime`, and `data.enabled: false` for a script without a data source. Raises UsageError if `values`
    have a runtime for which the program or script is not written.
    """
    given, config = values.get("runtime"), program.values["training.config"]
    if given not in (None, program.runtime, "v1") and program.runtime:
        is_program = program.runtime == "fleet"
        # A script may call Paddle's servers in a module that it imports.
        if is_program or given == "fleet" or program.runtime == "ps":
            kind = {
                "fleet": "a program: it is named trainer_config.py, or defines inputs, parse, network and others",
                "ps": "a script for parameter servers: it calls fleet.init_server, run_server or init_worker",
                "collective": "a script",
            }[program.runtime]
            raise UsageError(
                f"runtime is {given}, but {config} is {kind}; nothing was sent",
                f"set runtime: {program.runtime} in the values, or give another file with --script",
            )
    suggested: Values = {}
    if given is None and program.runtime in SCRIPT_RUNTIMES:
        suggested["runtime"] = program.runtime
    is_script = (given or program.runtime) in SCRIPT_RUNTIMES
    data = values.get("data") or {}
    if is_script and not data.get("source") and not data.get("sourceSecret") and "enabled" not in data:
        suggested["data"] = {"enabled": False}  # the script reads its own data
    return merge_values(suggested, values)


def _add_packages(
    plan: TrainingPlan, session: ClusterSession, base: Values, options: LaunchOptions
) -> TrainingPlan:
    """Send the packages that the program of `plan` needs, and return `plan` with the value `training.packages`.

    The packages are chosen for the image in `base`, which are the merged values of the release and of the training. A
    plan without requirements is returned unchanged.
    """
    if plan.requirements is None:
        return plan
    image = str(base["image"])
    request = StorageRequest(job=plan.job, image=image, seconds=COPY_SECONDS, writable=True)
    with session.storage(request) as storage:
        values = uploads.send_packages(plan.requirements, image, storage, options.yes)
    return dataclasses.replace(plan, values=merge_values(plan.values, nest_keys(values)))


def _compute_values(options: LaunchOptions, in_files: Values, of_data: Mapping[str, str]) -> Values:
    """Merge the values of the files of `-f`, of the data and of the options; return the result.

    Raises UsageError if a value is invalid.
    """
    given: dict[str, Any] = dict(of_data)
    given |= {"training.args": options.arguments} if options.arguments else {}
    given |= {"trainers": options.trainers} if options.trainers else {}
    given |= {"training.passes": options.passes} if options.passes else {}
    values = apply_settings(merge_values(in_files, nest_keys(given)), options.settings or ())
    complete_values(values)
    return values


def read_values(files: Iterable[Path]) -> Values:
    """Return the chart values of YAML files; the values of later files override those of earlier ones.

    Raises UsageError if a file cannot be read.
    """
    values: Values = {}
    for file in files:
        try:
            read: Any = yaml.safe_load(file.read_text("utf-8")) or {}
            values = merge_values(values, dict(read))
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            raise UsageError(
                f"-f {file} is not a file with chart values: {error}",
                "give a YAML file, in UTF-8, with values such as training: {passes: 3}",
            ) from error
    return values


def launch(
    plan: TrainingPlan,
    options: LaunchOptions,
    helm: Helm,
    session: ClusterSession,
    keep: Path,
    *,
    replace: bool = False,
) -> bool:
    """Upload what has changed, write the plan's values to the file `keep`, and upgrade the release to these values.

    The release is the one of `session`. If it already has a training with these values that failed or was stopped, the
    training continues. With `replace`, another training that the release runs now is stopped without a question.

    While this function runs, it holds the leases of the release and of the job's name, so that no other `run` changes
    this release or starts the same job in another release. Afterwards `session` rejects a run that another command has
    started in the release.

    Return whether a training was started or continued. The result is False if the release had this training already,
    and the training had neither failed nor been stopped.

    Raises:
        UsageError: the file `keep` exists, but `run` did not write it; helm or the cluster rejects the values; the
            job's name is taken; the program's packages cannot be installed; the user does not confirm; or
            `scheduling.suspend` would hold the training back.
        OtherRunError: another command holds one of the leases, or a lease was lost.
        LauncherError: the cluster, the storage or helm failed.
    """
    if keep.exists() and not keep.read_text("utf-8", "replace").startswith(_FILE_MARK):
        raise UsageError(
            f"the file {keep} exists, and `run` did not write it", "give another file with --keep FILE"
        )
    cluster, release = session.cluster, session.release
    with (
        run_lease.hold_lease(cluster, release) as check_release,
        run_lease.hold_lease(cluster, release, plan.job) as check_job,
    ):
        current = session.run_if_installed()
        base = session if current else choose_base_release(session, options.base_release)
        values = merge_values(base.read_base_values(helm), plan.values)
        plan = _add_packages(plan, base, values, options)
        values = merge_values(values, plan.values)
        scheduling = values.get("scheduling") or {}
        if scheduling.get("suspend") and not scheduling.get("queue"):  # a queue starts the Job itself
            raise UsageError(
                f"scheduling.suspend is true in the values of this training or of release {base.release}, so the "
                "training would not start",
                "add --set scheduling.suspend=false",
            )
        check_job_name_is_free(session, merge_values(read_defaults(), values))
        k8s_job = helm.check(release, values)
        is_new = current is None or current.k8s_job != k8s_job
        if current and is_new and not replace:
            _confirm_replacement(session, current, plan.job)
        write_values(keep, plan.values)
        _upload(plan, session, base, options.yes)
        check_release()
        check_job()
        report(
            f"upgrading the release, as if you ran:\n  {command_text('base', *base.options())} |\n"
            f"  {shlex.join(helm.upgrade_command(release, '-', str(keep)))}"
        )
        helm.upgrade(release, values, f"run by {user_and_host()}")
        # helm neither resumes a suspended Job nor starts a failed one again.
        is_continued = continue_training(cluster, session.run())
    session.expected_job = k8s_job
    return is_new or is_continued


def write_values(file: Path, values: Values) -> None:
    """Write the values of a training to a file, for `-f`."""
    text = _FILE_TITLE + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    files.write_atomically(file, text)


def check_job_name_is_free(session: ClusterSession, values: Values) -> None:
    """Raise UsageError if another release has a job with the same name on the same storage.

    Each of the two releases would replace the data of the other one and move its output. Releases in namespaces that
    this user may not list are not checked, and neither are releases of another version of the chart. `values` are the
    merged chart values of the release and of the training.
    """
    cluster, release, job = session.cluster, session.release, values["jobName"]
    volume = volume_identity(values, cluster.namespace)
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


def choose_base_release(session: ClusterSession, given: str | None) -> ClusterSession:
    """Return a session on the release whose image and storage a new release uses.

    That is the release `given`, else the release with the default name, else the only release of the namespace.

    Raises:
        CliError: the namespace has no release yet.
        UsageError: the namespace has several releases, and none has the default name.
    """
    cluster = session.cluster
    if given is not None:
        return ClusterSession(cluster, given)
    known = [release.name for release in list_releases(cluster, all_namespaces=False)]
    if len(known) == 1 or CHART in known:
        return ClusterSession(cluster, CHART if CHART in known else known[0])
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


def _confirm_replacement(session: ClusterSession, current: ReleaseRun, job: str) -> None:
    """Ask the user whether training `job` may replace the current training of the release, or its schedule.

    Return without a question if the release has no schedule and its training is over, is missing in the cluster, or
    was stopped (its Job is suspended, and no Kueue queue controls it).

    Raises UsageError if the user answers no, or stdin is not a terminal.
    """
    problem = f"release {current.release} has training.schedule, which training {job} would remove"
    if not current.cron_job:
        view = session.peek_view()
        is_stopped = view.state == "suspended" and view.training and not view.training.queue
        if view.is_over or view.state == "missing" or is_stopped:
            return
        problem = (
            f"release {current.release} is training job {current.job_name} ({view.state}: {describe_wait(view)}). "
            f"Starting {job} would stop it; its checkpoints are kept"
        )
    if not confirm(f"{problem}. Replace it?"):
        raise UsageError(
            problem,
            "add --replace to do this (or, to keep it, use another release and job: --release NAME "
            "--set jobName=NAME)",
        )


def _upload(plan: TrainingPlan, session: ClusterSession, base: ClusterSession, yes: bool) -> None:
    """Upload the files of `plan`, through the storage that `session` keeps open, else through the storage of `base`.

    Without `yes`, ask the user before a data file with other content on the storage is replaced. Raises UsageError if
    the user does not confirm.
    """
    request = StorageRequest(job=plan.job, seconds=COPY_SECONDS, writable=True)
    kept = session.kept
    with contextlib.nullcontext(kept.job(plan.job)) if kept else base.storage(request) as storage:
        for upload in plan.uploads:
            replace = yes or not upload.folder  # the program is used by this job only
            try:
                uploads.send(storage, upload, replace)
            except uploads.OtherContentError as error:
                problem = (
                    f"the storage has other content for sources/{upload.name}, and other jobs may train on it"
                )
                if not confirm(f"{problem}. Replace it?"):
                    raise UsageError(
                        f"{problem}; it was not replaced", "replace it with --yes, or rename the file"
                    ) from error
                uploads.send(storage, upload, True)


def describe_next_steps(session: ClusterSession, keep: Path, is_program: bool) -> str:
    """Return what is useful after a complete run, one thing on each line: commands, and the file `keep`.

    `keep` is the file with the training's values. `is_program` is whether the run has runtime fleet: then the model can
    be used with `predict` and `serve`.
    """
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


Values = dict[str, Any]
JOB_NAME_LENGTH = 45
_OF_TRAINING = ("batch_size", "args", "keep_best", "mode")
_OF_DATA = ("columns", "delimiter", "encoding", "format", "header", "member", "quoting", "tables")
_USED_HERE = [settings_of(TrainSettings)[name] for name in _OF_TRAINING]
_USED_HERE += [settings_of(DataSettings)[name] for name in _OF_DATA]
"""The settings that the checks of `run` and `try` use on this machine."""


def nest_keys(flat: Mapping[str, Any]) -> Values:
    """Return values with dotted keys as nested objects: {"a.b": 1} becomes {"a": {"b": 1}}."""
    values: Values = {}
    for key, value in flat.items():
        branch = value
        for part in reversed(key.split(".")):
            branch = {part: branch}
        values = merge_values(values, branch)
    return values


def apply_settings(values: Mapping[str, Any], settings: Iterable[str]) -> Values:
    """Return `values` after applying each `key=value` of `--set`, or of a trial of `sweep`.

    A key whose first part is a value of the chart sets that value: `training.batchSize=128`. Any other key is an
    option of the program: `learning_rate=0.01`.

    Raises UsageError if a setting has not the form `key=value`, its key is unknown, or its value is not YAML.
    """
    changed, defaults = dict(values), read_defaults()
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set {setting}: this is not KEY=VALUE",
                "set a value of the chart (training.batchSize=128) or an option of the program "
                "(learning_rate=0.01)",
            )
        first = key.split(".")[0]
        if first in defaults:
            changed = merge_values(changed, nest_keys({key: _parse(key, text)}))
        elif "." in key:
            hint = spelling.suggest(first, defaults)
            raise UsageError(
                f"--set {setting}: the chart has no value {first}, and options of a program contain no dot"
                f"{'; ' + hint if hint else ''}",
                f"choose a value of the chart: {', '.join(sorted(defaults))}",
            )
        else:
            training = dict(changed.get("training") or {})
            others = _without_option(training.get("args") or [], key)
            changed["training"] = {**training, "args": [*others, f"--{key}={text}"]}
    return changed


def _without_option(arguments: Sequence[str], key: str) -> list[str]:
    """Return the arguments without the option `key`, given as `--key=VALUE` or as `--key VALUE`."""
    kept: list[str] = []
    is_value = False
    for argument in map(str, arguments):
        name, equals, _ = argument.partition("=")
        is_option = name.startswith("-") and name.lstrip("-").replace("-", "_") == key.replace("-", "_")
        if not (is_option or (is_value and not argument.startswith("--"))):
            kept.append(argument)
        is_value = is_option and not equals
    return kept


def _parse(key: str, text: str) -> Any:
    """Return the value of `--set key=text`.

    If the chart's default for `key` is a text, the value is `text` itself. Otherwise `text` is parsed as YAML; for
    example, `[a, b]` is a list.
    """
    default: Any = read_defaults()
    for part in key.split("."):
        default = default.get(part) if isinstance(default, Mapping) else None
    if isinstance(default, str):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {key}={text}: the value is not YAML: {error}", "quote it as YAML") from error


def complete_values(values: Values) -> Values:
    """Merge `values` into the chart's defaults, check them, and return the result.

    The check covers the keys of `training` and `data`, and the values that this machine uses (_USED_HERE): `run` uses
    them before helm checks all values against the chart's schema, and `try` does not call helm at all.

    Raises UsageError if the chart has no such key, or the parser of a value rejects the value.
    """
    defaults = read_defaults()
    complete = merge_values(defaults, values)
    for part in ("training", "data"):
        found = complete[part]
        if not isinstance(found, Mapping):
            raise _value_error(part, found, "an object, such as {KEY: VALUE}")
        for key in found.keys() - defaults[part].keys():
            hint = spelling.suggest(str(key), defaults[part])
            raise UsageError(
                f"the chart has no value {part}.{key}{'; ' + hint if hint else ''}",
                f"choose a value below {part}: {', '.join(defaults[part])}",
            )
    for setting in _USED_HERE:
        value = setting.find(complete)
        try:
            setting.convert(value)
        except BadValueError as error:
            raise _value_error(setting.key, value, f"{error.limit}: {error.reason}") from error
    return complete


def _value_error(key: str, value: Any, limit: str) -> UsageError:
    shown = "null" if value is None else repr(value)
    return UsageError(
        f"{key} is {shown}, but must be {limit}", "correct it where you set it (--set, --search, -f)"
    )


def make_job_name(folder: str) -> str:
    """Return a jobName made from the name of a program's folder: in lower case, and beginning with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")
    return (name if name[0].isalpha() else f"run-{name}")[:JOB_NAME_LENGTH].strip("-")


GONE_SECONDS = 120.0  # longest wait for a deleted Job to disappear
_SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
_SERVER_LABELS = {
    f"{prefix}{name}" for prefix in ("", "batch.kubernetes.io/") for name in ("controller-uid", "job-name")
}


def continue_training(cluster: Cluster, run: ReleaseRun) -> bool:
    """Resume a release's suspended Jobs, and start its training Job again if it has failed.

    Return whether a Job was resumed or started; each such Job is reported on stderr.

    Jobs with a Kueue queue stay suspended, because the queue starts them. If the data Job has failed, the training is
    not started again: it needs a new data Job, which needs another `runId`.
    """
    names = (run.k8s_job, run.k8s_data_job)
    jobs = {name: job for name in names if name and (job := cluster.find("job", name))}
    states = {name: object_states.job_state(job)[0] for name, job in jobs.items()}
    held = [name for name, state in states.items() if state == "suspended"]
    stopped = [name for name in held if not object_states.queue_of(jobs[name])]
    for name in stopped:
        report(f"resumed: {name}")
        cluster.suspend_job(name, False)
    has_failed = states.get(run.k8s_job) == "failed" and states.get(run.k8s_data_job) != "failed"
    if has_failed:
        report(
            f"the training has failed: starting Job {run.k8s_job} again, which resumes from the newest checkpoint"
        )
        recreate_job(cluster, jobs[run.k8s_job])
    return has_failed or bool(stopped)


def recreate_job(cluster: Cluster, job: Object) -> None:
    """Delete a Job, and create it again with the same name and spec, so that its pods start again.

    Raises CliError if the Job still exists after GONE_SECONDS, or the cluster rejects a request.
    """
    name = object_states.name_of(job)
    cluster.delete("job", name)
    deadline = time.monotonic() + GONE_SECONDS
    while cluster.find("job", name) is not None:
        if time.monotonic() > deadline:
            raise CliError(
                f"the Job {name} still exists {GONE_SECONDS:.0f} s after it was deleted",
                f"check why its pods do not exit (kubectl get pods -n {cluster.namespace} -l "
                f"job-name={name}), then run the same command again",
            )
        time.sleep(0.5)
    cluster.create("job", reset_job(job))


def reset_job(job: Object) -> Object:
    """Return a Job without the fields that the API server added, so that it can be created again.

    The reference to the CronJob that owns the Job is kept: without the reference, the Job would not count as the newest
    run of the schedule.
    """
    meta = {key: value for key, value in job["metadata"].items() if key not in _SERVER_FIELDS}
    meta["annotations"] = {
        key: value for key, value in (meta.get("annotations") or {}).items() if not key.startswith("batch.")
    }
    spec = {key: value for key, value in job["spec"].items() if key != "selector"}
    template = dict(spec["template"])
    kept = {k: v for k, v in template["metadata"].get("labels", {}).items() if k not in _SERVER_LABELS}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": kept}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
