"""Connection of every other rank to rank 0: sends this rank's state over HTTP and receives the newest order.

`Rank0Locator` finds rank 0. Rank 0 writes its address to the output lease, run.lock. It writes the secret with which
the other ranks authenticate to a file that only the user of the pods can read. Address and secret change with every pod
of rank 0. Every other rank must read the new secret in any case, so it would not connect to a new pod of rank 0 any
earlier if it got the address from DNS. With `rendezvous: api` the address comes from the Kubernetes API, as in the
tutorial of 2017. A pod's rank is its completion index in this case, too. The tutorial got the ranks from the sorted
addresses of the pods, so they would change with every replaced pod.

`CoordinatorLink` is this connection. It also decides how a rank waits while rank 0 is unreachable: log lines,
notifications, deadline, end of the run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from launcher.errors import EXIT_GANG, DeadlineError, LauncherError, TwinError
from launcher.io import files
from launcher.io.kubernetes_api import ApiRejectedError, PodApi
from launcher.io.retry import backoff_seconds
from launcher.log import log
from launcher.paths import OutputPaths
from launcher.reporting.notifications import Notifier, RunEvent
from launcher.runtimes.runtime_protocol import Runtime
from launcher.schema import StatusFile, from_json
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.members import RETRY, SEE_WHY
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import Action, MemberState, Phase, Plan
from launcher.supervisor.shared_storage.output_folder import read_run_record
from launcher.supervisor.shared_storage.output_lease import (
    build_credential,
    hash_credential,
    read_lease_holder,
)
from launcher.supervisor.timings import Timings

RETRY_SECONDS = 2.0  # after a failed request; doubled after further failures up to 8 times
WATCH_SECONDS = 3600.0


def coordinator_name(settings: TrainSettings) -> str:
    """Return the name of the coordinator in messages: `rank 0`, but `the coordinator` in an elastic run.

    In an elastic run any rank may be the coordinator.
    """
    return "the coordinator" if settings.is_elastic else "rank 0"


class Rank0(NamedTuple):
    """Where rank 0 is, and the credential for its HTTP server."""

    address: str
    credential: str


class Rank0Locator:
    """Finds the pod of rank 0 that holds the output lease of this run."""

    def __init__(self, settings: TrainSettings) -> None:
        """Create the locator; with `rendezvous: api` also start a thread that watches rank 0's pod.

        Raises:
            SettingsError: `rendezvous` is `api`, and this pod has no service account.
        """
        self._settings = settings
        self._pod_watch: Rank0PodWatch | None = None
        if settings.rendezvous == "api":
            self._pod_watch = Rank0PodWatch(settings, PodApi(settings.environ, settings.namespace))

    def find(self) -> Rank0:
        """Return the address of rank 0's pod, and the credential for its HTTP server.

        This reads run.lock and the file with the secret. The address comes from run.lock, or with `rendezvous: api`
        from `Rank0PodWatch`, whose thread reads it from the API server. Callers try again after an OSError.

        Raises:
            OSError: no rank 0 of this run holds the lease; the secret of the pod that holds it is not visible yet; or,
                with `rendezvous: api`, rank 0's pod does not run, or the API server rejects or fails the requests.
            StorageError, StorageFailedError: run.lock or the file with the secret cannot be read.
        """
        s = self._settings
        lock = OutputPaths(s.layout.output).lock
        holder = read_lease_holder(lock)
        if (holder.get("runId"), holder.get("namespace")) != (s.run_id, s.namespace):
            pod = f"that of {coordinator_name(s)}"
            raise OSError(f"no pod of this run holds {lock} ({pod} is not scheduled, or waits for the lease)")
        secret = files.read_bytes(s.layout.run_secret)
        credential = build_credential(s, (secret or b"").decode(errors="replace"))
        if hash_credential(credential) != holder.get("token"):
            raise OSError(
                f"{s.layout.run_secret} does not have the secret of the pod {holder.get('pod')}, which holds {lock}"
            )
        if self._pod_watch is not None:
            return Rank0(self._pod_watch.find_address(), credential)
        return Rank0(str(holder.get("address")), credential)

    def close(self) -> None:
        """Stop watching rank 0's pod through the Kubernetes API, if this locator does."""
        if self._pod_watch is not None:
            self._pod_watch.close()


def find_pod_address(pod: Mapping[str, Any]) -> str | None:
    """Return the IPv4 address of a pod that runs and is not being deleted; else None."""
    status = pod.get("status") or {}
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") != "Running":
        return None
    known = [status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs") or [])]
    return next((ip for ip in known if ip and ":" not in ip), None)


def describe_pod(pod: Mapping[str, Any]) -> str:
    """Return a text with the name of a pod and its address or phase.

    The text does not say why a pod does not run; the command `status` shows this.
    """
    name, address = pod["metadata"].get("name", "?"), find_pod_address(pod)
    if address:
        return f"{name} runs at {address}"
    if pod["metadata"].get("deletionTimestamp"):
        return f"{name} is being deleted"
    return f"{name} is {(pod.get('status') or {}).get('phase', 'unknown')} without an IPv4 address"


class Rank0PodWatch:
    """Watches rank 0's pod while the launcher runs, with one list request and one watch in a thread.

    The launcher therefore never waits for the API server, learns of a replaced pod without a further request,
    and knows the last address while the API server is unavailable. After an error, and at the end of a watch,
    the thread lists the pods again.
    """

    def __init__(self, settings: TrainSettings, api: PodApi) -> None:
        self._api, self._job = api, settings.k8s_job
        self._pods: dict[str, dict[str, Any]] = {}
        self._api_error = ""
        self._end = threading.Event()
        threading.Thread(target=self._run, name="find rank 0", daemon=True).start()

    def find_address(self) -> str:
        """Return the IPv4 address that the watch last found for rank 0's pod. This sends no request.

        Raises:
            OSError: rank 0's pod does not run, or the API server rejects or fails the requests; the message says which.
        """
        running = sorted(filter(find_pod_address, self._pods.values()), key=_created)
        if running:
            return str(find_pod_address(running[-1]))
        raise OSError(
            f"the pod of rank 0 of Job {self._job} does not run: {self._describe_pods()}{self._api_error}"
        )

    def close(self) -> None:
        """Stop watching: cancel the current request, without waiting for the end of the thread."""
        self._end.set()
        self._api.close()

    def _run(self) -> None:
        failures = 0
        while not self._end.is_set():
            try:
                self._list_and_watch()
                failures = 0
            except (OSError, ValueError, http.client.HTTPException, ApiRejectedError) as error:
                failures += 1
                if not self._end.is_set():
                    log.warning(
                        "cannot find rank 0's pod through the Kubernetes API, trying again: %s", error
                    )
                self._api_error = f"; the API server: {error}"
            self._end.wait(backoff_seconds(max(1, failures), RETRY_SECONDS, 8 * RETRY_SECONDS))

    def _list_and_watch(self) -> None:
        listed, version = self._api.list(self._job)
        self._api_error = ""
        self._update({pod["metadata"]["uid"]: pod for pod in listed})
        with contextlib.closing(self._api.watch(self._job, version, WATCH_SECONDS)) as events:
            for event in events:
                pod = event.get("object") or {}
                uid = (pod.get("metadata") or {}).get("uid")
                if event.get("type") == "ERROR" or uid is None:
                    return
                pods = {key: value for key, value in self._pods.items() if key != uid}
                self._update(pods if event.get("type") == "DELETED" else {**pods, uid: pod})

    def _update(self, pods: dict[str, dict[str, Any]]) -> None:
        before, self._pods = self._describe_pods(), pods
        if self._describe_pods() != before:
            log.info("rank 0: %s", self._describe_pods())

    def _describe_pods(self) -> str:
        missing = "Kubernetes has not created it yet (a quota, a back-off after failures, or a suspended Job)"
        return "; ".join(map(describe_pod, sorted(self._pods.values(), key=_created))) or missing


def _created(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0  # for one answer; the server holds it back for `Timings.hold` seconds at most


def connect_to_rank_0(network: PodNetwork, host: str, port: int) -> http.client.HTTPConnection:
    """Return a connection to rank 0's peer server at `host`:`port`. Raise OSError if that fails.

    The connection is not opened again after it has ended, because rank 0 may then have another address.
    """
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    connection.auto_open = 0
    connection.sock = network.connect(host, port, timeout=CONNECT_SECONDS)
    connection.sock.settimeout(ANSWER_SECONDS)
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def post_state(
    connection: http.client.HTTPConnection, credential: str, state: MemberState, seen: int
) -> tuple[int, bytes]:
    """Send POST /state with this credential; return the answer's HTTP status and body.

    `seen` is the version of the newest order that this rank has received.

    Raises:
        OSError, http.client.HTTPException: the connection has ended, or no answer came within ANSWER_SECONDS.
    """
    headers = {"Authorization": f"Bearer {credential}", "Content-Type": "application/json"}
    body = json.dumps({"state": state.to_json(time.monotonic()), "seen": seen})
    connection.request("POST", "/state", body.encode(), headers)
    response = connection.getresponse()
    return response.status, response.read()


class OrderSource:
    """Interface through which a rank's agent gets its orders and reports its state.

    `Coordinator` on rank 0 and `CoordinatorLink` on every other rank inherit from this class. Until an agent has
    created one of these two, it uses an object of this class, which has no orders and whose methods do nothing.
    """

    order: Plan | None = None
    """The newest order; None before the first one."""
    heard = float("inf")
    """Monotonic time at which rank 0 last confirmed `order`; infinite on rank 0, whose own orders never expire."""
    credential = ""
    """The credential of rank 0's HTTP server."""
    rendezvous_seconds: float | None = None
    """On rank 0 the duration in seconds of the newest rendezvous that has ended. While the run waits for the ranks
    after a failure, this is still the duration of the rendezvous before. None before the end of the first rendezvous,
    and on other ranks."""

    def start_run(self, fingerprint: dict[str, Any]) -> None:
        """On rank 0, open the output and plan the first attempt; on other ranks, do nothing.

        The agent calls this after it has staged its inputs.
        """

    def update(self, read_state: Callable[[], MemberState], now: float) -> None:
        """Do the periodic work: on rank 0, decide on the next order; on other ranks, check that rank 0 is reachable.

        `read_state` returns this rank's state, and `now` is the monotonic time. Raise `LauncherError` if the run is
        over for this rank.
        """

    def send_now(self) -> None:
        """Send the changed state of this rank to rank 0 at once.

        On rank 0 itself this does nothing, because `update` reads its state.
        """

    def check_lease(self) -> None:
        """Raise `LauncherError` if this pod lost the output lease.

        Only rank 0 has a lease, so this does nothing on other ranks.
        """

    def build_status(self) -> StatusFile | None:
        """Return the content of status.json; None on other ranks than 0, and before rank 0 has opened the output."""
        return None

    def reject_states(self) -> None:
        """On the coordinator's pod, reject the states of all ranks until the next `update`.

        The watchdog's thread calls this while the main thread is stuck; the ranks then look for another coordinator.
        """

    def announce_exit(self, error: LauncherError) -> None:
        """On rank 0, order the other ranks to stop because rank 0's launcher exits with `error`."""

    def wait_and_close(
        self, error: LauncherError | None, clock: Callable[[], float], seconds: float = 0.0
    ) -> None:
        """End the communication with the other ranks; `Coordinator.wait_and_close` explains the arguments."""


class RunEndedError(LauncherError):
    """The run is over, as rank 0 reported or wrote to run.json; `exit_code` is the exit code of the run."""

    def __init__(self, cause: str, code: int) -> None:
        super().__init__(cause)
        self.exit_code = code


class CoordinatorLink(OrderSource):
    """Connects a rank other than 0 to rank 0: sends this rank's state, and keeps the newest order of rank 0.

    One thread always has a request open; rank 0 answers when it has a newer order, or after `Timings.hold`. Another
    thread sends urgent states at once, on its own connection. The agent's main thread calls `update`, which ends this
    rank's run if rank 0 is unreachable for `rendezvousSeconds` + `training.rankWaitHours`.

    Rank 0 notifies users about other missing ranks. If rank 0 itself is missing, this class notifies users on rank 1.
    """

    def __init__(
        self,
        settings: TrainSettings,
        runtime: Runtime,
        network: PodNetwork,
        timings: Timings,
        *,
        read_state: Callable[[], MemberState | None],
        wake: Callable[[], None],
    ) -> None:
        """Create the link; `start` connects it.

        `read_state` returns the state of this rank. While it returns None, the link sends nothing, because a launcher
        whose main thread is stuck must not look alive. The link calls `wake` after a new order, and after a rejection
        of this rank's state.

        Raises:
            SettingsError: `rendezvous` is `api`, and this pod has no service account.
        """
        self._settings, self._runtime, self._network, self._timings = settings, runtime, network, timings
        self._name = coordinator_name(settings)
        self._port, self._locator = settings.peer_port, Rank0Locator(settings)
        self._read_state, self._wake = read_state, wake
        self._notifier = Notifier(settings) if settings.completion_index == 1 else None
        self.heard = self._logged = time.monotonic()
        """`heard`: when the coordinator last confirmed `order`; before the first order, the time of creation."""
        self.problem = "no request was sent yet"
        """Why the last request that failed has failed; this is shown in messages."""
        self.rejected_until: float | None = None
        """Monotonic time at which this pod exits if the coordinator still rejects its states then. The coordinator
        rejects them if another pod with the same rank is the valid one. None: the coordinator did not reject the newest
        state."""
        self._version = 0
        self._connection: http.client.HTTPConnection | None = None
        self._rank0: Rank0 | None = None
        """Where to connect again after a connection has ended; None: find rank 0 first."""
        self._deadline = float("inf")
        self._urgent = threading.Event()
        self._finished = threading.Event()
        """Set once rank 0 knows that this rank leaves, and also if the link ends without that."""
        self._is_late = False
        """Whether rank 0 has been unreachable for longer than `rendezvousSeconds`."""

    def start(self) -> None:
        """Start both threads."""
        for target in (self._run, self._run_urgent):
            threading.Thread(target=target, name="coordinator link", daemon=True).start()

    def send_now(self) -> None:
        """Send this rank's state at once, on a connection of its own."""
        self._urgent.set()

    def close(self, seconds: float) -> None:
        """Wait until rank 0 knows that this rank exits, for at most `seconds`; then end both threads."""
        self._deadline = time.monotonic() + seconds
        self._urgent.set()
        self._finished.wait(seconds)
        self._finished.set()
        self._locator.close()

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            state = self._read_state()
            accepted = False
            try:
                accepted = state is not None and self._exchange(state)
            except (OSError, http.client.HTTPException, ValueError, LauncherError) as error:
                where = "" if self._rank0 is None else f"no answer from {self._rank0.address}:{self._port}: "
                self.problem = f"{where}{error or type(error).__name__}"
                # If a connection breaks that has brought an order, rank 0 is most likely still at that address.
                self._disconnect(forget=not (self._version and isinstance(error, ConnectionError)))
                self.rejected_until = None
                if self.order is not None and self.order.do == Action.END:
                    break  # rank 0 has exited after the end of the run
            if self._finished.is_set() or (accepted and state is not None and state.phase == Phase.LEAVING):
                break
            if not accepted:  # more and more slowly, because each try reads run.lock
                silence = time.monotonic() - self.heard
                time.sleep(min(max(self._timings.poll, silence / 10), self._timings.hold))
        self._finished.set()
        self._disconnect()

    def _run_urgent(self) -> None:
        while not self._finished.is_set():
            if not self._urgent.wait(self._timings.log_again):
                continue
            self._urgent.clear()
            state = self._read_state()
            rank0 = self._rank0
            if state is None or rank0 is None or self._connection is None:
                continue  # the other thread sends it as soon as it is connected
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                connection = connect_to_rank_0(self._network, rank0.address, self._port)
                with contextlib.closing(connection):
                    code, _ = post_state(connection, rank0.credential, state, -1)
                if code == 200 and state.phase == Phase.LEAVING:
                    self._finished.set()

    def _exchange(self, state: MemberState) -> bool:
        """Send `state` to rank 0 and store the order in the answer; return whether rank 0 accepted the state."""
        if self._connection is None:
            # A connection that has ended is opened again without the storage, which may hang.
            self._rank0 = self._rank0 or self._locator.find()
            self.credential = self._rank0.credential
            self._connection = connect_to_rank_0(self._network, self._rank0.address, self._port)
        sent = time.monotonic()
        code, body = post_state(self._connection, self.credential, state, self._version)
        if code == 200:
            order, version = _parse_order(body)
            is_first, is_new = self.order is None, version != self._version
            # Rank 0 counts from the arrival of the state, so this rank counts from its sending.
            self.order, self.heard = order, sent
            self.rejected_until, self._version = None, version
            if is_first or is_new:
                self._wake()
            return True
        answer = json.loads(body)
        answer = answer if isinstance(answer, dict) else {"error": answer}
        self.problem = f"{self._name} answered with HTTP status {code}: {answer.get('error')}"
        if code == 409:
            if answer.get("replaced"):  # the other pod has taken this one's place for ever
                self.rejected_until = sent
            elif self.rejected_until is None:
                self.rejected_until = sent + self._timings.second_pod_wait
            self._wake()
            return False
        self.rejected_until = None
        self._disconnect(forget=True)  # rank 0 may be another pod now, and its old address another server's
        return False

    def _disconnect(self, *, forget: bool = False) -> None:
        self._version = 0
        if forget:
            self._rank0 = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wait_and_close(self, *_: object) -> None:
        """Wait, for a limited time, until rank 0 knows that this rank exits; then end the link."""
        self.close(self._timings.copies)

    def update(self, read_state: Callable[[], MemberState], now: float) -> None:  # noqa: ARG002 - the threads send it
        """Log and notify users if rank 0 is unreachable at monotonic time `now`.

        Raises:
            TwinError: rank 0 rejects this pod.
            RunEndedError: the run is over, as run.json says.
            DeadlineError: rank 0 has been unreachable for too long.
            DataError, StorageError, StorageFailedError: run.json or the output cannot be read (`raise_if_run_is_over`).
        """
        s, t, until = self._settings, self._timings, self.rejected_until
        if until is not None and now >= until:
            raise TwinError(f"{self.problem}. This pod exits; that is not counted as a failure.")
        silent, attempt = now - self.heard, self.order.attempt if self.order is not None else 0
        if silent < t.silence:
            if self._is_late:
                self._is_late = False
                self._notify("joined", attempt, None)
            return
        if now - self._logged < t.silence:
            return
        self._logged = now
        self.raise_if_run_is_over()
        log.info("waiting for %s for %.0f s now: %s", self._name, silent, self.problem)
        # The other ranks end the run a little later, so that rank 1 can send its notification.
        if silent >= s.join_seconds + (0 if s.completion_index == 1 else 2 * t.silence):
            text = (
                f"{self._name} was unreachable for {silent:.0f} s (limit rendezvousSeconds + training.rankWaitHours: "
                f"{s.join_seconds:.0f}): {self.problem}. Fix: {SEE_WHY}. {RETRY}"
            )
            self._notify("failed", attempt, text)
            if self._notifier is not None:
                self._notifier.close(t.copies)
            raise DeadlineError(text)
        if silent >= s.rendezvous_seconds and not self._is_late:
            self._is_late = True
            text = (
                f"{self._name} has been unreachable for {silent:.0f} s: {self.problem}. The run waits for it for up to "
                f"{(s.join_seconds - silent) / 3600:.1f} h more (training.rankWaitHours). Fix: {SEE_WHY}."
            )
            self._notify("waiting", attempt, text)

    def raise_if_run_is_over(self) -> None:
        """Raise `RunEndedError` if run.json of this run has a final state, `complete` or `failed`.

        This is needed because rank 0 may have exited before this rank received its last order. The state `complete`
        counts only if `Runtime.is_complete` confirms it. The state `failed` counts only if the rank 0 to which this
        rank was last connected wrote it. An earlier rank 0 may have written it before the run was started again.

        Raises:
            RunEndedError: the run is over.
            DataError: run.json says that the run is complete, but none of its checkpoints is usable.
            StorageError, StorageFailedError: run.json or the output cannot be read.
        """
        output = OutputPaths(self._settings.layout.output)
        try:
            run = read_run_record(output)
        except files.UnreadableError:  # rank 0 reports it
            return
        if run is None or run.run_id != self._settings.run_id:
            return
        if run.state == "complete" and self._runtime.is_complete(output.root, self._settings):
            raise RunEndedError("the run is complete", 0)
        if run.state == "failed" and hash_credential(self.credential) == run.holder:
            raise RunEndedError(str(run.cause), run.exit_code or EXIT_GANG)

    def _notify(self, event: RunEvent, attempt: int, cause: str | None) -> None:
        if self._notifier is not None:
            self._notifier.notify(event, attempt=attempt, cause=cause)


def _parse_order(body: bytes) -> tuple[Plan, int]:
    """Return (plan, version of the plan) from rank 0's answer. Raise ValueError if the answer has no valid plan."""
    try:
        answer = json.loads(body)
        return from_json(Plan, answer["order"]), answer["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"the answer to POST /state has no valid plan ({type(error).__name__}: {error}). Fix: use one image for "
            "all pods of the run"
        ) from error
