"""The trainers' meeting place: a key-value server by http, by which gloo finds its peers.

Paddle's own one is a child of pserver 0 that starts after the import of Paddle, looks every 5 s whether it
may stop, keeps pserver 0 from serving meanwhile and outlives it. This one needs no Paddle: it listens a tenth
of a second after the first pserver began, and ends with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PR_SET_PDEATHSIG = 1
MAX_BYTES = 1 << 20  # gloo's addresses are a few hundred bytes


class Handler(BaseHTTPRequestHandler):
    """GET, PUT and DELETE of `/scope/key`, as gloo's http store speaks it (HTTP/1.0, one request each)."""

    server: Store

    def do_GET(self) -> None:
        """The value, or 404 while nobody has put it."""
        with self.server.lock:
            value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        """Keeps the body."""
        length = int(self.headers.get("Content-Length", 0))
        if not 0 <= length <= MAX_BYTES:
            self._answer(413, b"")
            return
        value = self.rfile.read(length)
        with self.server.lock:
            self.server.values[self.path] = value
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        """Gloo's way to say that it needs a key no longer; nothing depends on it here."""
        self._answer(200, b"")

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Says nothing: gloo asks ten times a second."""


class Store(ThreadingHTTPServer):
    """Bound to one address of this host, and not to all, so that no other pod of the node is in the way."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024  # all trainers come at once

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), Handler)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()


def start(host: str, port: int) -> subprocess.Popen[bytes]:
    """Starts the store as a child that ends with this process: a thread would wait for Paddle's calls."""
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.worker.store", host, str(port), str(os.getpid())],
        stdin=subprocess.DEVNULL,
    )


def main(host: str, port: int, parent: int) -> int:
    """Serves until the parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        return 1
    try:
        store = Store(socket.gethostbyname(host), port)
    except OSError as error:
        sys.stderr.write(
            f"cannot listen on {host}:{port} (the first of portsNumSparse's ports), where the trainers meet: "
            f"{error.strerror or error}. Set another port, or end the process that has it.\n"
        )
        sys.stderr.flush()
        os.kill(parent, signal.SIGTERM)  # without it all trainers would wait for nothing
        return 1
    store.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
