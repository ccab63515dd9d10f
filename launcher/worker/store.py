"""The trainers' meeting place: a key-value server by http, by which gloo finds its peers.

Paddle's own one is a child of pserver 0 that starts after the import of Paddle, looks every 5 s whether it
may stop, keeps pserver 0 from serving meanwhile and outlives it. This one needs no Paddle: it listens a tenth
of a second after the first pserver began, and ends with it.

It also decides where the trainers save a checkpoint that somebody asked for: the first trainer that asks at a
batch gets the answer, and all others get the same one when they are there.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from launcher.errors import DeadlineError

PR_SET_PDEATHSIG = 1
MAX_BYTES = 1 << 20  # gloo's addresses are a few hundred bytes
LOOK_SECONDS = 0.5  # between two looks at the request file
ANSWER_SECONDS = 5.0  # for one question; it is asked again
ASK_SECONDS = 600.0  # for an answer: without it a trainer cannot know where the others save


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
        value = self._body()
        if value is not None:
            with self.server.lock:
                self.server.values[self.path] = value
            self._answer(200, b"")

    def do_POST(self) -> None:
        """Answers a question of `ask`; the body is the step to ask at next."""
        proposed = self._body()
        if proposed is not None:
            self._answer(200, self.server.decide(self.path, int(proposed)))

    def _body(self) -> bytes | None:
        """None, and 413, for one that is too large."""
        length = int(self.headers.get("Content-Length", 0))
        if 0 <= length <= MAX_BYTES:
            return self.rfile.read(length)
        self._answer(413, b"")
        return None

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

    def __init__(self, host: str, port: int, request: Path) -> None:
        """`request`: the file that asks for a checkpoint, on the shared storage."""
        super().__init__((host, port), Handler)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self._request = request
        self._asked = self._granted = ""
        """What stands in the request file, and the one that was answered last."""
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        """Follow the request file apart from the trainers' questions: a storage that hangs delays none."""
        while True:
            try:
                self._asked = self._request.read_text("utf-8")
            except FileNotFoundError:
                self._asked = ""
            except (OSError, ValueError):
                pass  # the next look may do better
            time.sleep(LOOK_SECONDS)

    def decide(self, key: str, proposed: int) -> bytes:
        """Return [whether to save, the step to ask at next] as JSON: for each key what its first asker got.

        A request is granted once: the file may still be there when trainers that saved ask again.
        """
        with self.lock:
            if key not in self.values:
                asked = self._asked
                save = asked not in ("", self._granted)
                self._granted = asked if save else self._granted
                self.values[key] = json.dumps([save, proposed]).encode()
            return self.values[key]


def ask(host: str, port: int, key: str, proposed: int) -> tuple[bool, int]:
    """Return the decision of `Store.decide`. Raises `DeadlineError` after ASK_SECONDS without one."""
    deadline = time.monotonic() + ASK_SECONDS
    while True:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", key, str(proposed))
            answer = connection.getresponse()
            save, following = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the trainers' meeting place on rank 0 ({host}:{port}) did not say within "
                    f"{ASK_SECONDS:.0f} s whether to save a checkpoint: {error or type(error).__name__}"
                ) from error
            time.sleep(LOOK_SECONDS)
        else:
            return bool(save), int(following)
        finally:
            connection.close()


def start(host: str, port: int, request: Path) -> subprocess.Popen[bytes]:
    """Starts the store as a child that ends with this process: a thread would wait for Paddle's calls."""
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.worker.store", host, str(port), str(os.getpid()), str(request)],
        stdin=subprocess.DEVNULL,
    )


def main(host: str, port: int, parent: int, request: Path) -> int:
    """Serves until the parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        return 1
    try:
        store = Store(socket.gethostbyname(host), port, request)
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
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
