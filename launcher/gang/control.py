"""The launchers' own channel over `peerPort`: plain HTTP, one server a rank.

every rank   GET /healthz   for the kubelet: 200 while the launcher's main thread goes round
             GET /metrics   for Prometheus
rank 0       GET /status    what status.json says, without the storage
             POST /state    a rank's whole state; the answer is the whole order, at once if it changed, else
                            after `hold` seconds. 401: not with this run's token; 409: another pod of this
                            rank counts; 503: rank 0 does not hold the output yet

The credential is the token of run.lock (docs/adr/0004-the-gang-restarts-in-place.md).
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from launcher.errors import LauncherError
from launcher.gang.machine import Member, Refused, Rules, admit
from launcher.gang.messages import Order, State
from launcher.gang.network import Network
from launcher.reporting.log import log
from launcher.timings import Timings

STATE_MAX = 1 << 16  # bytes of a state; an order for 1000 ranks has some 20 kB
SOCKET_SECONDS = 10.0  # for one request beside what the server holds it


class Hub:
    """Rank 0's record of all ranks, and the order that they are given. Asked by the server's threads."""

    def __init__(self, trainers: int, rules: Rules, wake: Callable[[], None], hold: float) -> None:
        self.rules, self._wake, self.hold = rules, wake, hold
        self._members = tuple(Member(rank) for rank in range(trainers))
        self._token: str | None = None
        self._version, self._order, self._body = 0, Order(-1, "wait"), b""
        self._told: dict[int, int] = {}
        self._changed = threading.Condition()
        self.publish(self._order)

    @property
    def members(self) -> tuple[Member, ...]:
        return self._members

    @property
    def order(self) -> Order:
        return self._order

    def remember(self, members: Sequence[Member]) -> None:
        """What an earlier rank 0 left, of ranks that have not been heard here."""
        with self._changed:
            known = {member.rank: member for member in members}
            self._members = tuple(self._merged(here, known.get(here.rank, here)) for here in self._members)

    def _merged(self, here: Member, left: Member) -> Member:
        if here.state is None or left.state is None:
            return left if here.state is None else here
        old = left.state.incarnation  # `here` called before this was known
        if here.state.incarnation == old:
            return here
        return replace(here, gone=here.gone | {old}, ghost=left.heard + self.rules.life)

    def open(self, token: str) -> None:
        """From now on ranks that know this token are let in."""
        self._token = token

    def shut(self) -> None:
        """From now on nobody is let in: this rank 0 counts no more, and ranks are to look for another."""
        self._token = None

    def allows(self, token: str) -> bool | None:
        """Whether this is the token; None while there is none."""
        known = self._token
        return None if known is None else hmac.compare_digest(known.encode(), token.encode())

    def take(self, state: State, now: float) -> None:
        """Notes a rank's state. Raises `Refused`, or ValueError for a rank that there is not."""
        with self._changed:
            if not 0 <= state.rank < len(self._members):
                raise ValueError(f"there is no rank {state.rank}: ranks are 0 to {len(self._members) - 1}")
            before = self._members[state.rank]
            after = admit(before, state, now, self.rules)
            self._members = (*self._members[: state.rank], after, *self._members[state.rank + 1 :])
        if before.state is None or before.state.incarnation != state.incarnation:
            log.info("%s is here", after.label)
        if (before.phase, before.state and before.state.failure) != (after.phase, state.failure):
            self._wake()

    def publish(self, order: Order) -> None:
        """Gives every rank this order."""
        with self._changed:
            if self._body and order == self._order:
                return
            self._version, self._order = self._version + 1, order
            self._body = json.dumps({"version": self._version, "order": order.to_json()}).encode()
            self._changed.notify_all()

    def answer(self, rank: int, seen: int) -> bytes:
        """The order for a rank that has seen version `seen`: at once if there is a newer one."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, self.hold)
            self._told[rank] = self._version
            return self._body

    def everybody_knows(self, now: float, *, absent: bool) -> bool:
        """Whether each rank that lives was handed the newest order, or is leaving; `absent`: or never
        came."""
        return all(
            member.rank == 0
            or member.phase == "leaving"
            or (member.phase == "absent" and absent)
            or (member.phase != "absent" and now - member.heard >= self.rules.silence)
            or self._told.get(member.rank) == self._version
            for member in self._members
        )


class Handler(BaseHTTPRequestHandler):
    """One connection; kept open, since every rank asks several times a second."""

    protocol_version = "HTTP/1.1"
    server: Server
    timeout = 60.0
    # Answers are small: waiting for more to send with them (Nagle) would cost 40 ms each.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """healthz, metrics, status."""
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self._answer(404, {"error": f"no {self.path}; there are {', '.join(sorted(self.server.pages))}"})
            return
        code, kind, body = page()
        self._answer(code, body, kind)

    def do_POST(self) -> None:
        """A rank's state."""
        size = int(self.headers.get("Content-Length") or -1)
        if not 0 <= size <= STATE_MAX:
            self.close_connection = True
            self._answer(413, {"error": f"a state has at most {STATE_MAX} bytes"})
            return
        body = self.rfile.read(size)
        hub = self.server.hub
        if self.path != "/state" or hub is None:
            self._answer(404, {"error": "only rank 0 takes states, at /state"})
            return
        allowed = hub.allows(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if not allowed:
            why = "rank 0 waits for the output" if allowed is None else "this is not the token of run.lock"
            self._answer(503 if allowed is None else 401, {"error": why})
            return
        try:
            told = json.loads(body)
            state = State.from_json(told["state"], time.monotonic())
            hub.take(state, time.monotonic())
        except Refused as refused:
            self._answer(409, {"error": str(refused), "twin": refused.twin})
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, {"error": f"no state: {type(error).__name__}: {error}"})
        else:
            seen = -1 if state.phase == "leaving" else int(told.get("seen") or 0)
            self._answer(200, hub.answer(state.rank, seen))

    def _answer(self, code: int, body: bytes | Mapping[str, Any], kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Says nothing: ranks ask several times a second."""


Page = Callable[[], tuple[int, str, bytes]]


class Server(ThreadingHTTPServer):
    """One rank's server, from a thread. `pages`: path → (status, content type, body)."""

    daemon_threads = True
    request_queue_size = 1024  # all ranks come at once

    def __init__(self, network: Network, port: int, pages: Mapping[str, Page]) -> None:
        """Listens from now on. Raises `GangError` when the port is taken."""
        self.pages = pages
        self.hub: Hub | None = None
        super().__init__((network.bind_host, port), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = network.listen(port)
        threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that goes away in the middle of a request is nothing to tell."""

    def close(self) -> None:
        """Listens no more."""
        self.shutdown()
        self.server_close()


class Link:
    """Another rank's way to rank 0: tells the state and takes the order, from a thread.

    Rank 0 holds each answer back for a while; news goes there at once, on a connection of its own.

    `locate()` gives rank 0's address, `token()` the lock's token as this pod sees it now; both may fail with
    OSError or `LauncherError`. `tell()` gives the state, or None to say nothing at all: a launcher whose main
    thread is stuck must not look alive.
    """

    def __init__(
        self,
        network: Network,
        port: int,
        timings: Timings,
        *,
        locate: Callable[[], str],
        token: Callable[[], str | None],
        tell: Callable[[], State | None],
        wake: Callable[[], None],
    ) -> None:
        self._network, self._port, self._timings = network, port, timings
        self._locate, self._read_token, self._tell, self._wake = locate, token, tell, wake
        self.order: Order | None = None
        self.heard = time.monotonic()
        """When `order` was last confirmed; at first, when this link was made."""
        self.trouble = "it was not asked yet"
        """Why there is no order now."""
        self.refused: tuple[bool, float] | None = None
        """(whether for good, since when) another pod of this rank counts and this one does not."""
        self._version = 0
        self._token = ""
        self._connection: http.client.HTTPConnection | None = None
        self._host = "rank 0"
        self._until = float("inf")
        self._news = threading.Event()
        self._left = threading.Event()
        """Rank 0 has heard that this rank leaves, or cannot be told."""

    def start(self) -> None:
        """Looks for rank 0 from now on."""
        for target in (self._run, self._run_news):
            threading.Thread(target=target, name="link", daemon=True).start()

    def news(self) -> None:
        """The state has changed so that rank 0 should know it now."""
        self._news.set()

    def _run(self) -> None:
        while time.monotonic() < self._until:
            state = self._tell()
            told = False
            try:
                told = state is not None and self._exchange(state)
            except (OSError, http.client.HTTPException, ValueError, LauncherError) as error:
                where = f"{self._host}:{self._port}" if self._connection is None else "rank 0"
                self.trouble = (
                    f"no answer from {where} (peerPort {self._port}): {error or type(error).__name__}"
                )
                self._drop()
                if self.order is not None and self.order.do == "end":
                    break  # nobody is there to be told
            if self._left.is_set() or (told and state is not None and state.phase == "leaving"):
                break
            if not told:
                time.sleep(self._timings.poll)
        self._left.set()
        self._drop()

    def _run_news(self) -> None:
        while not self._left.is_set():
            if not self._news.wait(self._timings.say_again):
                continue
            self._news.clear()
            state = self._tell()
            if state is None or self._connection is None:
                continue  # the other thread tells it as soon as it finds rank 0
            body = {"state": state.to_json(time.monotonic()), "seen": -1}
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                connection = self._connect(self._host)
                with contextlib.closing(connection):
                    code, _ = self._ask(connection, body)
                if code == 200 and state.phase == "leaving":
                    self._left.set()

    def _exchange(self, state: State) -> bool:
        """Whether rank 0 took the state."""
        sent = time.monotonic()
        code, answer = self._post({"state": state.to_json(sent), "seen": self._version})
        if code == 200:
            first = self.order is None
            # From when it was asked: the answer may have been long on its way, rank 0 counts from its end.
            self.order, self.heard = Order.from_json(answer["order"]), sent
            self.refused, changed = None, answer["version"] != self._version
            self._version = answer["version"]
            if first or changed:
                self._wake()
            return True
        self.trouble = f"rank 0 answers {code}: {answer.get('error')}"
        if code == 409:
            self.refused = bool(answer.get("twin")), self.refused[1] if self.refused else sent
            self._wake()
        if code == 401:
            self._token = self._read_token() or ""
        if code == 503:  # another pod may be rank 0 by now
            self._drop()
        return False

    def _post(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            if not self._token:
                self._token = self._read_token() or ""
            self._host = self._locate()
            self._connection, self._version = self._connect(self._host), 0
        return self._ask(self._connection, body)

    def _connect(self, host: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, self._port, timeout=SOCKET_SECONDS)
        connection.auto_open = 0  # a connection that has ended is no reason to take the same address again
        connection.sock = self._network.connect(host, self._port, timeout=5)
        connection.sock.settimeout(SOCKET_SECONDS)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _ask(
        self, connection: http.client.HTTPConnection, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection.request("POST", "/state", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def token(self) -> str:
        """The lock's token as this pod last saw it."""
        return self._token

    def close(self, seconds: float) -> None:
        """Returns once rank 0 has heard that this rank leaves, or after `seconds`, and ends the thread."""
        self._until = time.monotonic() + seconds
        self._news.set()
        self._left.wait(seconds)
        self._left.set()
