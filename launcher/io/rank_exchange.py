"""Exchange of small values between all processes of a user's script, without its library's communication.

If the launcher has started the script, the values are in the store of rank 0's launcher
(launcher/supervisor/peers/peer_server.py). Files would be too slow: clients of network file systems cache folders, so a
file that another node wrote may stay invisible for a minute. Without the launcher the values are files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from pathlib import Path
from typing import Any

from launcher.errors import DeadlineError
from launcher.io import files

RANKS_SECONDS = 1800.0
"""Longest wait for the other processes, in seconds: another process may still write its part of a large checkpoint."""
REQUEST_SECONDS = 10.0
"""Timeout of one request to the store."""
MAX_POLL_SECONDS = 0.2


def ask_launcher(
    method: str, address: str, content: str | None = None, *, seconds: float
) -> tuple[int, bytes]:
    """Send an HTTP request to the launcher of rank 0, and return (status, body) of its answer.

    `address` is `host:port/path`, and `content` is the body of the request.

    Raises:
        OSError, http.client.HTTPException: there was no answer within `seconds`, or the answer is malformed.
    """
    place, _, path = address.partition("/")
    with contextlib.closing(http.client.HTTPConnection(place, timeout=seconds)) as connection:
        connection.request(method, f"/{path}", content)
        answer = connection.getresponse()
        return answer.status, answer.read()


class RankExchange:
    """Exchanges values between this process and the other processes of a script.

    All processes must call `exchange` equally often, in the same order.
    """

    def __init__(self, rank: int, ranks: int, store: str, folder: Path) -> None:
        """Create the object for process `rank`; nothing is sent yet.

        Args:
            rank: number of this process, from 0.
            ranks: number of all processes.
            store: `host:port/path` below which rank 0's launcher stores values; "" without the launcher.
            folder: folder for the values without the launcher. The constructor of process 0 removes what an earlier
                run left in this folder, so it must return before any process calls `exchange`.
        """
        self.rank, self.ranks = rank, ranks
        self._store, self._folder = store, folder
        self._round = 0
        if rank == 0 and not store:
            files.remove_path(folder)

    def exchange(self, value: Any, what: str) -> list[Any]:
        """Wait until all processes have called this, and return their values in the order of the process numbers.

        Args:
            value: this process's value, which must be convertible to JSON.
            what: what the processes do, for the message of an error.

        Raises:
            DeadlineError: not all processes have called this within RANKS_SECONDS.
            ValueError: the values are larger than the store accepts (1 MiB in all).
        """
        if self.ranks == 1:
            return [value]
        self._round += 1
        deadline = time.monotonic() + RANKS_SECONDS
        self._write(str(self.rank), value, what, deadline)
        if self.rank:
            return list(self._wait("all", what, deadline))
        values = [self._wait(str(rank), what, deadline) for rank in range(self.ranks)]
        # No process writes a value of the next round before it reads these values, so no value is replaced unread.
        self._write("all", values, what, deadline)
        return values

    def _write(self, key: str, value: Any, what: str, deadline: float) -> None:
        content = json.dumps([self._round, value])
        if not self._store:
            self._folder.mkdir(parents=True, exist_ok=True)
            files.write_atomically(self._folder / key, content)
            return
        while (status := self._request("PUT", key, content)[0]) != 200:
            if status == 413:
                raise ValueError(
                    f"{what}: {len(content):,} bytes are too much to exchange. Fix: save fewer files"
                )
            self._check(deadline, what, "rank 0's launcher did not accept a value")
            time.sleep(MAX_POLL_SECONDS)

    def _wait(self, key: str, what: str, deadline: float) -> Any:
        """Wait until `key` has a value of the current round, and return this value."""
        pause = 0.005
        while True:
            content = self._request("GET", key)[1] if self._store else files.read_bytes(self._folder / key)
            if content:
                number, value = json.loads(content)
                if number == self._round:
                    return value
            self._check(deadline, what, "process 0" if key == "all" else f"process {key}")
            time.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)

    def _request(self, method: str, key: str, content: str | None = None) -> tuple[int, bytes]:
        """Return (HTTP status, body) of the store's answer.

        The body is empty if the status is not 200. The status is 0 if the store did not answer.
        """
        with contextlib.suppress(OSError, http.client.HTTPException):
            address = f"{self._store}ranks/{key}"
            status, body = ask_launcher(method, address, content, seconds=REQUEST_SECONDS)
            return status, body if status == 200 else b""
        return 0, b""

    def _check(self, deadline: float, what: str, missing: str) -> None:
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"{what}: process {self.rank} waited {RANKS_SECONDS:.0f} s for {missing}. Fix: let all processes call "
                "this in the same order, and see the logs of the others: python -m launcher logs --rank 1"
            )
