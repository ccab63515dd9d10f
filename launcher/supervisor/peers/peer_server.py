"""HTTP server that every launcher runs on `peerPort`.

every rank   GET /healthz   for the kubelet: 200 while the launcher's main thread runs and the storage responds
             GET /metrics   for Prometheus; on other ranks than rank 0 the answer is 404, or a page without
                            metrics in an elastic run
             GET /node-check/…   zeros, from which another rank measures its network (`build_check_path`)
rank 0       GET /status    the content of status.json, without access to the storage
             POST /state    a rank sends its state; the answer is the coordinator's newest order
             (`Membership`)
             /trainers/…    GET, PUT, DELETE: the trainers rendezvous through gloo; POST: a trainer asks whether
             to save a checkpoint (`TrainerStore`)

The credential of POST /state, and the secret in the paths below /trainers/, are derived from the run's secret on the
shared storage (docs/explanation/decisions.md). Other pods may reach this port (networkPolicy.metricsFrom). So the
server authenticates a sender by the head of the request, before it reads the body. A sender that is not authenticated
may send little data, and only for a short time. If too many connections are not authenticated, each new connection
replaces the oldest one of them, so that such senders cannot keep out a rank or the kubelet.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.io.requested_checkpoints import HOLD
from launcher.supervisor.peers.addresses import PodNetwork

if TYPE_CHECKING:
    from launcher.supervisor.coordinator.members import Membership

VALUE_MAX_BYTES = 1 << 20  # of a value; gloo's addresses need some 136 bytes per rank
POLL_SECONDS = 0.5  # between two reads of the request file
CHECK_BYTES = 1 << 26  # zeros that a node check reads at most


def build_store_prefix(credential: str, attempt: int) -> str:
    """Return the prefix of the path of each request that the trainers of one attempt send to the store.

    The prefix contains a secret that is calculated from the run's credential (`build_credential`) and the attempt. The
    credential cannot be calculated from this secret, so nobody who reads such a path in a log can report the state of a
    rank.
    """
    secret = hmac.new(credential.encode(), f"trainers of attempt {attempt}".encode(), hashlib.sha256)
    return f"/trainers/{attempt}/{secret.hexdigest()}"


def build_check_path(credential: str) -> str:
    """Return the path under which a rank serves CHECK_BYTES zeros for the node check.

    The pod of the rank before this one reads them to measure its network.
    """
    return f"/node-check/{hmac.new(credential.encode(), b'node check', hashlib.sha256).hexdigest()}"


class TrainerStore:
    """Stores the addresses of the current attempt's trainers, and decides when they save a requested checkpoint.

    The library gloo connects the trainers of runtime fleet: each trainer stores its addresses under its rank, and reads
    the addresses of the other trainers. gloo cannot send a header with a credential, so the path of a request contains
    the secret that authenticates the trainer (`build_store_prefix`). The store forgets all values when the next attempt
    starts.

    Trainers also ask the store whether they must save a checkpoint at a certain batch. They must if a user or the
    coordinator has requested one, for example because a pod received SIGTERM. All trainers get the same answer for the
    same batch.

    This class replaces PaddlePaddle's own store, which is a child process of pserver 0. That process needs a port of
    its own and starts only after the import of Paddle, and pserver 0 does not serve before that process exits.
    """

    def __init__(self, request: Path) -> None:
        """Create the store; it rejects every request before `open`.

        A user requests a checkpoint by creating the file `request`.
        """
        self._request = request
        self._prefix = ""
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._requested = self._granted = ""
        """The current content of the request file, and the content for which a checkpoint was last granted; empty:
        none."""
        self._is_requested = False
        """Whether the coordinator has requested a checkpoint that was not granted yet."""
        self._watcher = threading.Thread(target=self._watch_request, name="checkpoint request", daemon=True)

    def open(self, prefix: str) -> None:
        """Start an attempt: forget all values, and accept only requests whose path begins with `prefix`.

        A checkpoint request that the previous attempt granted may be granted again, since that attempt may have
        failed before it saved the checkpoint.
        """
        with self._lock:
            self._prefix, self._values, self._granted = prefix, {}, ""
            self._is_requested = False
        if self._watcher.ident is None:
            self._watcher.start()

    def request_checkpoint(self) -> None:
        """Let the next answer to the trainers (`decide`) be that they save a checkpoint now."""
        with self._lock:
            self._is_requested = True

    def hold(self, is_held: bool) -> None:
        """Tell trainers that have saved a checkpoint whether to wait (`is_held`) or to continue.

        Trainers that wait ask again and again, and continue if they are not stopped for HOLD_SECONDS
        (launcher/io/requested_checkpoints.py).
        """
        with self._lock:
            self._values.pop(f"{self._prefix}{HOLD}", None)
            if is_held:
                self._values[f"{self._prefix}{HOLD}"] = b"1"

    def accepts(self, path: str) -> bool:
        """Return whether `path` has the secret of the current attempt."""
        expected = self._prefix
        return bool(expected) and hmac.compare_digest(path[: len(expected)].encode(), expected.encode())

    def read(self, path: str) -> bytes | None:
        """Return the value of the key `path`; None before `write` has stored one."""
        with self._lock:
            return self._values.get(path)

    def write(self, path: str, value: bytes) -> None:
        """Store `value` under the key `path`; do nothing if another attempt has started since `accepts` was called."""
        with self._lock:
            if path.startswith(self._prefix):
                self._values[path] = value

    def decide(self, path: str, proposed: int) -> bytes:
        """Decide whether the trainers save a requested checkpoint now; calls with the same path get the same answer.

        A request is granted only once, because its file may still exist when trainers that have saved the checkpoint
        ask again.

        Args:
            path: contains the step (number of trained batches) at which the trainers ask.
            proposed: the step at which the trainers should ask the next time. Only the proposal in the first call with
                this path counts.

        Returns:
            JSON [whether to save now, the step at which all trainers ask the next time].
        """
        with self._lock:
            if path not in self._values:
                request = self._requested
                save = request not in ("", self._granted) or self._is_requested
                if save:
                    self._granted, self._is_requested = request, False
                self._values[path] = json.dumps([save, proposed]).encode()
            return self._values[path]

    def _watch_request(self) -> None:
        """Read the request file again and again, in its own thread: hung storage must not delay answers."""
        while True:
            try:
                self._requested = self._request.read_text("utf-8")
            except FileNotFoundError:
                self._requested = ""
            except (OSError, ValueError):
                pass  # a temporary error; keep the previous content
            time.sleep(POLL_SECONDS)


STATE_MAX_BYTES = 1 << 20
"""Size in bytes of the longest state of a rank. A state contains training.args, an environment variable of up to 128
KiB."""

STEP_MAX_BYTES = 64
"""Size in bytes of the longest body with which a trainer asks whether to save a checkpoint. The body is a number."""
HEAD_MAX_BYTES = 1 << 16
"""Size in bytes of the longest head of a request."""
REQUEST_SECONDS = 30.0
"""Time limit in seconds from the end of the previous answer on a connection to the complete arrival of the next
request. A rank sends its next state at once."""
MAX_STRANGERS = 128
"""At most this many connections may be open whose sender has not been authenticated."""

Page = Callable[[], tuple[int, str, bytes]]
"""A function that returns the (HTTP status, content type, body) of a page."""


class _LimitedReader(io.RawIOBase):
    """Reads from a socket; raises OSError after `left` bytes or the monotonic time `deadline`.

    The read that reaches the limit `left` may return more bytes, because it fills the buffer of its caller.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.left, self.deadline = connection, 0, 0.0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`, and return the number of bytes; 0 at the end of the stream."""
        seconds = self.deadline - time.monotonic()
        if self.left <= 0 or seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer)
        self.left -= count
        return count


class PeerRequestHandler(BaseHTTPRequestHandler):
    """Handles one connection, which members keep open because they send several states a second."""

    protocol_version = "HTTP/1.1"
    server: PeerServer
    # Answers are small: waiting for more data to send with them (Nagle) would cost 40 ms each.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Prepare the handler to read from the connection through a `_LimitedReader`."""
        super().setup()
        self.rfile.close()
        self._reader = _LimitedReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        """Receive a request and answer it."""
        self._reader.left, self._reader.deadline = HEAD_MAX_BYTES, time.monotonic() + REQUEST_SECONDS
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer a trainer with the value that is stored under the path, and everybody else with the page of the path.

        The path for the node check is a page of zeros. The answer is 404 if there is no such value or page.
        """
        store = self._trainer_store()
        if store is not None:
            value = store.read(self.path)
            self._answer(404 if value is None else 200, value or b"")
            return
        if hmac.compare_digest(self.path.encode(), self.server.check_path.encode()):
            self.server.trust(self.connection)
            self._answer(200, bytes(CHECK_BYTES))
            return
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            pages = ", ".join(sorted(self.server.pages))
            self._answer_error(404, f"there is no {self.path}; available: {pages}")
            return
        code, kind, body = page()
        self._answer(code, body, kind)

    def do_PUT(self) -> None:
        """Store the value that a trainer sends, under the path of its request; reject all other senders."""
        store = self._trainer_store()
        if store is None:
            self._answer_error(
                403,
                "only trainers of the current attempt can store values, on the rank with the output lease",
            )
            self._drop_body()
        elif (value := self._read_body(VALUE_MAX_BYTES)) is not None:
            store.write(self.path, value)
            self._answer(200, b"")

    def do_DELETE(self) -> None:
        """Confirm that a trainer no longer needs a value, but keep it, because other trainers may still read it."""
        self._answer(403 if self._trainer_store() is None else 200, b"")

    def do_POST(self) -> None:
        """Answer a rank's launcher (POST /state) or a trainer (a path with the secret of this attempt).

        A launcher sends the state of its rank. The coordinator records the state, and the answer is the coordinator's
        newest order. A trainer asks whether to save a checkpoint now, and sends the step at which it proposes to ask
        the next time. The first trainer that asks with this path decides for all trainers.
        """
        store, membership = self._trainer_store(), self.server.membership
        if store is not None:
            body = self._read_body(STEP_MAX_BYTES)
            if body is not None and body.isdigit():
                self._answer(200, store.decide(self.path, int(body)))
            elif body is not None:
                self._answer_error(400, "the body must be the number of a batch")
        elif self.path != "/state" or membership is None:
            self._answer_error(
                404,
                "this launcher accepts POST only while it holds the output lease, for /state and for paths of the "
                "current attempt's trainers",
            )
            self._drop_body()
        elif rejected := membership.reject(self.headers.get("Authorization", "").removeprefix("Bearer ")):
            self._answer(*rejected)
            self._drop_body()
        else:
            self.server.trust(self.connection)
            if (body := self._read_body(STATE_MAX_BYTES)) is not None:
                self._answer(*membership.handle_state(body))

    def _trainer_store(self) -> TrainerStore | None:
        """Return rank 0's key-value store for trainers if a trainer of the current attempt sent this request.

        The path of such a request has the secret of the attempt. For any other request, and on other ranks, return
        None.
        """
        store = self.server.trainer_store
        if store is None or not store.accepts(self.path):
            return None
        self.server.trust(self.connection)
        return store

    def _read_body(self, limit: int) -> bytes | None:
        """Return the request's body; None, after answering 413, if its length is missing or above `limit`."""
        size = self.headers.get("Content-Length") or ""
        if size.isascii() and size.isdigit() and int(size) <= limit:
            self._reader.left += limit
            return self.rfile.read(int(size))
        self._answer_error(413, f"the body must have a length of at most {limit} bytes")
        self._drop_body()
        return None

    def _drop_body(self) -> None:
        """End the connection after an answer that was sent before the body of the request was read.

        This first reads and discards the body. Otherwise the system would reset the connection, and the sender might
        lose an answer that it has not read yet.
        """
        self.close_connection = True
        self._reader.left = STATE_MAX_BYTES
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(HEAD_MAX_BYTES):
                pass

    def _answer_error(self, code: int, text: str) -> None:
        self._answer(code, json.dumps({"error": text}).encode())

    def _answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: every member sends several requests a second."""


class PeerServer(ThreadingHTTPServer):
    """HTTP server of one rank, in a thread: serves pages, and on rank 0 also receives states and stores values."""

    daemon_threads = True
    request_queue_size = 1024  # all members connect at the same time

    def __init__(self, network: PodNetwork, port: int, pages: Mapping[str, Page]) -> None:
        """Listen on `port`, and serve `pages` (path → page) from a thread until `close`.

        Raises:
            GangError: the port is in use, or cannot be used.
        """
        self.pages = pages
        self._strangers: dict[socket.socket, None] = {}
        """Open connections whose sender has not been authenticated, the oldest first."""
        self.membership: Membership | None = None
        """Handles POST /state; set on rank 0 only."""
        self.check_path = ""
        """The result of `build_check_path`; empty before another rank may measure its network to this pod."""
        self.trainer_store: TrainerStore | None = None
        """Handles requests below /trainers/; set on rank 0 only."""
        super().__init__((network.bind_host, port), PeerRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = network.listen(port)
        threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a new connection in a thread.

        If too many open connections are not authenticated, close the oldest one of them.
        """
        self._strangers[request] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers.copy()))
            self._strangers.pop(oldest, None)
            with contextlib.suppress(OSError):  # it has just ended
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def trust(self, request: socket.socket) -> None:
        """Record that the sender of this connection has been authenticated."""
        self._strangers.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.trust(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing about an error in the handling of a request; mostly a client has disconnected."""

    def close(self) -> None:
        """Stop serving and close the port."""
        self.shutdown()
        self.server_close()
