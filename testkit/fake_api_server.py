"""Run a Kubernetes API server on loopback (HTTPS) that lists and watches pods and accepts Events."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from launcher.io.kubernetes_api import PodApi
from local.cluster.certificates import certificate_builder
from testkit.http_servers import serving


def make_pod(
    name: str, ip: str | None, phase: str = "Running", deleting: bool = False, made: str = "", **status: Any
) -> dict[str, Any]:
    """Return a Pod object as the API server lists it; a pod without `ip` has no address yet.

    `deleting` adds a deletion timestamp, `made` is the creation timestamp (any text that sorts by age), and `status`
    has further fields of its status.
    """
    meta = {"name": name, "uid": f"uid-{name}", "creationTimestamp": made}
    if deleting:
        meta["deletionTimestamp"] = "now"
    return {"metadata": meta, "status": {"phase": phase, "podIP": ip, **status}}


class FakeApiServer:
    """An API server with the pods of one namespace.

    Set by tests, to decide what the server answers:
        pods: Pod objects that a list request returns.
        changes: events that a watch sends.
        answers: HTTP status of each of the next responses; afterwards 200.
        hangs: if set, a watch blocks until the server is closed, at most 30 s.

    Read by tests, to see the requests so far:
        asked: set when a watch was answered.
        queries: path and query parameters of each request.
        tokens: header `Authorization` of each request.
        posted: Events that were posted.
    """

    def __init__(self, folder: Path) -> None:
        self.pods: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.hangs = threading.Event()
        self.asked = threading.Event()
        self.queries: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.posted: list[dict[str, Any]] = []
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        (self.account / "token").write_text("token-1\n")
        self.closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def send_status(self) -> dict[str, str]:
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                server.queries.append({"path": url.path, **query})
                server.tokens.append(self.headers["Authorization"])
                status = server.answers.pop(0) if server.answers else 200
                self.send_response(status)
                self.end_headers()
                if status != 200:
                    self.wfile.write(b'{"message": "pods is forbidden"}')
                    return {"failed": ""}
                return query

            def do_GET(self) -> None:
                query = self.send_status()
                if "watch" in query:
                    for event in server.changes:
                        self.wfile.write(json.dumps(event).encode() + b"\n")
                    self.wfile.flush()
                    server.asked.set()
                    if server.hangs.is_set():
                        server.closing.wait(30)
                elif "failed" not in query:
                    answer = {"metadata": {"resourceVersion": "7"}, "items": server.pods}
                    self.wfile.write(json.dumps(answer).encode())

            def do_POST(self) -> None:
                if "failed" not in self.send_status():
                    body = self.rfile.read(int(self.headers["Content-Length"]))
                    server.posted.append(json.loads(body))
                    self.wfile.write(body)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(create_certificate(folder, self.account / "ca.crt"))
        self._stack = contextlib.ExitStack()
        self.http = self._stack.enter_context(serving(Handler, context))

    def api(self) -> PodApi:
        """Return a client of this server."""
        port = str(self.http.server_address[1])
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": port}
        return PodApi(env, "paddle", self.account)

    def close(self) -> None:
        """Stop the server."""
        self.closing.set()
        self._stack.close()


def create_certificate(folder: Path, ca: Path) -> Path:
    """Return a file with key and self-signed certificate for 127.0.0.1; write only the certificate to `ca`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test api")])
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    builder = certificate_builder(name, name, key).add_extension(addresses, critical=False)
    cert = builder.add_extension(authority, critical=True).sign(key, hashes.SHA256())
    pem = cert.public_bytes(serialization.Encoding.PEM)
    ca.write_bytes(pem)
    both = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.write_bytes(private + pem)
    return both
