"""A TCP relay that can be closed, to simulate the endpoint of a cluster that no longer exists."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Forward connections on `listen` to `host:port` until `cut` is called; then refuse them."""

    def __init__(self, host: str, port: int, listen: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._server = socket.create_server((listen, 0))
        self._open: list[socket.socket] = []
        self.address = f"{listen}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target, timeout=10)
                far.settimeout(None)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                sink.sendall(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Refuse new connections and close the open ones."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
