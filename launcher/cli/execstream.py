"""Bytes through the exec websocket, in constant memory.

The kubernetes client's own reading (`WSClient.update`) takes in every frame that is available before it
returns, so a sender that is faster than its receiver fills the memory. Here the websocket is made by that
client (with its authentication, TLS and proxy rules), and frames are read one at a time.
"""

from __future__ import annotations

import io
import json
import threading
from typing import IO, TYPE_CHECKING, Any

from launcher.cli.problems import CliError, api_problem, handshake

if TYPE_CHECKING:
    from launcher.cli.cluster import Cluster

_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = b"\0", 1, 2, 3, 255
_SEND_BYTES = 32 * 1024
_STDERR_KEPT = 8 * 1024


class ExecStream(io.RawIOBase):
    """The stdout of a command in a container, readable as it comes. `result()` tells how the command ended.

    `stdin` is sent by a thread while stdout is read. `idle` is how many seconds may pass without a byte.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        container: str,
        argv: list[str],
        *,
        stdin: IO[bytes] | None,
        idle: float,
    ) -> None:
        from kubernetes.client import CoreV1Api
        from kubernetes.client.rest import ApiException
        from kubernetes.stream import stream

        self._what = f"run '{' '.join(argv[:5])}' in pod {pod}"
        self._idle = idle
        self._rest = memoryview(b"")
        self._stderr = b""
        self._status: dict[str, Any] | None = None
        self._ended = False
        self._failure: BaseException | None = None
        try:
            client = stream(
                CoreV1Api(cluster.api).connect_get_namespaced_pod_exec,
                pod,
                cluster.namespace,
                container=container,
                command=argv,
                stdin=stdin is not None,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except ApiException as error:
            refused = handshake(str(error.reason))
            if refused:
                raise api_problem(*refused, self._what, cluster.name) from error
            raise CliError(f"cannot {self._what}: {error.reason}") from error
        self._socket = client.sock
        self._socket.settimeout(idle)
        self._sender: threading.Thread | None = None
        if stdin is not None:
            self._sender = threading.Thread(target=self._send, args=(stdin,), daemon=True)
            self._sender.start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and not self._ended:
            self._frame()
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _frame(self) -> None:
        from websocket import ABNF, WebSocketConnectionClosedException, WebSocketTimeoutException

        try:
            opcode, frame = self._socket.recv_data_frame(True)
        except WebSocketTimeoutException as error:
            raise CliError(f"gave up: no byte for {self._idle:.0f} s while trying to {self._what}") from error
        except (WebSocketConnectionClosedException, OSError):
            self._ended = True
            return
        if opcode == ABNF.OPCODE_CLOSE:
            self._ended = True
        elif opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data:
            channel, payload = frame.data[0], frame.data[1:]
            if channel == _STDOUT:
                self._rest = memoryview(payload)
            elif channel == _STDERR:
                self._stderr = (self._stderr + payload)[-_STDERR_KEPT:]
            elif channel == _ERROR:
                self._status = json.loads(payload)

    def _send(self, source: IO[bytes]) -> None:
        try:
            while block := source.read(_SEND_BYTES):
                self._socket.send_binary(_STDIN + block)
        except BaseException as error:  # told by result(), in the thread that can tell a person
            self._failure = error
            self._socket.shutdown()

    def result(self) -> None:
        """Read to the end of the stream; CliError with the command's own sentence unless it ended well."""
        while not self._ended:
            self._frame()
            self._rest = memoryview(b"")
        sent_all = self._sender is None or not self._sender.is_alive()
        self.close()
        said = self._stderr.decode(errors="replace").strip()
        if (self._status or {}).get("status") == "Success" and not self._failure and sent_all:
            return
        if said:
            raise CliError(said.splitlines()[-1] if "Traceback" in said else said)
        if isinstance(self._failure, CliError):
            raise self._failure
        told = (self._status or {}).get("message") or self._failure or "the connection broke off"
        raise CliError(f"cannot {self._what}: {told}")

    def close(self) -> None:
        if not self.closed and hasattr(self, "_socket"):
            self._socket.shutdown()
        super().close()
