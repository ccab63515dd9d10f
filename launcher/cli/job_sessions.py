"""Sessions of commands: read a run's state and open its storage, on a cluster or in a folder (`--path`).

A session can also read the storage of an uninstalled release: it finds the claim and an image for the reader pod, and
the user chooses the job's folder with `--job`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.cli import cluster_api, object_states, releases, run_view, storage
from launcher.cli.cluster_api import Cluster, Object
from launcher.cli.errors import CliError, OtherRunError, UsageError
from launcher.cli.releases import Helm, ReleaseRun
from launcher.cli.run_files import JobFiles, read_job_files
from launcher.cli.run_view import RunView
from launcher.cli.storage import Storage, StorageRequest
from launcher.io.open_below import refuse_links
from launcher.reporting.failure_messages import last_lines
from launcher.reporting.saved_runs import OUTPUT

FILES_SECONDS = 5.0  # the files of a run that is not over are read at most once in this time
LOG_LINES = 5  # number of log lines on a screen of the terminal
_OTHER_FIX = "install a release with the same storage, or read the volume's folder with --path DIR"


def find_storage(cluster: Cluster, release: str, request: StorageRequest) -> ReleaseRun:
    """Return a run with the claim and the image through which the storage of an uninstalled release is read.

    - Claim: the request's claim, else the claim with the release's label, else the only claim of the namespace.
    - Image: the request's image, else the image of a release that uses the claim, else the image of any release of the
      namespace.
    - The returned `job_name` is SOURCES, the folder next to the jobs' folders, because the release's job is unknown.

    Raises UsageError if there is no such claim or image, or more than one claim. The message about a claim lists the
    namespace's claims.
    """
    others = [one.run for one in releases.list_releases(cluster, all_namespaces=False) if one.run]
    claims = {
        object_states.name_of(one): (one["metadata"].get("labels") or {}).get(cluster_api.RELEASE_LABEL)
        for one in cluster.list_objects("persistent_volume_claim")
    }
    owned = [name for name, owner in claims.items() if owner == release]
    candidates = [name for name in claims if name == request.claim] if request.claim else owned or [*claims]
    listed = ", ".join(
        name + "".join(f" (of release {other.release})" for other in others if other.claim == name)
        for name in claims
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
    image = request.image or (like.image if like else "")
    if not image:
        raise UsageError(
            f"a pod that reads claim {claim} needs an image, and {place} has no release whose image it could use",
            f"give the launcher's image with --image IMAGE; or {_OTHER_FIX}",
        )
    where: dict[str, Any] = {"release": release, "job_name": releases.SOURCES, "claim": claim, "image": image}
    if like is not None:
        return replace(like, **where, k8s_data_job="")
    return ReleaseRun(**where, namespace=cluster.namespace, trainers=0, passes=0, k8s_job=release)


class FolderSession:
    """Reads a job's folder on this machine: `--path <JOB_PATH>/<JOB_NAME>`."""

    def __init__(self, folder: Path) -> None:
        """Check the folder. Raises UsageError if it does not exist or is not a folder."""
        if not folder.is_dir():
            reason = (
                "is not a folder"
                if folder.exists()
                else "does not exist, or this user may not read its parent"
            )
            raise UsageError(f"--path {folder} {reason}", "give a job's folder, <JOB_PATH>/<JOB_NAME>")
        self._storage = storage.folder_storage(folder)
        self.folder = folder

    def options(self) -> list[str]:
        """Return the option that selects this folder in a command."""
        return ["--path", str(self.folder)]

    def read_view(self, log_lines: int = 0) -> RunView:
        """Return the run's current state, read from the folder, with the last `log_lines` log lines of rank 0."""
        file = refuse_links(Path(self._storage.job), OUTPUT.train_log(0).as_posix())
        lines = last_lines(file, log_lines).splitlines() if log_lines else []
        return run_view.build_folder_view(self._storage.where, read_job_files(self._storage), lines)

    peek_view = read_view

    @contextlib.contextmanager
    def storage(self, request: StorageRequest) -> Iterator[Storage]:
        """Yield the job's folder, or the folder of another job next to it.

        Raises UsageError if the request has a claim or an image, which a folder does not have, or an invalid job name.
        """
        if request.claim or request.image:
            raise UsageError("--path reads a folder of this machine", "omit --claim and --image")
        yield storage.storage_of_job(self._storage, request.job)


class ClusterSession:
    """Reads a release on a cluster: its run, Jobs, pods and logs, and the job's folder on the storage."""

    def __init__(self, cluster: Cluster, release: str) -> None:
        """Store where the release is."""
        self.cluster, self.release = cluster, release
        self._files: JobFiles | None = None
        self._files_of: tuple[str, str] | None = None
        """The training Job, and the state of the data Job, for which `_files` was read."""
        self._files_read_at = float("-inf")
        self.expected_job = ""
        """If not empty, `run` raises OtherRunError when the release has another training Job."""
        self.kept: KeptStorage | None = None
        """The storage through which the run's files are read; None: they are read through a pod of the run, or through
        a new reader pod."""

    def options(self) -> list[str]:
        """Return the options that select this release in a command; options with their default value are left out."""
        options = ["--release", self.release] if self.release != cluster_api.CHART else []
        options += ["-n", self.cluster.namespace] if self.cluster.namespace != cluster_api.NAMESPACE else []
        return [*options, *self.cluster.options]

    def read_base_values(self, helm: Helm) -> dict[str, Any]:
        """Return the values given to the release that describe the cluster and not one training.

        The variable PYTHONPATH of `extraEnv` is left out.

        Raises:
            CliError: an error of `run`; an earlier version of the chart wrote the ConfigMap; the release's claim
                does not exist; or helm cannot read the release.
        """
        run = self.run()
        if not run.cluster_values:  # without these, an upgrade would change image and storage to the defaults
            raise self._other_chart_error("it has no clusterValues")
        storage.require_claim(self.cluster, run)
        values = helm.read_values(self.release)
        found = {name: values[name] for name in run.cluster_values if name in values}
        if "extraEnv" in found:  # the folders of PYTHONPATH belong to one program
            found["extraEnv"] = [one for one in found["extraEnv"] if one.get("name") != "PYTHONPATH"]
        return found

    def run(self) -> ReleaseRun:
        """Return the run that the release's ConfigMap `<release>-run` describes.

        With a CronJob, return the run of the newest Job that the CronJob has started.

        Raises:
            ReleaseNotFoundError: there is no such release.
            OtherRunError: the release's training Job is not `expected_job`.
            CliError: another version of the chart wrote the ConfigMap.
        """
        found = self.cluster.find("config_map", f"{self.release}-run")
        if found is None:
            raise releases.ReleaseNotFoundError(self.cluster, self.release)
        try:
            about = json.loads(found["data"]["run.json"])
            run = ReleaseRun.from_json(self.release, self.cluster.namespace, about)
        except (KeyError, ValueError, TypeError) as error:
            raise self._other_chart_error(repr(error)) from error
        if run.cron_job:
            jobs = self.cluster.list_objects("job", cluster_api.release_labels(self.release))
            run = run.with_newest_job(jobs)
        if self.expected_job not in ("", run.k8s_job):
            at = f"{self.release} -n {self.cluster.namespace}"
            raise OtherRunError(
                f"run {self.expected_job} was replaced by run {run.k8s_job} in an upgrade (the description in helm "
                f"history {at} shows who made it); the new run's score is not shown. Checkpoints are kept",
                "run the same command again when the new run has finished, or add --replace to stop it now; "
                "training then resumes from the newest checkpoint",
            )
        return run

    def _other_chart_error(self, why: str) -> CliError:
        return CliError(
            f"ConfigMap {self.release}-run in namespace {self.cluster.namespace} was written by another version of the "
            f"chart: {why}",
            "upgrade the release with this version of the chart (helm upgrade with --reset-then-reuse-values)",
        )

    def run_if_installed(self) -> ReleaseRun | None:
        """Return the run that the release's ConfigMap describes, or None if the release is not installed."""
        return self.run() if self.cluster.find("config_map", f"{self.release}-run") else None

    def pods(self) -> list[Object]:
        """Return the release's pods, without the reader pods that commands create to read the storage."""
        pods = self.cluster.list_objects("pod", cluster_api.release_labels(self.release))
        reader = {cluster_api.COMPONENT_LABEL: storage.READER}.items()
        return [pod for pod in pods if not reader <= (pod["metadata"].get("labels") or {}).items()]

    def read_view(self, log_lines: int = 0) -> RunView:
        """Return the run's current state, with the last `log_lines` log lines of the data pod or of rank 0.

        The files are read through a running pod, or through a reader pod after the run. While the run is not over, they
        are read at most every FILES_SECONDS, since each read starts a process next to the training.
        """
        return self._read_view((*run_view.FINAL_STATES, "missing"), log_lines)

    def peek_view(self, log_lines: int = 0) -> RunView:
        """Return the same as `read_view`, but create no reader pod when the run is over.

        If no pod runs and `kept` is None, no file is read, and the view has the files of an earlier call for this run.
        """
        return self._read_view((), log_lines)

    def _read_view(self, reader_states: tuple[str, ...], log_lines: int) -> RunView:
        """Return the run's current state, from the release's Jobs, pods and events and the files on the storage.

        If no pod runs, a reader pod reads the files, but only if the training Job's state is in `reader_states`. Raises
        the errors of `run`, and CliError if the cluster cannot be read.
        """
        run = self.run()
        jobs = self.cluster.list_objects("job", cluster_api.release_labels(self.release))
        pods = self.pods()
        by_name = {object_states.name_of(job): job for job in jobs}
        names = (run.k8s_job, run.k8s_data_job)
        state, data_state = (object_states.job_state(by_name.get(name))[0] for name in names)
        is_pending = any(object_states.phase_of(pod) == "Pending" for pod in pods)
        log_of, lines = self._read_log(run, pods, log_lines) if log_lines else ("", [])
        return run_view.build_cluster_view(
            run_view.ClusterSnapshot(
                run=run,
                jobs=by_name,
                pods=pods,
                events=self._list_events(run, pods),
                claim=storage.claim_problem(self.cluster, run) if is_pending else "",
                files=self._read_files(run, data_state, pods, state in reader_states),
                log=lines,
                log_of=log_of,
            )
        )

    def _list_events(self, run: ReleaseRun, pods: list[Object]) -> dict[str, Any]:
        names = [
            object_states.name_of(pod)
            for pod in pods
            if object_states.phase_of(pod) == "Pending" and not object_states.unusual_wait(pod)
        ]
        jobs = filter(None, (run.k8s_job, run.k8s_data_job))
        names += [job for job in jobs if not run_view.pods_of(pods, job)]
        events = {name: self.cluster.list_events(name) for name in names}
        if any(object_states.phase_of(pod) != "Running" for pod in pods) or len(pods) < run.trainers:
            events[""] = [e for why in object_states.LOSSES for e in self.cluster.list_events(reason=why)]
        return events

    def _read_log(self, run: ReleaseRun, pods: list[Object], lines: int) -> tuple[str, list[str]]:
        """Return (name of a pod, the last `lines` lines of its log); an empty name and list if no such pod runs.

        The name and list are also empty if the log cannot be read. The pod is the data pod while it runs, else the pod
        of rank 0. If training pods prepare the data, they do it in an init container. While that container runs, the
        log is the one of that container.
        """
        for job, rank in ((run.k8s_data_job, None), (run.k8s_job, 0)):
            pod = run_view.newest_pod(run_view.pods_of(pods, job, rank))
            in_init = run.is_prepared_in_training_pods
            container = object_states.running_container(pod, in_init) if pod else None
            if pod is None or container is None:
                continue
            name = object_states.name_of(pod)
            with contextlib.suppress(CliError):  # the pod may just have exited
                blocks = self.cluster.stream_log(name, container, follow=False, lines=lines)
                return name, b"".join(blocks).decode(errors="replace").splitlines()
        return "", []

    def _read_files(
        self, run: ReleaseRun, data_state: str, pods: list[Object], with_reader: bool
    ) -> JobFiles:
        if self._files_of != (run.k8s_job, data_state):
            self._files, self._files_of = None, (run.k8s_job, data_state)
        now = time.monotonic()
        is_new = now - self._files_read_at < FILES_SECONDS and not with_reader
        try:
            if self.kept is not None:
                running: Storage | None = self.kept.job(run.job_name)
            else:
                running = open_through_running_pod(self.cluster, run, pods, or_init=True)
            if running is not None and (self._files is None or not is_new):
                self._files, self._files_read_at = read_job_files(running), now
            elif running is None and with_reader:
                with storage.open_reader_pod(self.cluster, run, storage.READ_SECONDS) as opened:
                    return read_job_files(opened)
        except cluster_api.UnreachableError:
            raise
        except CliError as error:  # the pod may just have exited
            if self.kept is not None:
                self.kept.close()
            return self._files or JobFiles(was_read=False, problem=str(error))
        return self._files or JobFiles(was_read=False)

    @contextlib.contextmanager
    def storage(self, request: StorageRequest) -> Iterator[Storage]:
        """Yield the job's folder, or the folder of another job on the same storage.

        The folder is opened through a running pod of the run. A reader pod is used instead if no pod of the run runs,
        if the request has a claim, if the command writes, or if the command must not depend on the training's pods. If
        no node can run the reader pod, a running pod is used after all. The reader pod is deleted after the block.
        `find_storage` describes how the storage of an uninstalled release, or of a given claim, is found.

        Raises:
            UsageError: it is unclear which storage or which job is meant.
            CliError: the cluster cannot be read, or a reader pod does not start.
        """
        installed = None if request.claim else self.run_if_installed()
        run = installed or find_storage(self.cluster, self.release, request)
        run = replace(run, image=request.image or run.image)
        with contextlib.ExitStack() as stack:
            opened = None
            if installed and not (request.outlives_training or request.writable):
                opened = open_through_running_pod(self.cluster, run, self.pods())
            if opened is None:
                try:
                    opened = stack.enter_context(
                        storage.open_reader_pod(self.cluster, run, request.seconds, request.writable)
                    )
                except storage.UnschedulableError:
                    opened = open_through_running_pod(self.cluster, run, self.pods(), or_init=True)
                    if opened is None:
                        raise
            if not (installed or request.job):
                raise UsageError(
                    f"release {self.release} is not installed, so its job is unknown. Jobs on the storage of claim "
                    f"{run.claim}: {', '.join(storage.list_jobs(opened)) or 'none'}",
                    f"choose one with --job NAME; or {_OTHER_FIX}",
                )
            yield replace(storage.storage_of_job(opened, request.job), claim=run.claim)


Session = FolderSession | ClusterSession
KEPT_SECONDS = 2 * 3600  # a killed command leaves the pod for this time; the pod requests no resources


class KeptStorage:
    """Opens the shared storage through one reader pod, and keeps the pod for many uses.

    The first use creates the pod, and so does the first use after `close`. The first use more than an hour after that
    replaces the pod, long before its deadline. If no node can run the reader pod, a running pod of the release is used.
    """

    def __init__(self, session: ClusterSession, job: str) -> None:
        """Store the release whose storage is used, and the name of a job."""
        self._session, self._stack = session, contextlib.ExitStack()
        self._request = StorageRequest(job=job, seconds=KEPT_SECONDS, writable=True)
        self._opened: Storage | None = None
        self._until = 0.0

    def job(self, name: str) -> Storage:
        """Return the folder of the job `name`; the name "." returns the folder that contains all jobs.

        Raises the errors of `ClusterSession.storage`.
        """
        if time.monotonic() > self._until:
            self.close()
        if self._opened is None:
            self._opened = self._stack.enter_context(self._session.storage(self._request))
            self._until = time.monotonic() + KEPT_SECONDS - storage.COPY_SECONDS
        return self._opened.sibling(name)

    def close(self) -> None:
        """Delete the reader pod. If the cluster cannot be reached, the pod ends at its deadline."""
        self._opened = None
        with contextlib.suppress(CliError):
            self._stack.close()


def open_through_running_pod(
    cluster: Cluster, run: ReleaseRun, pods: list[Object], or_init: bool = False
) -> Storage | None:
    """Return the job's folder, opened through a pod of this run whose main container runs; None without such a pod.

    Pods that are being deleted are not used. With `or_init` a running init container is used, too, although it may exit
    at any moment.
    """
    for pod in run_view.pods_of(pods, run.k8s_job):
        container = object_states.running_container(pod, or_init)
        if container and not pod["metadata"].get("deletionTimestamp"):
            folder = PurePosixPath(run.job_path) / run.job_name
            return storage.pod_storage(cluster, object_states.name_of(pod), container, folder)
    return None
