"""One pod of a simulation: the real agent with a simulated network, container and processes."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import EXIT_STOPPED
from launcher.settings import TrainSettings
from launcher.supervisor.agent import SPARE_SECONDS, Agent
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.coordinator.members import Membership
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.coordinator_link import ANSWER_SECONDS, CONNECT_SECONDS
from launcher.supervisor.shared_storage.output_lease import read_lease_holder
from tests.launcher.supervisor import virtual_time
from tests.launcher.supervisor.loopback_gang import pod_environ
from tests.launcher.supervisor.simulated_processes import STALL, SimulatedChild, SimulatedRuntime, T

if TYPE_CHECKING:
    from tests.launcher.supervisor.simulation import World

EXIT_SECONDS = T.stop + T.copies + SPARE_SECONDS
_SETTINGS = TrainSettings.from_environ(pod_environ(progress_deadline_seconds=STALL, CONF_PADDLE_NIC="eth0"))


class Ignored:
    """Accepts every call and returns itself, as does every attribute."""

    membership: Membership | None = None

    def __getattr__(self, name: str) -> Ignored:
        return self

    def __call__(self, *_: object, **__: object) -> Ignored:
        return self


class SimulatedPod:
    """A pod: its container, and the faults that it has now."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        world.pods_created += 1
        self.name = f"{rank}-{world.pods_created}"
        self.address = f"10.0.{rank}.{world.pods_created}"
        self.dead, self.frozen, self.cut, self.cut_storage = False, 0.0, 0.0, False
        self.deaf = self.mute = 0.0
        """Until these times no message reaches the pod (deaf), or none that it sends arrives (mute)."""
        self.leave_by = float("inf")
        """When the launcher must begin to stop its processes, because the pod received SIGTERM."""
        self.clock_offset = world.rng.uniform(0, 1e4)
        self.children: list[SimulatedChild] = []
        self.server = Ignored()
        """The HTTP server (`PeerServer`)."""
        self.requests: list[SimulatedConnection] = []
        """Connections that wait for an answer of this pod."""
        self.agent: Agent | None = None
        self.message = ""
        self.send_signal: Callable[[int], object] | None = None
        world.clock.schedule(world.rng.uniform(0.5, 3), self._start)

    def __str__(self) -> str:
        return f"pod {self.name}"

    def _start(self) -> None:
        if not self.dead:
            virtual_time.Thread(self._run, owner=self).start()

    def _run(self) -> None:
        world = self.world
        settings = replace(
            _SETTINGS, completion_index=self.rank, trainers=world.ranks, gradient_num=world.ranks,
            restarts=world.restarts, rendezvous_seconds=int(world.rendezvous),
            rank_wait_hours=world.rank_wait_hours, passes=world.points[-1].passes,
            grace_seconds=world.grace, job_path=world.shared,
            work_dir=world.root / self.name, pod_name=self.name, pod_ip=self.address,
        )  # fmt: skip
        settings.work_dir.mkdir()
        self.agent = Agent(settings, SimulatedRuntime(), SimulatedNetwork(self), T)
        self.exit_container(self.agent.run(), self.message)

    def stop(self) -> None:
        """Send SIGTERM to the launcher, and SIGKILL after the grace period. A second SIGTERM ends it at once."""
        if self.leave_by < float("inf"):
            self.world.hurried.add(self.world.newest_attempt)
        self.leave_by = min(self.leave_by, self.world.now + self.world.grace - EXIT_SECONDS)
        if self.send_signal is not None:
            virtual_time.Thread(self.send_signal, (signal.SIGTERM,), owner=self).start()
        else:
            self.exit_container(EXIT_STOPPED, "stopped before its start")
        self.world.clock.schedule(
            self.world.grace, lambda: self.exit_container(137, "killed after its grace period")
        )

    @property
    def coordinator(self) -> Coordinator | None:
        """Return the coordinator, if this is a pod of rank 0 that has one already."""
        orders = self.agent.orders if self.agent is not None else None
        return orders if isinstance(orders, Coordinator) else None

    def kill_children(self) -> None:
        """Kill all processes of this pod (`kill_all_children`)."""
        for child in [*self.children]:
            child.exit(-9)

    def exit_container(self, code: int, why: str) -> None:
        """Exit the container, which kills all its processes."""
        if self.dead:
            return
        self.dead = True
        self.kill_children()
        self.world.log_event("%s exits with %d: %s", self, code, why)
        for connection in self.requests if self.world.rng.random() < 0.7 else []:  # else its node is lost
            connection.receive(ConnectionResetError("reset"))
        self.world.handle_container_exit(self, code, why)


def running_pod() -> SimulatedPod:
    """Return the pod whose thread runs."""
    clock = virtual_time.active()
    assert clock is not None
    return clock.running.owner  # type: ignore[return-value]


class SimulatedNetwork(PodNetwork):
    """The network of one pod."""

    def __init__(self, pod: SimulatedPod) -> None:
        self.pod = pod

    def resolve(self, name: str) -> list[str]:
        """Return no address: rank 0 only asks for those of ranks that are missing."""
        return []

    def interfaces(self) -> dict[str, str]:
        """Return the pod's only interface."""
        return {"eth0": self.pod.address}

    def connect(self, host: str, port: int, timeout: float) -> Any:
        """Connect to a pserver of this pod; raise OSError if none accepts connections."""
        if not any(child.accepts for child in self.pod.children):
            raise ConnectionRefusedError(f"{host}:{port}")
        return io.BytesIO()


class SimulatedConnection:
    """A connection to rank 0 (`HttpConnection`). Its messages may arrive late, twice or never."""

    def __init__(self, network: SimulatedNetwork, host: str, port: int) -> None:
        self._pod, self._world = network.pod, network.pod.world
        found = next((pod for pod in self._world.pods if pod.address == host and not pod.dead), None)
        if found is None or self._world.is_cut(self._pod, found):
            self._world.clock.wait(self._world.rng.choice((0.0, CONNECT_SECONDS)))
            raise ConnectionRefusedError(f"{host}:{port}")
        self._rank0: SimulatedPod = found
        self._answered = virtual_time.Event()
        self._answer: tuple[int, bytes] | OSError = OSError()

    def receive(self, answer: tuple[int, bytes] | OSError) -> None:
        """Receive the answer of the present request, or an error of the connection."""
        if not self._answered.is_set():
            self._answer = answer
            self._answered.set()

    def post_state(self, credential: str, body: bytes) -> tuple[int, bytes]:
        """Send a state, and return rank 0's answer."""
        rank0, clock = self._rank0, self._world.clock
        self._answered = virtual_time.Event()
        answered = self._answered

        def handle() -> None:
            membership = rank0.server.membership
            answer = (404, b"{}")
            if membership is not None:
                answer = membership.reject(credential) or membership.handle_state(body)
            for delay in self._world.message_delays(rank0, self._pod):
                clock.schedule(delay, lambda: self.receive(answer) if self._answered is answered else None)

        def arrive() -> None:
            if rank0.dead:
                self.receive(ConnectionResetError("reset"))
            else:
                virtual_time.Thread(handle, owner=rank0).start()

        for delay in self._world.message_delays(self._pod, rank0):
            clock.schedule(delay, arrive)
        rank0.requests.append(self)
        self._answered.wait(ANSWER_SECONDS)
        rank0.requests.remove(self)
        if not answered.is_set():
            raise TimeoutError("timed out")
        if isinstance(self._answer, OSError):
            raise self._answer
        code, content = self._answer
        if code == 200:
            self._world.check_received_order(json.loads(content)["order"])
        return self._answer

    def close(self) -> None:
        """Do nothing: every request of this connection has ended."""


def stage_inputs(_: object, rank: int, manifest: object, program: Path, check: Callable[[], None]) -> str:
    """Stand in for `input_staging.stage_inputs`: wait some seconds and call `check`, but copy nothing."""
    world = running_pod().world
    for _ in range(world.rng.randint(1, 3)):
        world.clock.wait(world.rng.uniform(0.1, 1))
        check()
    return "sha256"


@contextlib.contextmanager
def handle_signals(handler: Callable[[int], object], signals: object = ()) -> Iterator[None]:
    """Let `SimulatedPod.stop` call `handler`."""
    running_pod().send_signal = handler
    yield


def exit_now(code: int) -> None:
    """Exit the container of the pod whose thread runs (`os._exit`)."""
    running_pod().exit_container(code, running_pod().message)
    raise virtual_time.ThreadKilledError


def read_old_lease_holder(path: Path, *rest: Any) -> dict[str, Any]:
    """Read run.lock as another node sees it: NFS caches names for up to a minute."""
    world, found = running_pod().world, read_lease_holder(path, *rest)
    if not world.lease_holders or world.lease_holders[-1][1] != found:
        world.lease_holders.append((world.clock.now, found))
    age = world.clock.now - world.lease_holders[-1][0]
    old = [holder for _, holder in world.lease_holders[:-1]] if age < 60 else []
    return old[-1] if old and world.rng.random() < 0.3 else found
