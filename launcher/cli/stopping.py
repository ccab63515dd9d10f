"""`stop`, `resume`: a run's Jobs suspended after a checkpoint, and started again.

The Jobs keep their names, so the resumed pods continue the same run from its newest checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.cli import reasons, view
from launcher.cli.cluster import labels
from launcher.cli.problems import CliError, UsageError
from launcher.cli.session import ClusterSession, through_running
from launcher.cli.storage import buffered
from launcher.cli.view import Object
from launcher.cli.words import command
from launcher.layout import position
from launcher.reporting import figures

END_SECONDS = 180.0  # for suspended pods to be gone: a launcher takes at most a minute to stop its processes
SAY_SECONDS = 10.0  # between two lines of progress
ANSWER_SECONDS = 60.0  # without a line from the pod, which writes one a second
SAVED = ("finishing", "exporting")
"""States of a run in which all passes are saved."""


@dataclass(frozen=True)
class Asked:
    """What became of the request for a checkpoint: its folder, `model` after the last pass, or why none."""

    folder: str = ""
    why: str = ""

    def __str__(self) -> str:
        at = position(self.folder)
        if at is None:
            return "all passes are saved; only the model is still to be written"
        return f"{at} (output/{self.folder})"


def own_jobs(session: ClusterSession, doing: str, suspended: bool) -> list[Object]:
    """Return the release's unfinished Jobs that are, or are not, suspended; the training's first.

    Raises:
        UsageError: there is none, or a queue decides when the training runs.
    """
    run = session.run()
    found = session.cluster.items("job", "list the release's Jobs", labels(session.release))
    jobs = {reasons.name(job): job for job in found}
    states = {name: reasons.job_state(jobs.get(name))[0] for name in (run.k8s_job, run.k8s_data_job) if name}
    queue = reasons.queue(jobs.get(run.k8s_job))
    wanted = "suspended" if suspended else "running"
    if states[run.k8s_job] != wanted:
        hint = {
            "suspended": f"It is stopped already. Fix: {command('resume', *session.options())}",
            "running": f"It is not stopped. Follow it: {command('wait', *session.options())}",
        }.get(states[run.k8s_job], f"See {command('status', *session.options())}")
        raise UsageError(
            f"cannot {doing} release {run.release}: its training Job {run.k8s_job} is {states[run.k8s_job]}. "
            f"{hint}"
        )
    if queue:
        active = json.dumps({"spec": {"active": suspended}})
        raise UsageError(
            f"cannot {doing} release {run.release}: Kueue suspends and resumes its Job (queue {queue}). Fix: "
            f"kubectl get workloads -n {run.namespace} shows the Job's Workload; kubectl patch workload NAME "
            f"-n {run.namespace} --type merge -p '{active}'"
        )
    return [jobs[name] for name, state in states.items() if state == wanted]


def save(session: ClusterSession, seconds: float, say: Callable[[str], None]) -> Asked:
    """Ask the training for a checkpoint, and wait for it for at most `seconds`.

    Raises:
        UsageError: the run ended while it was asked.
    """
    try:
        seen = session.glance()
        said = seen.progress.state if seen.progress else seen.state
        if said in SAVED:
            return Asked("model")
        if said != "training":
            return Asked(why=f"the run is not training yet ({said})")
        pods = sorted(session.pods(), key=lambda pod: view.rank_of(pod) or 0)
        storage = through_running(session.cluster, session.run(), pods)
        if storage is None:
            return Asked(why="none of the run's pods can be asked")
        say(f"waiting for a checkpoint, up to {figures.duration(seconds)}")
        argv = ["checkpoint", "--root", str(storage.job), "--wait", str(seconds)]
        answer = storage.run(argv, idle=ANSWER_SECONDS)
        told: dict[str, Any] = {}
        began = said_at = time.monotonic()
        for line in buffered(answer):
            told = json.loads(line)
            now = time.monotonic()
            if "saved" not in told and now - said_at >= SAY_SECONDS:
                said_at = now
                say(f"waiting for a checkpoint for {now - began:.0f} s: {_place(told)}")
        answer.result()
    except CliError as error:
        return Asked(why=str(error))
    if told.get("state") in view.FINAL:
        raise UsageError(f"the run is {told['state']} meanwhile: there is nothing to stop.")
    folder = told.get("saved") or ("model" if told.get("state") in SAVED else "")
    why = "" if folder else f"none was saved within {figures.duration(time.monotonic() - began)}"
    return Asked(str(folder), why)


def _place(told: dict[str, Any]) -> str:
    if told.get("pass") is None:
        return str(told.get("state"))
    return f"{told['state']}, pass {int(told['pass']) + 1}, batch {told.get('batch') or 0}"


def suspend(session: ClusterSession, jobs: list[Object], say: Callable[[str], None]) -> None:
    """Suspend these Jobs, and wait until their pods are gone.

    Raises:
        CliError: a pod is still there after END_SECONDS.
    """
    names = [reasons.name(job) for job in jobs]
    for name in names:
        session.cluster.suspend_job(name, True)
    deadline, said = time.monotonic() + END_SECONDS, ""
    while left := sorted(
        reasons.name(pod)
        for pod in session.pods()
        if any(view.owned_by(name)(pod) for name in names)
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ):
        if time.monotonic() > deadline:
            raise CliError(
                f"the Jobs are suspended, but after {END_SECONDS:.0f} s these pods still run: "
                f"{', '.join(left)}. Is their node lost? See {command('status', *session.options())}"
            )
        if (text := ", ".join(left)) != said:
            said = text
            say(f"waiting for pods to stop: {text}")
        time.sleep(1.0)
