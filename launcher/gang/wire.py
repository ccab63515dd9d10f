"""The launchers' own channel over `peerPort`: JSON lines on one TCP connection a rank, all to rank 0.

A connection begins with a hello (run id, rank, attempt, address), so that strangers and launchers of an old
run are refused. Both sides send a beat each second; a connection that closes, or is silent for `silence`
seconds, is a lost rank. Threads read and put what comes into the main thread's queue.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from launcher.errors import DeadlineError, PeerLostError
from launcher.gang.events import Event, Events
from launcher.gang.log import log
from launcher.gang.network import Network
from launcher.gang.timings import Timings

Message = dict[str, Any]
LINE_MAX = 1 << 18  # bytes; a plan for 1000 ranks has some 100 kB
HELLO_SECONDS = 5.0
CLOSE_SECONDS = 2.0
STRANGERS_MAX = 64  # connections that have not said hello yet


class Link:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self.heard = time.monotonic()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that no longer reads must not stop the sender.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 5, 0))
        self._reader = sock.makefile("rb", buffering=1 << 16)

    def send(self, message: Message) -> bool:
        """Whether the message could be handed to the kernel."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._sock.sendall(data)
        except OSError:
            return False
        return True

    def timeout(self, seconds: float | None) -> None:
        """For reading."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(seconds)

    def messages(self) -> Iterator[Message]:
        """Until the connection closes; raises OSError or ValueError on what is no message."""
        while line := self._reader.readline(LINE_MAX):
            if not line.endswith(b"\n"):
                raise ValueError("a line that is too long, or cut")
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("a line that is no JSON object")  # noqa: TRY004 - the data is wrong, not the code
            self.heard = time.monotonic()
            yield message

    def end_writing(self) -> None:
        """Nothing more is sent from this side."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the connection, and with it the thread that reads."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._sock.close()


def _thread(target: Callable[..., None], *args: Any, name: str) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


class HubWire:
    """Rank 0's end: listens, admits, and keeps a link a rank."""

    def __init__(
        self, network: Network, port: int, *, run_id: str, trainers: int, events: Events, timings: Timings
    ) -> None:
        self._network, self._port = network, port
        self._run_id, self._trainers = run_id, trainers
        self._events, self._timings = events, timings
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(STRANGERS_MAX)
        self._server: socket.socket | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Listens from now on. Raises `GangError` when the port is taken."""
        self._server = self._network.listen(self._port)
        _thread(self._accept, name="peer-accept")
        _thread(self._beat, name="peer-beat")

    def _accept(self) -> None:
        assert self._server is not None  # noqa: S101 - start() made it
        while not self._closed.is_set():
            try:
                sock, address = self._server.accept()
            except OSError:
                if self._closed.wait(0.1):
                    return
                continue
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            _thread(self._serve, sock, str(address[0]), name="peer-read")

    def _serve(self, sock: socket.socket, address: str) -> None:
        link = Link(sock)
        rank = None
        try:
            try:
                link.timeout(HELLO_SECONDS)
                stream = link.messages()
                hello = next(stream, {})
                rank = self._admit(hello, link, address)
            finally:
                self._strangers.release()
            if rank is None:
                return
            link.timeout(None)
            for message in stream:
                self._events.put(Event("message", rank, message))
            why = "it closed its connection: the pod or its launcher died"
        except (OSError, ValueError) as error:
            why = f"its connection broke ({error})"
        finally:
            if rank is None:
                link.close()
        self._lose(rank, link, why)

    def _admit(self, hello: Message, link: Link, address: str) -> int | None:
        rank = hello.get("rank")
        reason = ""
        if hello.get("t") != "hello" or not isinstance(rank, int) or isinstance(rank, bool):
            reason = "this is the peer channel of a training launcher, and that was no hello"
        elif hello.get("run") != self._run_id:
            reason = f"this is run {self._run_id}, not {hello.get('run')}"
        elif not 1 <= rank < self._trainers:
            reason = f"ranks here are 1 to {self._trainers - 1}, not {rank}"
        else:
            with self._lock:
                if rank in self._links:
                    reason = f"rank {rank} is here already, from another pod"
                else:
                    self._links[rank] = link
        if reason:
            log.warning("refused a connection from %s: %s", address, reason)
            link.send({"t": "refused", "reason": reason})
            return None
        link.send({"t": "welcome"})
        self._events.put(Event("joined", int(rank or 0), hello))
        return int(rank or 0)

    def _lose(self, rank: int | None, link: Link, why: str, at: float | None = None) -> None:
        with self._lock:
            if rank is None or self._links.get(rank) is not link:
                return
            del self._links[rank]
        link.close()
        if not self._closed.is_set():
            self._events.put(Event("lost", rank, {"why": why}, at=time.monotonic() if at is None else at))

    def _beat(self) -> None:
        while not self._closed.wait(self._timings.beat):
            now = time.monotonic()
            for rank, link in list(self._links.items()):
                if now - link.heard > self._timings.silence:
                    why = f"no sign of life for {self._timings.silence:.0f} s: its node or network failed"
                    self._lose(rank, link, why, at=link.heard)
                else:
                    link.send({"t": "beat"})

    def send(self, rank: int, message: Message) -> None:
        """To one rank, if it is connected."""
        link = self._links.get(rank)
        if link is not None:
            link.send(message)

    def broadcast(self, message: Message) -> None:
        """To all connected ranks."""
        for link in list(self._links.values()):
            link.send(message)

    def close(self) -> None:
        """Closes all; what was sent before still arrives."""
        self._closed.set()
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
        # Closing a socket with unread beats would reset the connection, and `end` could be lost with it: say
        # that nothing follows, and let the others close first.
        for link in list(self._links.values()):
            link.end_writing()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._links and time.monotonic() < deadline:
            time.sleep(0.01)
        for link in list(self._links.values()):
            link.close()


class SpokeWire:
    """Another rank's end: finds rank 0, and keeps the one link."""

    def __init__(
        self,
        network: Network,
        hub_host: str,
        port: int,
        *,
        hello: Message,
        events: Events,
        timings: Timings,
        seconds: float,
        beat: Callable[[], Message],
    ) -> None:
        self._network, self._host, self._port = network, hub_host, port
        self._hello, self._events, self._timings = hello, events, timings
        self._seconds, self._make_beat = seconds, beat
        self._link: Link | None = None
        self._closed = threading.Event()

    @property
    def connected(self) -> bool:
        return self._link is not None

    def start(self) -> None:
        """Looks for rank 0 from now on, for the rendezvous' seconds."""
        _thread(self._run, name="peer-read")

    def _run(self) -> None:
        deadline = time.monotonic() + self._seconds
        why = "nothing was tried"
        say_at = time.monotonic() + self._timings.say_again
        while not self._closed.is_set():
            found = self._try()
            if not isinstance(found, str):
                self._read(*found)
                return
            why = found
            now = time.monotonic()
            if now >= deadline:
                text = (
                    f"rank 0 cannot be reached after {self._seconds:.0f} s (rendezvousSeconds): {why}. "
                    "See why that pod does not run: `python -m launcher status`, or kubectl describe pod."
                )
                self._events.put(Event("error", body={"error": DeadlineError(text)}))
                return
            if now >= say_at:
                log.info("waiting for rank 0, up to %.0f s more: %s", deadline - now, why)
                say_at = now + self._timings.say_again
            self._closed.wait(self._timings.poll)

    def _try(self) -> tuple[Link, Iterator[Message]] | str:
        """A link that rank 0 has welcomed, or why there is none."""
        addresses = self._network.resolve(self._host)
        if not addresses:
            return f"{self._host} does not resolve (its pod is not scheduled, or has no address yet)"
        why = ""
        for address in addresses:
            try:
                link = Link(self._network.connect(address, self._port, timeout=2.0))
            except OSError as error:
                why = (
                    f"{self._host} resolves to {address}, no answer on peerPort {self._port} "
                    f"({error.strerror or error}; its init container still waits, or a policy blocks "
                    "the port)"
                )
                continue
            try:
                link.timeout(HELLO_SECONDS)
                link.send(self._hello)
                stream = link.messages()
                answer = next(stream, {})
                if answer.get("t") == "welcome":
                    link.timeout(None)
                    return link, stream
                why = f"{self._host} ({address}) refuses: {answer.get('reason', 'it closed the connection')}"
            except (OSError, ValueError) as error:
                why = f"{self._host} ({address}:{self._port}) does not answer as a launcher ({error})"
            link.close()
        return why

    def _read(self, link: Link, stream: Iterator[Message]) -> None:
        self._link = link
        _thread(self._beat, link, name="peer-beat")
        self._events.put(Event("joined", 0))
        try:
            for message in stream:
                if message.get("t") != "beat":
                    self._events.put(Event("message", 0, message))
            why = "it closed its connection: the pod or its launcher died"
        except (OSError, ValueError) as error:
            why = f"its connection broke ({error})"
        self._lose(why)

    def _lose(self, why: str) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        link.close()
        if not self._closed.is_set():
            error = PeerLostError(f"rank 0 ({self._host}) was lost: {why}")
            self._events.put(Event("lost", 0, {"why": why, "error": error}))

    def _beat(self, link: Link) -> None:
        while not self._closed.wait(self._timings.beat) and self._link is link:
            if time.monotonic() - link.heard > self._timings.silence:
                self._lose(f"no sign of life for {self._timings.silence:.0f} s: its node or network failed")
            else:
                link.send(self._make_beat())

    def send(self, message: Message) -> bool:
        """Whether rank 0 is connected and took it."""
        link = self._link
        return link is not None and link.send(message)

    def close(self) -> None:
        self._closed.set()
        link, self._link = self._link, None
        if link is not None:
            link.close()
