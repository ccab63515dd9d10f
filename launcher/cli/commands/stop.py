"""`stop`: save a checkpoint and suspend a training's Jobs. `resume`: continue a stopped or failed training.

`scale`: change the number of training pods of an elastic run while it trains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from launcher.cli import object_states
from launcher.cli.errors import CliError, UsageError
from launcher.cli.job_sessions import ClusterSession, open_through_running_pod
from launcher.cli.launch_training import continue_training
from launcher.cli.releases import Helm, merge_values, read_defaults
from launcher.cli.run_display import describe_following, explain_interrupt, follow_run
from launcher.cli.run_files import STATUS, check_intact
from launcher.cli.run_view import FINAL_STATES, pods_of, rank_of
from launcher.cli.shared_options import MAX_WAIT, with_release
from launcher.cli.terminal import command_text, confirm, print_line, report
from launcher.errors import DataError
from launcher.paths import position
from launcher.reporting import text_formats

GONE_SECONDS = 180.0  # longest wait for suspended pods to exit; a launcher exits within a minute
LINE_SECONDS = 10.0  # between two lines of progress
ANSWER_SECONDS = 60.0  # without a line from the pod, which writes one every second
SAVED_STATES = ("finishing", "exporting")
"""States of a run in which the checkpoint of its last pass is saved."""
ONLY_MODEL_LEFT = "the last pass is saved; only the model remains to be written"
NONE_SAVED = "none saved; `resume` continues from the newest earlier checkpoint"


@with_release
def stop(
    session: ClusterSession,
    timeout: Annotated[
        float,
        typer.Option(min=1, max=MAX_WAIT, metavar="SECONDS", help="How long to wait for the checkpoint."),
    ] = 600.0,
    checkpoint: Annotated[
        bool,
        typer.Option(
            "--checkpoint/--no-checkpoint",
            help="Save a checkpoint first; without it, one is saved only if it fits into the pods' grace period.",
        ),
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Stop without asking, also if no checkpoint could be saved.")
    ] = False,
) -> None:
    """Save a checkpoint and stop the training: its Job is suspended, and `resume` continues it."""
    jobs = find_running_jobs(session)
    saved = NONE_SAVED
    try:
        if checkpoint:
            saved = request_checkpoint(session, timeout)
    except UsageError:  # the run is over
        raise
    except (CliError, DataError) as error:
        report(
            f"no checkpoint could be saved: {error}. If you stop now, the run resumes from its newest earlier "
            "checkpoint, or from the start; training since then is lost."
        )
        if not yes and not confirm("Stop anyway?"):
            raise UsageError(
                "nothing was stopped, because no checkpoint could be saved",
                "try again later, or stop without a checkpoint with --yes",
            ) from error
    suspend_jobs(session, jobs)
    print_line(f"stopped: {', '.join(jobs)}")
    print_line(f"checkpoint: {saved}")
    print_line(f"  continue:     {command_text('resume', *session.options())}")
    uninstall = f"helm uninstall {session.release} -n {session.cluster.namespace}"
    print_line(f"  remove it:    {uninstall} (data, checkpoints and models stay)")


def find_running_jobs(session: ClusterSession) -> list[str]:
    """Return the names of the release's Jobs that run, its training Job first.

    Raises UsageError if the training Job does not run, or a Kueue queue controls it.
    """
    run = session.run()
    jobs = {name: session.cluster.find("job", name) for name in (run.k8s_job, run.k8s_data_job) if name}
    running = [name for name, job in jobs.items() if object_states.job_state(job)[0] == "running"]
    if run.k8s_job not in running or object_states.queue_of(jobs[run.k8s_job]):
        raise describe_wrong_state(session, "stop", "running")
    return running


def describe_wrong_state(session: ClusterSession, action: str, wanted: str) -> UsageError:
    """Return the error that the command `action` is impossible now.

    The reason is that the training Job's state is not `wanted`, or that a Kueue queue controls the Job.
    """
    run = session.run()
    job = session.cluster.find("job", run.k8s_job)
    state, queue = object_states.job_state(job)[0], object_states.queue_of(job)
    if queue and state == wanted:
        return UsageError(
            f"cannot {action} release {run.release}: Kueue suspends and resumes its Job (queue {queue})",
            f"set spec.active of the Job's Workload to {str(action == 'resume').lower()} (kubectl edit workloads)",
        )
    suggested = {"suspended": "resume", "running": "wait"}.get(state, "status")
    return UsageError(
        f"cannot {action} release {run.release}: its training Job {run.k8s_job} is {state}, not {wanted}",
        f"continue with: {command_text(suggested, *session.options())}",
    )


def request_checkpoint(session: ClusterSession, seconds: float) -> str:
    """Request a checkpoint from the training, and wait at most `seconds` until it is saved; print the progress.

    Return a text for messages about the saved checkpoint, such as `pass 4, batch 500 (output/FOLDER)`. If the last pass
    is saved already, the text says that only the model remains to be written.

    Raises:
        UsageError: the run ended in the meantime.
        CliError: no checkpoint was saved, or the cluster or the storage failed.
        DataError: the status of the run is damaged.
    """
    view = session.peek_view()
    state = view.progress.state if view.progress else view.state
    check_intact({key: why for key, why in view.damage.items() if key == STATUS}, view.where)
    if state in SAVED_STATES:
        return ONLY_MODEL_LEFT
    if state != "training":
        raise CliError(f"the run is not training yet (its state is {state})")
    pods = sorted(session.pods(), key=lambda pod: rank_of(pod) or 0)
    storage = open_through_running_pod(session.cluster, session.run(), pods)
    if storage is None:
        raise CliError("no pod of the run is running")
    report(f"waiting for a checkpoint, up to {text_formats.duration(seconds)}")
    answer: dict[str, Any] = {}
    started = said_at = time.monotonic()
    with storage.run("checkpoint", "--wait", str(seconds), idle_seconds=ANSWER_SECONDS) as stream:
        for line in stream:
            answer = json.loads(line)
            now = time.monotonic()
            if "saved" not in answer and now - said_at >= LINE_SECONDS:
                said_at = now
                report(f"waiting for a checkpoint for {now - started:.0f} s: {_describe_place(answer)}")
    if answer.get("state") in FINAL_STATES:
        raise UsageError(
            f"the run is {answer['state']} now: there is nothing to stop",
            f"show its state and cause: {command_text('status', *session.options())}",
        )
    if folder := answer.get("saved"):
        return f"{position(folder)} (output/{folder})"
    if answer.get("state") in SAVED_STATES:
        return ONLY_MODEL_LEFT
    raise CliError(f"none was saved within {text_formats.duration(time.monotonic() - started)}")


def _describe_place(answer: dict[str, Any]) -> str:
    if answer.get("pass") is None:
        return str(answer.get("state"))
    return f"{answer['state']}, pass {int(answer['pass']) + 1}, batch {answer.get('batch') or 0}"


def suspend_jobs(session: ClusterSession, names: Sequence[str]) -> None:
    """Suspend these Jobs, and wait until their pods have exited.

    Raises CliError if a pod still runs after GONE_SECONDS.
    """
    for name in names:
        session.cluster.suspend_job(name, True)
    deadline, last = time.monotonic() + GONE_SECONDS, ""
    while left := sorted(
        object_states.name_of(pod)
        for pod in session.pods()
        if any(pods_of([pod], name) for name in names)
        and object_states.phase_of(pod) not in object_states.ENDED
    ):
        if time.monotonic() > deadline:
            raise CliError(
                f"the Jobs are suspended, but {GONE_SECONDS:.0f} s later these pods still run: "
                f"{', '.join(left)}. Their node may be lost",
                f"check their nodes: {command_text('status', *session.options())}",
            )
        if (text := ", ".join(left)) != last:
            last = text
            report(f"waiting for pods to exit: {text}")
        time.sleep(1.0)


FOLLOW_SECONDS = 24 * 3600.0


@with_release
def resume(
    session: ClusterSession,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then follow the run until it is over, for at most a day.")
    ] = False,
) -> None:
    """Continue a stopped or failed training from its newest checkpoint."""
    if not continue_training(session.cluster, session.run()):
        raise describe_wrong_state(session, "resume", "suspended")
    if follow:
        with explain_interrupt(lambda: describe_following(session.options())):
            follow_run(session, FOLLOW_SECONDS)
    else:
        print_line(f"  follow it:    {command_text('wait', *session.options())}")


@with_release
def scale(
    session: ClusterSession,
    trainers: Annotated[
        int, typer.Option(min=1, help="Training pods, from training.minTrainers to training.maxTrainers.")
    ],
) -> None:
    """Change the number of training pods of an elastic run while it trains.

    New pods are taken in at the next checkpoint; pods that leave save a checkpoint first.
    """
    before = change_trainers(session, trainers)
    print_line(f"trainers: {trainers} (before: {before})")
    print_line(f"  follow it:    {command_text('status', *session.options())}")


def change_trainers(session: ClusterSession, trainers: int) -> int:
    """Upgrade the release to another number of trainers, and return the previous number.

    Raises UsageError if the run is not elastic or does not train, if the number is not possible, if a Kueue queue
    controls the Job, or if the chart of this launcher would start another Job.
    """
    run, helm = session.run(), Helm(session.cluster)
    given = helm.read_values(run.release)
    values = merge_values(read_defaults(), given)
    lowest, before = values["training"]["minTrainers"], int(values["trainers"])
    highest = values["training"]["maxTrainers"] or before
    if lowest is None:
        raise UsageError(
            f"the training of release {run.release} is not elastic, so its number of trainers is fixed: {before}",
            "start it with --set training.minTrainers=1, and training.maxTrainers for more than `trainers`",
        )
    if not lowest <= trainers <= highest:
        raise UsageError(
            f"--trainers is {trainers}, but must be {lowest} to {highest} (training.minTrainers and "
            "training.maxTrainers), because the data has as many shards as the run can have trainers",
            "choose such a number, or start a run with a higher training.maxTrainers",
        )
    job = session.cluster.find("job", run.k8s_job)
    if object_states.job_state(job)[0] != "running":
        raise describe_wrong_state(session, "scale", "running")
    if queue := object_states.queue_of(job):
        # Kueue's webhook allows no other parallelism with partial admission, and suspends the Job without it.
        raise UsageError(
            f"cannot scale {run.k8s_job}: Kueue admitted its pods (queue {queue}), and their number stays until the "
            "Job ends; nothing was changed",
            "start a new run with other `trainers`",
        )
    changed = merge_values(given, {"trainers": trainers, "training": {"maxTrainers": highest}})
    rendered = helm.check(run.release, changed)
    if rendered != run.k8s_job:
        raise UsageError(
            f"cannot scale {run.k8s_job}: the chart of this launcher would start another Job, {rendered}, because it "
            "differs from the chart that started the run; nothing was changed",
            "use the launcher that started the run, or start a new run with `python -m launcher run`",
        )
    helm.upgrade(run.release, changed, f"scale to {trainers} trainers")
    return before
