"""Commands in a container, through the exec websocket in constant memory.

The Kubernetes client's own reader (`WSClient.update`) reads every available frame before it returns, so a
sender that is faster than its receiver fills the memory. Here that client opens the websocket (with its
authentication, TLS and proxy rules), and `ExecStream` reads one frame at a time.
"""

from __future__ import annotations

import io
import json
import threading
import time
from typing import IO, Any

from launcher.cli.errors import CliError, api_error, parse_handshake_error, storage_failure

_STDIN, _STDOUT, _STDERR, _ERROR = b"\0", 1, 2, 3
_SEND_BYTES = 32 * 1024
_STDERR_KEPT = 8 * 1024


def token_header(configuration: Any) -> dict[str, str]:
    """Return the HTTP header with the user's token, which is renewed if it has expired; empty without a token."""
    token = configuration.auth_settings().get("BearerToken")
    return {token["key"]: token["value"]} if token else {}


class ExecStream(io.RawIOBase):
    """The stdout of a command in a container, readable while the command runs.

    `result()` raises an error if the command failed.
    """

    def __init__(
        self,
        configuration: Any,
        cluster: str,
        url: str,
        place: tuple[str, str],
        argv: list[str],
        *,
        stdin: IO[bytes] | None,
        idle_seconds: float,
    ) -> None:
        """Start the command `argv`. Raises CliError if the API server rejects the command.

        `configuration` is that of the Kubernetes client, `cluster` the cluster's name in messages, `url` the address
        of the pod's `exec`, and `place` is (pod, container). A thread sends `stdin` while stdout is read. A read fails
        after `idle_seconds` in which no byte was received or sent.
        """
        from kubernetes.client.rest import ApiException
        from kubernetes.stream.ws_client import websocket_call

        pod, container = place
        self._action = f"run '{' '.join(argv[:5])}' in pod {pod}"
        self._idle_seconds = idle_seconds
        self._sent_at = time.monotonic()
        self._rest = memoryview(b"")
        self._stderr = b""
        self._status: dict[str, Any] | None = None
        self._ended = False
        self._failure: BaseException | None = None
        try:
            streams = {"stdin": stdin is not None, "stdout": True, "stderr": True, "tty": False}
            client = websocket_call(
                configuration,
                "GET",
                url,
                query_params=[
                    ("container", container),
                    ("command", argv),
                    *((name, str(wanted).lower()) for name, wanted in streams.items()),
                ],
                headers=token_header(configuration),
                binary=True,
                _preload_content=False,
            )
        except ApiException as error:
            rejected = parse_handshake_error(str(error.reason))
            if rejected:
                raise api_error(*rejected, self._action, cluster) from error
            raise CliError(
                f"cannot {self._action}: {error.reason}",
                "check that the pod runs, then run your command again",
            ) from error
        self._socket = client.sock
        self._socket.settimeout(idle_seconds)
        self._sender: threading.Thread | None = None
        if stdin is not None:
            self._sender = threading.Thread(target=self._send, args=(stdin,), daemon=True)
            self._sender.start()

    def readable(self) -> bool:
        """Return True; `io.BufferedReader` calls this before it accepts the stream."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of stdout into `buffer`; return their number, 0 at the end."""
        while not self._rest and not self._ended:
            self._read_frame()
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _read_frame(self) -> None:
        from websocket import ABNF, WebSocketConnectionClosedException, WebSocketTimeoutException

        try:
            opcode, frame = self._socket.recv_data_frame(True)
        except WebSocketTimeoutException as error:
            if time.monotonic() - self._sent_at < self._idle_seconds:
                return  # the command answers when it has received all of stdin
            raise CliError(
                f"cannot {self._action}: no byte was received or sent for {self._idle_seconds:.0f} s",
                "check that the pod and its node still run, then run your command again",
            ) from error
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
                self._sent_at = time.monotonic()
        except BaseException as error:  # result() raises it in the thread that can report it to the user
            self._failure = error
            self._socket.shutdown()

    def result(self) -> None:
        """Read stdout to its end. Raises CliError with the command's stderr unless the command succeeded."""
        while not self._ended:
            self._read_frame()
            self._rest = memoryview(b"")
        sent_all = self._sender is None or not self._sender.is_alive()
        self.close()
        stderr = self._stderr.decode(errors="replace").strip()
        if (self._status or {}).get("status") == "Success" and not self._failure and sent_all:
            return
        if stderr:
            raise storage_failure(stderr.splitlines()[-1] if "Traceback" in stderr else stderr)
        if isinstance(self._failure, CliError):
            raise self._failure
        cause = (self._status or {}).get("message") or self._failure or "the connection was closed"
        raise CliError(f"cannot {self._action}: {cause}", "run your command again")

    def close(self) -> None:
        """Close the websocket; the command is killed if it still runs."""
        if not self.closed and hasattr(self, "_socket"):
            self._socket.shutdown()
        super().close()
