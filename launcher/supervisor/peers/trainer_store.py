"""Key-value store of rank 0's HTTP server, through which the trainers of one attempt find each other.

The library gloo connects the trainers of runtime fleet: each trainer stores its addresses under its rank, and
reads those of the others. gloo sends no header of ours, so the secret that authenticates a trainer is a part of
the path (`build_store_prefix`). The server forgets all values when the next attempt starts.

The store also answers the trainers' question whether to save a checkpoint at a batch, because a user requested one or
a pod received SIGTERM. All trainers get the same answer for one batch.

PaddlePaddle's own store is a child of pserver 0 that needs a port of its own, starts after the import of Paddle,
and keeps pserver 0 from serving until it exits.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from pathlib import Path

MAX_BYTES = 1 << 20  # of a value; gloo's addresses need some 136 bytes per rank
POLL_SECONDS = 0.5  # between two reads of the request file


def build_store_prefix(credential: str, attempt: int) -> str:
    """Return the beginning of the path of all requests that the trainers of one attempt send to the store.

    The path's secret is derived from the run's credential (`build_credential`) without revealing it, so a path in a
    log does not help to send a rank's state. Trainers of an earlier attempt know another path.
    """
    secret = hmac.new(credential.encode(), f"trainers of attempt {attempt}".encode(), hashlib.sha256)
    return f"/trainers/{attempt}/{secret.hexdigest()}"


class TrainerStore:
    """Stores the addresses of the present attempt's trainers, and decides when they save a requested checkpoint."""

    def __init__(self, request: Path) -> None:
        """Create the store, which rejects every request before `open`; a user creates the file `request`."""
        self._request = request
        self._prefix = ""
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._requested = self._granted = ""
        """Content of the request file, and of the newest request that was granted."""
        self._begin_by = float("-inf")
        """Monotonic time until which a checkpoint that the coordinator requested may be granted."""
        self._watcher = threading.Thread(target=self._watch_request, name="checkpoint request", daemon=True)

    def open(self, prefix: str) -> None:
        """Start an attempt: forget all values, and accept only requests whose path begins with `prefix`.

        A checkpoint request that the previous attempt granted may be granted again, since that attempt may have
        failed before it saved the checkpoint.
        """
        with self._lock:
            self._prefix, self._values, self._granted = prefix, {}, ""
            self._begin_by = float("-inf")
        if self._watcher.ident is None:
            self._watcher.start()

    def request_checkpoint(self, begin_by: float) -> None:
        """Grant one checkpoint of the present attempt to trainers that ask until the monotonic time `begin_by`."""
        with self._lock:
            self._begin_by = begin_by

    def accepts(self, path: str) -> bool:
        """Return whether `path` has the secret of the present attempt."""
        expected = self._prefix
        return bool(expected) and hmac.compare_digest(path[: len(expected)].encode(), expected.encode())

    def read(self, path: str) -> bytes | None:
        """Return the value of the key `path`; None before `write` has stored one."""
        with self._lock:
            return self._values.get(path)

    def write(self, path: str, value: bytes) -> None:
        """Store `value` under the key `path`, unless another attempt has started since `accepts`."""
        with self._lock:
            if path.startswith(self._prefix):
                self._values[path] = value

    def decide(self, path: str, proposed: int) -> bytes:
        """Decide whether the trainers save a requested checkpoint now; the first answer to a path stays.

        A request is granted once, since its file may still exist when trainers that have saved ask again.

        Args:
            path: contains the step (number of trained batches) at which the trainers ask.
            proposed: the step at which to ask the next time; the first question with this path decides.

        Returns:
            JSON [whether to save now, the step at which all trainers ask the next time].
        """
        with self._lock:
            if path not in self._values:
                request = self._requested
                save = request not in ("", self._granted) or time.monotonic() <= self._begin_by
                if save:
                    self._granted, self._begin_by = request, float("-inf")
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
