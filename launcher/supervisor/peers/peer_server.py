"""HTTP server that every launcher runs on `peerPort`.

every rank   GET /healthz   for the kubelet: 200 while the launcher's main thread runs
             GET /metrics   for Prometheus (rank 0 only, else 404)
rank 0       GET /status    the content of status.json, without access to the storage
             POST /state    a rank sends its state; the answer is the coordinator's newest order
             (`Membership`)
             /trainers/…    GET, PUT, DELETE: the trainers rendezvous through gloo; POST: a trainer asks whether
             to save a checkpoint (`TrainerStore`)

The credential of POST /state, and the secret in the paths below /trainers/, are derived from the token in run.lock
(docs/adr/0004-the-gang-restarts-in-place.md). Other pods may reach this port (networkPolicy.metricsFrom).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from launcher.supervisor.peers import trainer_store
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.trainer_store import TrainerStore

STATE_MAX_BYTES = 1 << 20
"""Longest state of a rank. It contains training.extraArgs: an environment variable of up to 128 KiB."""

Page = Callable[[], tuple[int, str, bytes]]
"""Returns (HTTP status, content type, body)."""
StateHandler = Callable[[str, bytes], tuple[int, bytes]]
"""Takes (credential, body) of a state and returns (HTTP status, JSON body)."""


class PeerRequestHandler(BaseHTTPRequestHandler):
    """Handles one connection, which members keep open because they send several states a second."""

    protocol_version = "HTTP/1.1"
    server: PeerServer
    timeout = 60.0
    # Answers are small: waiting for more data to send with them (Nagle) would cost 40 ms each.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer with the page of the path or, for a trainer, with the value stored there; with 404 if none exists."""
        store = self._trainer_store()
        if store is not None:
            value = store.read(self.path)
            self._answer(404 if value is None else 200, value or b"")
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
            self.close_connection = True  # the body was not read
            self._answer_error(
                403, "only trainers of the present attempt can store values, and only on rank 0"
            )
        elif (value := self._read_body(trainer_store.MAX_BYTES)) is not None:
            store.write(self.path, value)
            self._answer(200, b"")

    def do_DELETE(self) -> None:
        """Confirm that a trainer no longer needs a value, but keep it, because other trainers may still read it."""
        self._answer(403 if self._trainer_store() is None else 200, b"")

    def do_POST(self) -> None:
        """Answer a rank's launcher or a trainer.

        POST /state has the state of a rank: pass it to the coordinator, and send the order that it returns. With
        a path of this attempt's trainers, a trainer asks whether to save a checkpoint now; the body is the step
        at which it proposes to ask the next time.
        """
        body = self._read_body(STATE_MAX_BYTES)
        if body is None:
            return
        store = self._trainer_store()
        if store is not None and body.isdigit():
            self._answer(200, store.decide(self.path, int(body)))
            return
        handle_state = self.server.handle_state
        if self.path != "/state" or handle_state is None:
            self._answer_error(
                404,
                "this launcher accepts POST only as rank 0, for /state and for paths of the present attempt's trainers",
            )
            return
        credential = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self._answer(*handle_state(credential, body))

    def _trainer_store(self) -> TrainerStore | None:
        """Return rank 0's key-value store for trainers if a trainer of the present attempt sent this request.

        Its path then has the secret of the attempt. In all other cases, and on other ranks, return None.
        """
        store = self.server.trainer_store
        return store if store is not None and store.accepts(self.path) else None

    def _read_body(self, limit: int) -> bytes | None:
        """Return the request's body; None, after answering 413, if its length is missing or above `limit`."""
        size = self.headers.get("Content-Length") or ""
        if size.isascii() and size.isdigit() and int(size) <= limit:
            return self.rfile.read(int(size))
        self.close_connection = True
        self._answer_error(413, f"the body must have a length of at most {limit} bytes")
        return None

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
    """HTTP server of one rank in a thread: serves its pages; on rank 0 also receives states and stores values."""

    daemon_threads = True
    request_queue_size = 1024  # all members connect at the same time

    def __init__(self, network: PodNetwork, port: int, pages: Mapping[str, Page]) -> None:
        """Listen on `port` and serve `pages` (path → page).

        Raises:
            GangError: the port is in use.
        """
        self.pages = pages
        self.handle_state: StateHandler | None = None
        """Handles POST /state; set on rank 0 only."""
        self.trainer_store: TrainerStore | None = None
        """Handles requests below /trainers/; set on rank 0 only."""
        super().__init__((network.bind_host, port), PeerRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = network.listen(port)
        threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing when a client disconnects in the middle of a request."""

    def close(self) -> None:
        """Stop serving and close the port."""
        self.shutdown()
        self.server_close()
