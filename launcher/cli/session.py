"""What the commands ask their questions to: one run on a cluster, or one job's folder on this machine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.cli import assemble, reasons, uninstalled, view
from launcher.cli.cluster import CHART, NAME_LABEL, NAMESPACE, Cluster, UnreachableError, labels
from launcher.cli.problems import CliError, OtherRunError, UsageError
from launcher.cli.readerpod import NoPlaceError, claim_problem, reader
from launcher.cli.storage import (
    FolderStorage,
    PodStorage,
    Storage,
    json_file,
    of_job,
    run_record,
    small_files,
)
from launcher.cli.view import Run, View
from launcher.layout import Layout, Output
from launcher.reporting import curve
from launcher.reporting.ending import last_lines

_HERE = Layout(Path(), "")
OUTPUT = Output(Path("output"))
STATUS_FILES = {
    "status": OUTPUT.status_json.as_posix(),
    "run": OUTPUT.run_json.as_posix(),
    "manifest": _HERE.manifest.as_posix(),
    "failure": _HERE.data_failed.as_posix(),
}
DONE = (OUTPUT.root / "pass-*" / "done").as_posix()
READ_SECONDS = 300  # how long a reader pod for small questions may live
COPY_SECONDS = 3600  # and one for copies
FILES_SECONDS = 5.0
LOG_LINES = 5


def status_files(storage: Storage, run_id: str = "") -> dict[str, Any]:
    """The files of STATUS_FILES as JSON objects, None for those that are absent; `passes` of metrics.csv;
    `checkpoints`: the folder names of the complete ones.

    `moved`: the run record of `run_id` in the folder to which another run has moved it aside.
    """
    metrics = OUTPUT.metrics_csv.as_posix()
    moved = [Output(_HERE.run(f"{run_id}{end}")) for end in ("", ".*")] if run_id else []
    records = [path.as_posix() for output in (OUTPUT, *moved) for path in (output.run_json, output.run_copy)]
    wanted = [*STATUS_FILES.values(), *records, metrics, DONE]
    found = small_files(storage, wanted)
    rows = curve.parse_metrics(found.get(metrics, b"").decode(errors="replace"))
    files: dict[str, Any] = {key: json_file(found.get(path)) for key, path in STATUS_FILES.items()}
    last = max((PurePosixPath(name).parent for name in found if name.startswith("runs/")), default=None)
    checkpoints = [PurePosixPath(name).parent.name for name in found if PurePosixPath(name).match(DONE)]
    files |= {"run": run_record(found, OUTPUT), "passes": curve.pass_table(rows)}
    files["moved"] = run_record(found, Output(Path(last))) if last else None
    return {**files, "checkpoints": checkpoints}


class FolderSession:
    """`--path DIR`: a job's folder, <JOB_PATH>/<JOB_NAME>."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            reason = "is not a folder" if folder.exists() else "is not there, or may not be seen by this user"
            raise UsageError(f"--path {folder} {reason}. Give a job's folder: <JOB_PATH>/<JOB_NAME>.")
        self._storage = FolderStorage(folder)

    def look(self, log: bool = False) -> View:
        """The present state; with the newest lines of rank 0's log, if asked."""
        file = Path(self._storage.job) / OUTPUT.train_log(0)
        said = last_lines(file, LOG_LINES).splitlines() if log else []
        return assemble.of_folder(self._storage.where, {**status_files(self._storage), "log": said})

    glance = look

    @contextlib.contextmanager
    def storage(
        self,
        seconds: int = READ_SECONDS,
        *,
        writable: bool = False,
        fresh: bool = False,
        job: str | None = None,
        claim: str | None = None,
        image: str | None = None,
        takes: Sequence[str] = (),
    ) -> Iterator[Storage]:
        """As of a `ClusterSession`."""
        del seconds, writable, fresh, takes  # a folder is simply there
        if claim or image:
            raise UsageError("--path reads a folder: leave out --claim and --image.")
        yield of_job(self._storage, job)


class ClusterSession:
    """A release on a cluster."""

    def __init__(self, cluster: Cluster, release: str, say: Callable[[str], None]) -> None:
        self.cluster, self.release, self.say = cluster, release, say
        self._read: Mapping[str, Any] = {}
        self._read_at = float("-inf")
        self._stored: Run | None = None
        self._expected: tuple[str, Callable[[], str]] | None = None

    def expect(self, k8s_job: str, otherwise: Callable[[], str]) -> None:
        """Follow that run only: from now on `run` raises OtherRunError with the text of `otherwise` for any
        other one."""
        self._expected = k8s_job, otherwise

    def is_there(self) -> bool:
        """Whether the namespace has this release."""
        return self._find() is not None

    def options(self) -> list[str]:
        """What names this release to a command of ours; nothing where its defaults do."""
        return options_of(self.release, self.cluster)

    def base(self) -> str:
        """The chart's values that are no training's, as YAML. Raises as `run`, and NoClaimError."""
        run = self.run()
        if reasons.ABSENT in claim_problem(self.cluster, run):
            raise NoClaimError(run)
        found = self._map().get("base.yaml")
        if found is None:
            raise CliError(
                f"ConfigMap {self.release}-run in namespace {self.cluster.namespace} has no base.yaml: an "
                "earlier version of the chart made it. Run helm upgrade with this one."
            )
        return found

    def run(self) -> Run:
        """What the chart says of the run. Raises CliError that names the releases there are when this one is
        not, and OtherRunError when it is not the run that `expect` was given."""
        try:
            run = Run.of(self.release, self.cluster.namespace, json.loads(self._map()["run.json"]))
        except (KeyError, ValueError, TypeError) as error:
            raise CliError(
                f"ConfigMap {self.release}-run in namespace {self.cluster.namespace} is not one of this "
                f"chart's: {error!r}. Run helm upgrade with this version of the chart."
            ) from error
        if self._expected and run.k8s_job != self._expected[0]:
            raise OtherRunError(self._expected[1]())
        return run

    def known_run(self) -> Run | None:
        """The same, or None when there is no such release (any more)."""
        return self.run() if self._find() is not None else None

    def _map(self) -> Mapping[str, str]:
        found = self._find()
        if found is None:
            place = self.cluster.namespace
            raise CliError(nothing_found(self.release, place, self._known(), self.cluster.name))
        return dict(found.get("data") or {})

    def _find(self) -> view.Object | None:
        return self.cluster.find("config_map", f"{self.release}-run", "read the run's ConfigMap")

    def _known(self) -> list[tuple[str, str]] | None:
        with contextlib.suppress(CliError):
            selector = f"{NAME_LABEL}={CHART}"
            return view.known_runs(self.cluster.items_everywhere("config_map", "look for releases", selector))
        return None

    def pods(self) -> list[view.Object]:
        """The release's pods, the readers left out."""
        pods = self.cluster.items("pod", "list the release's pods", labels(self.release))
        return [pod for pod in pods if pod not in view.component(pods, "reader")]

    def look(self, log: bool = False) -> View:
        """The present state; with the newest lines of a log, if asked.

        Progress comes through a running pod, or through a reader pod after the run.
        """
        return self._look(("complete", "failed", "missing"), log)

    def glance(self, log: bool = False) -> View:
        """The present state for those who ask again and again.

        No reader pod as long as the Job itself tells, and files that are read at most every FILES_SECONDS,
        since each reading starts a process beside the training.
        """
        return self._look(("missing",), log)

    def _look(self, read_after: tuple[str, ...], log: bool) -> View:
        run = self.run()
        jobs = self.cluster.items("job", "list the release's Jobs", labels(self.release))
        pods = self.pods()
        state, _ = reasons.job_state(next((job for job in jobs if reasons.name(job) == run.k8s_job), None))
        leaving = any(pod["metadata"].get("deletionTimestamp") for pod in pods)
        seen = assemble.Seen(
            run=run,
            jobs={reasons.name(job): job for job in jobs},
            pods=pods,
            events=self._events(run, pods),
            claim=self._claim(run, pods),
            files=self._files(run, pods, state in read_after),
            ending=leaving and self.cluster.ending(),
            **(self._log(run, pods) if log else {}),
        )
        return assemble.of_cluster(seen)

    def _events(self, run: Run, pods: list[view.Object]) -> dict[str, Any]:
        asked = [
            reasons.name(pod)
            for pod in pods
            if pod.get("status", {}).get("phase") == "Pending" and not reasons.stuck_waiting(pod)
        ]
        own_jobs = filter(None, (run.k8s_job, run.k8s_data_job))
        asked += [job for job in own_jobs if not any(view.owned_by(job)(pod) for pod in pods)]
        return {name: self.cluster.events(name) for name in asked}

    def _log(self, run: Run, pods: list[view.Object]) -> dict[str, Any]:
        """What the data pod says, or rank 0 once that has ended."""
        for job, rank in ((run.k8s_data_job, None), (run.k8s_job, 0)):
            of_job = [pod for pod in pods if view.owned_by(job)(pod) and view.rank_of(pod) in (rank, None)]
            pod = view.newest(of_job)
            container = running_container(pod) if pod else None
            if pod is None or container is None:
                continue
            with contextlib.suppress(CliError):  # it may just have ended
                blocks = self.cluster.pod_log(reasons.name(pod), container, follow=False, lines=LOG_LINES)
                said = b"".join(blocks).decode(errors="replace").splitlines()
                return {"log": said, "log_of": reasons.name(pod)}
        return {}

    def _claim(self, run: Run, pods: list[view.Object]) -> str:
        if not any(pod.get("status", {}).get("phase") == "Pending" for pod in pods):
            return ""
        with contextlib.suppress(CliError):
            claim = self.cluster.find("persistent_volume_claim", run.claim, "read the claim")
            return reasons.claim_reason(claim, run.claim, self.cluster.events(run.claim))
        return ""

    def _files(self, run: Run, pods: list[view.Object], with_reader: bool) -> Mapping[str, Any]:
        running = through_running(self.cluster, run, pods, waiting=True)
        now = time.monotonic()
        if running is not None and now - self._read_at < FILES_SECONDS:
            return self._read
        try:
            if running is not None:
                self._read, self._read_at = status_files(running, run.k8s_job), now
                return self._read
            if with_reader:
                with reader(self.cluster, run, READ_SECONDS, say=self.say) as opened:
                    return status_files(opened, run.k8s_job)
        except UnreachableError:
            raise
        except CliError as error:  # the pod that was read through may just have ended
            return self._read or {"unreadable": str(error)}
        return {**self._read, "stale": True}

    @contextlib.contextmanager
    def storage(
        self,
        seconds: int = READ_SECONDS,
        *,
        writable: bool = False,
        fresh: bool = False,
        job: str | None = None,
        claim: str | None = None,
        image: str | None = None,
        takes: Sequence[str] = (),
    ) -> Iterator[Storage]:
        """The job's folder, or that of another `job` on the same storage.

        Through a running pod of the run; when `fresh` or `writable` through a reader pod, which does not end
        with the training, and through a running pod only where no node has a place for that one. Where the
        release is gone, or a `claim` is named, through a pod with that claim and `image`; see
        `uninstalled.find`. `takes`: which of job, claim and image the command has as options, for errors.
        """
        known = None if claim else self.known_run()
        run = self._stored = known or uninstalled.find(self.cluster, self.release, claim, image, takes)
        with contextlib.ExitStack() as stack:
            opened = None
            if known and not (fresh or writable):
                opened = through_running(self.cluster, run, self.pods())
            if opened is None:
                try:
                    opened = stack.enter_context(reader(self.cluster, run, seconds, writable, self.say))
                except NoPlaceError:
                    opened = through_running(self.cluster, run, self.pods(), waiting=True)
                    if opened is None:
                        raise
            named = of_job(opened, job)
            yield named if known or job else uninstalled.own_job(named, self.release, takes)

    def stored_run(self) -> Run:
        """The run whose storage was opened, else the release's."""
        return self._stored or self.run()


class NoClaimError(CliError):
    """The claim that a release names does not exist."""

    def __init__(self, run: Run) -> None:
        self.claim = run.claim
        super().__init__(
            f"the claim {run.claim} that release {run.release} names does not exist in namespace "
            f"{run.namespace}: its storage cannot be reached, and no training can start from its values. "
            "Fix: create the claim, or upgrade the release to one that exists."
        )


Session = FolderSession | ClusterSession


def options_of(release: str, cluster: Cluster) -> list[str]:
    """As `ClusterSession.options`."""
    told = ["--release", release] if release != CHART else []
    told += ["-n", cluster.namespace] if cluster.namespace != NAMESPACE else []
    return [*told, *cluster.given]


def through_running(
    cluster: Cluster, run: Run, pods: list[view.Object], waiting: bool = False
) -> PodStorage | None:
    """The storage through a pod of this run whose main container runs: no further pod is needed then.

    `waiting`: a pod that still waits for its data will do, too; it may leave that container at any moment.
    """
    for pod in pods:
        if not view.owned_by(run.k8s_job)(pod) or pod["metadata"].get("deletionTimestamp"):
            continue
        if container := running_container(pod, waiting):
            folder = PurePosixPath(run.job_path) / run.job_name
            return PodStorage(cluster, reasons.name(pod), container, folder)
    return None


def running_container(pod: view.Object, waiting: bool = False) -> str | None:
    """The main container, when it runs; with `waiting` also an init container."""
    main = pod.get("status", {}).get("containerStatuses", [])
    for status in reasons.container_statuses(pod) if waiting else main:
        if "running" in (status.get("state") or {}):
            return str(status["name"])
    return None


def nothing_found(release: str, namespace: str, known: list[tuple[str, str]] | None, cluster: str) -> str:
    """What to say when there is no such release; `known` is None when it could not be asked."""
    text = f"no release {release} of this chart in namespace {namespace} on {cluster}."
    if known is None:
        return text + " Which others exist may not be listed by this user."
    if not known:
        return (
            text
            + " There is none in any namespace that this user can see: helm install or pulumi up makes one."
        )
    listed = "; ".join(f"--release {name} --namespace {place}" for place, name in known)
    return f"{text} There is: {listed}"
