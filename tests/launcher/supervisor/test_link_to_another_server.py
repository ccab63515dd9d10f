"""Tests of a member whose address of rank 0 leads to another server than rank 0's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.coordinator_link import CoordinatorLink, Rank0
from launcher.supervisor.peers.messages import MemberState, Order
from launcher.supervisor.timings import Timings
from testkit.waiting import until

PORT = 7171
ORDER = json.dumps({"version": 1, "order": Order(0, "wait").to_json()}).encode()
Serve = Callable[[str, int, bytes], list[str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server with one answer, and returns the list of its requests' credentials."""
    servers = []

    def start(host: str, code: int, body: bytes) -> list[str]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                asked.append(self.headers["Authorization"])
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((host, PORT), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Locator:
    """Finds rank 0 at addresses in turn, as if run.lock changed."""

    def __init__(self, *addresses: str) -> None:
        self._addresses, self._lookups = addresses, 0

    def find(self) -> Rank0:
        self._lookups += 1
        return Rank0(self._addresses[(self._lookups - 1) % len(self._addresses)], "right")


@pytest.fixture
def start_link() -> Iterator[Callable[..., CoordinatorLink]]:
    """Return a function that starts a link, which looks for rank 0 at the given addresses in turn."""
    links = []

    def start(*addresses: str) -> CoordinatorLink:
        link = CoordinatorLink(
            PodNetwork(),
            PORT,
            Timings(poll=0.02),
            cast(Any, Locator(*addresses)),
            read_state=lambda: MemberState(1, "pod-a", "idle"),
            wake=lambda: None,
        )
        links.append(link)
        link.start()
        return link

    yield start
    for link in links:
        link.close(0.1)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (401, b'{"error": "rank 0 of another run"}'),
        (404, b'{"error": "a rank other than 0"}'),
        (405, b'"not our server"'),
        (200, b"{}"),
    ],
)
def test_a_member_that_reached_another_server_tries_the_next_address(
    serve: Serve, start_link: Callable[..., CoordinatorLink], code: int, body: bytes
) -> None:
    """The address of a lost pod may belong to another pod before its name resolves to that of the new one."""
    other, right = f"127.79.0.{code % 250}", f"127.80.0.{code % 250}"
    asked = serve(other, code, body)
    serve(right, 200, ORDER)
    link = start_link(other, right)
    until(lambda: link.order == Order(0, "wait"))
    assert asked == ["Bearer right"]


def test_an_answer_that_is_no_order_is_reported_and_asked_for_again(
    serve: Serve, start_link: Callable[..., CoordinatorLink]
) -> None:
    order = {**Order(0, "wait").to_json(), "field": "of another version"}
    asked = serve("127.79.1.1", 200, json.dumps({"version": 1, "order": order}).encode())
    link = start_link("127.79.1.1")
    until(lambda: len(asked) > 2)
    assert "unexpected keyword argument 'field'" in link.problem
    assert "Fix: use one image for all pods of the run" in link.problem


def test_a_rejection_is_forgotten_while_rank_0_cannot_be_reached(
    serve: Serve, start_link: Callable[..., CoordinatorLink]
) -> None:
    """Regression: a pod that was rejected once exited as if rank 0 had rejected it for a minute."""
    serve("127.79.2.1", 409, b'{"error": "another pod is alive", "replaced": false}')
    link = start_link("127.79.2.1", "127.79.2.2")
    until(lambda: link.rejection is not None)
    assert link._connection is not None
    link._connection._http.sock.close()
    until(lambda: link.rejection is None and "127.79.2.2" in link.problem)
