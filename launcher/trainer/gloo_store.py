"""The key-value store over HTTP by which gloo connects the trainers; rank 0's first pserver starts it.

Paddle's own store is a child of pserver 0 that starts after the import of Paddle, checks only every 5 s
whether it may stop, keeps pserver 0 from serving meanwhile, and outlives it. This store needs no Paddle: it
listens a tenth of a second after the first pserver started, and exits with it.

The store also decides at which batch the trainers save a checkpoint that a user requested: the first trainer
that asks at a batch gets the decision, and all others get the same one when they reach that batch.
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
POLL_SECONDS = 0.5  # between two reads of the request file, and between two attempts of a question
ANSWER_SECONDS = 5.0  # timeout of one attempt
ASK_SECONDS = 600.0  # deadline: without the decision a trainer cannot know where the others save


class GlooHandler(BaseHTTPRequestHandler):
    """Answers GET, PUT and DELETE of `/scope/key` by gloo (HTTP/1.0), and POST of `/ask/…` by trainers.

    A POST asks whether to save a checkpoint that a user requested; see `ask_checkpoint_decision`.
    """

    server: GlooStore

    def do_GET(self) -> None:
        """Answer with the value of the key in the path; with 404 before a PUT has stored one."""
        with self.server.lock:
            value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        """Store the body as the value of the key in the path."""
        value = self._body()
        if value is not None:
            with self.server.lock:
                self.server.values[self.path] = value
            self._answer(200, b"")

    def do_POST(self) -> None:
        """Answer a trainer that asks whether to save a checkpoint now; see `ask_checkpoint_decision`.

        The path contains `key`. The body is the number of the step at which this trainer proposes that all
        trainers ask the next time.
        """
        proposed = self._body()
        if proposed is not None:
            self._answer(200, self.server.decide(self.path, int(proposed)))

    def _body(self) -> bytes | None:
        """Return the request's body; None, after answering 413, if the body is too large."""
        length = int(self.headers.get("Content-Length", 0))
        if 0 <= length <= MAX_BYTES:
            return self.rfile.read(length)
        self._answer(413, b"")
        return None

    def do_DELETE(self) -> None:
        """Accept gloo's message that it no longer needs a key; the value stays."""
        self._answer(200, b"")

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: gloo sends ten requests a second."""


class GlooStore(ThreadingHTTPServer):
    """HTTP server that holds gloo's keys and values, and decides about requested checkpoints.

    It listens on one address, not on all, so it cannot conflict with another pod of the same node.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024  # all trainers connect at once

    def __init__(self, host: str, port: int, request: Path) -> None:
        """Listen on host:port.

        Args:
            host: IPv4 address of rank 0.
            port: port to listen on.
            request: file on the shared storage that a user creates to request a checkpoint.
        """
        super().__init__((host, port), GlooHandler)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self._request = request
        self._requested = self._granted = ""
        """Content of the request file, and of the newest request that was granted."""
        threading.Thread(target=self._watch_request, daemon=True).start()

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

    def decide(self, key: str, proposed: int) -> bytes:
        """Decide whether the trainers save a requested checkpoint now; all get the same answer to one key.

        A request is granted once, since its file may still exist when trainers that have saved ask again.

        Args:
            key: identifies the attempt and the step (number of trained batches) at which the trainers ask.
            proposed: the step at which to ask the next time; the first question with this key decides.

        Returns:
            JSON [whether to save now, the step at which all trainers ask the next time].
        """
        with self.lock:
            if key not in self.values:
                request = self._requested
                save = request not in ("", self._granted)
                self._granted = request if save else self._granted
                self.values[key] = json.dumps([save, proposed]).encode()
            return self.values[key]


def ask_checkpoint_decision(host: str, port: int, key: str, proposed: int) -> tuple[bool, int]:
    """Ask the store at host:port whether to save a checkpoint that a user may have requested.

    Args:
        host: address of the store.
        port: port of the store.
        key: identifies the attempt and the present step (number of trained batches).
        proposed: the step at which this trainer proposes that all trainers ask the next time.

    Returns:
        (whether to save now, the step at which all trainers ask the next time): the same on every rank.

    Raises:
        DeadlineError: no answer within ASK_SECONDS.
    """
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
                    f"gloo's store on rank 0 ({host}:{port}) did not answer within "
                    f"{ASK_SECONDS:.0f} s whether to "
                    f"save a checkpoint: {error or type(error).__name__}. Fix: see server.log of rank 0, and "
                    "whether the network lets the ranks reach this port"
                ) from error
            time.sleep(POLL_SECONDS)
        else:
            return bool(save), int(following)
        finally:
            connection.close()


def start_store(host: str, port: int, request: Path) -> subprocess.Popen[bytes]:
    """Start the store as a child process that exits when this process exits; `request` as in `GlooStore`.

    A thread would have to wait while Paddle's calls hold the interpreter lock.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "launcher.trainer.gloo_store",
            host,
            str(port),
            str(os.getpid()),
            str(request),
        ],
        stdin=subprocess.DEVNULL,
    )


def main(host: str, port: int, parent: int, request: Path) -> int:
    """Serve the store until the process with the id `parent` exits. Return the exit code.

    If the store cannot listen on the port, print the error, and stop the parent process.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent exited before the line above
        return 1
    try:
        store = GlooStore(socket.gethostbyname(host), port, request)
    except OSError as error:
        sys.stderr.write(
            f"cannot listen on {host}:{port} for gloo's store (the first of portsNumSparse's ports): "
            f"{error.strerror or error}. Fix: set the value `port` to a range of free ports.\n"
        )
        sys.stderr.flush()
        os.kill(parent, signal.SIGTERM)  # without the store all trainers would wait until their deadline
        return 1
    store.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
