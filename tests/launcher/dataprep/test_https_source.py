"""Tests of http:// and https:// sources, with a real server that breaks connections and returns errors."""

from __future__ import annotations

import hashlib
import http.server
import io
import random
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.dataprep import data_job
from launcher.dataprep.byte_streams import BLOCK
from launcher.dataprep.parquet_rows import read_shard
from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DataError
from launcher.io.retry import Retry
from tests.launcher.dataprep.conftest import ALL, LINES, Pod, prepared_files, tarred, zipped

CONTENT = b"".join(b"%d a line that is long enough to be cut anywhere\n" % n for n in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CUT = 100_000
OTHER = CONTENT.replace(b"line", b"life")
SECRET = "signed/hidden.txt?sig=hidden"


@dataclass
class Plan:
    """Settings of the test server: it answers the n-th request as `answers[n]` says, and later requests completely."""

    content: bytes = CONTENT
    answers: list[str] = field(default_factory=list)
    ranges: bool = True
    if_range: bool = True
    """Whether the server obeys the header If-Range, as HTTP requires."""
    tag: str = '"v1"'
    location: str = ""
    later: tuple[int, dict[str, str], bytes] | None = None
    """Status, headers and body of all answers except the first."""
    seen: list[dict[str, str]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        plan = self.server.plan
        plan.seen.append(dict(self.headers))
        answer = plan.answers.pop(0) if plan.answers else "complete"
        if plan.later and len(plan.seen) > 1:
            self.send(*plan.later)
        elif answer.isdecimal():
            moved = {"Location": plan.location} if plan.location else {}
            self.send(int(answer), {"Retry-After": "0", "Content-Length": "0", **moved})
        elif answer == "hang up":
            self.close_connection = True
        else:
            self.send_content(plan, answer)

    def send_content(self, plan: Plan, answer: str) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fresh = not plan.if_range or self.headers.get("If-Range", plan.tag) == plan.tag
        begin, size = int(asked[1]) if asked and plan.ranges and fresh else 0, len(plan.content)
        headers = {"ETag": plan.tag} if plan.tag else {}
        if begin == size:
            self.send(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            return
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        body = plan.content[begin:]
        if answer.startswith("chunked"):
            headers["Transfer-Encoding"] = "chunked"
            body = body[:CUT] if answer == "chunked cut" else body
            body = b"%x\r\n%s\r\n" % (len(body), body) + (b"0\r\n\r\n" if answer == "chunked" else b"")
        else:
            headers["Content-Length"] = str(len(body) + (1000 if answer == "too long" else 0))
            body = body[:CUT] if answer == "cut" else body
        self.send(206 if begin else 200, headers, body)

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan = Plan()
        self.scheme = "https" if context else "http"
        self._context = context
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, address = super().get_request()
        if self._context:  # the handshake is made in the connection's own thread
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def handle_error(self, *_: object) -> None:
        """Print nothing when a client closes the connection, which some tests do on purpose."""

    def url(self, path: str = "data.txt") -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{path}"

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Start an https server whose certificate this process trusts."""
    pytest.importorskip("cryptography", reason="no certificate can be made without cryptography")
    from testkit.fake_api_server import create_certificate

    pem = create_certificate(tmp_path, tmp_path / "certificate.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = Server(context)
    yield server
    server.stop()


def assert_complete(pod: Pod) -> None:
    assert sorted(pod.train()) == sorted(CONTENT.split(b"\n")[:-1])


FAULTS = {
    "complete": ["complete"],
    "chunked": ["chunked"],
    "cut once": ["cut"],
    "cut seven times": ["cut"] * 7,
    "cut in a chunk": ["chunked cut", "cut"],
    "500, 503, 429": ["500", "503", "429"],
    "hangs up": ["hang up", "cut", "hang up"],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("tag", ['"v1"', 'W/"v1"', ""])
def test_a_broken_connection_is_resumed(pod: Pod, server: Server, fault: str, ranges: bool, tag: str) -> None:
    server.plan = Plan(answers=list(FAULTS[fault]), ranges=ranges, tag=tag)
    if fault == "cut seven times" and not ranges:
        server.plan.answers = ["cut", "cut"]
    manifest = pod.prepare(SOURCE=server.url(), SHA256=SHA256)
    assert manifest["sha256"] == SHA256
    assert_complete(pod)
    requests = server.plan.seen
    if fault == "cut seven times" and ranges:
        assert [r.get("Range") for r in requests[:3]] == [None, f"bytes={CUT}-", f"bytes={2 * CUT}-"]
        assert {r.get("If-Range") for r in requests[1:]} == {'"v1"' if tag == '"v1"' else None}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_breaks_after_the_last_byte_is_no_error(
    pod: Pod, server: Server, ranges: bool
) -> None:
    """Regression: the server answers 416 to a request for the bytes after the last one."""
    content = b"".join(b"%063d\n" % n for n in range(BLOCK // 64))  # as many bytes as one read asks for
    server.plan = Plan(content, answers=["chunked without its end"], ranges=ranges)
    digest = hashlib.sha256(content).hexdigest()
    assert pod.prepare(SOURCE=server.url(), SHA256=digest)["sha256"] == digest
    assert len(server.plan.seen) == 2


def test_backoff_grows_with_jitter_and_restarts_after_a_byte(pod: Pod, server: Server) -> None:
    waits: list[float] = []
    server.plan.answers = ["500", "500", "500", "cut", "500", "500"]
    retry = Retry(tries=5, base=1.0, cap=3.0, sleep=waits.append, jitter=lambda: 0.5)
    data_job.main(pod.settings(SOURCE=server.url(), SHA256=SHA256), retry=retry)
    assert waits == [0.75, 1.5, 2.25, 0.75, 1.5, 2.25]


@pytest.mark.parametrize(
    ("answers", "message", "requests"),
    [
        (["503"] * 20, "5 attempts in a row: the server answered 503", 5),
        (["too long"] * 20, f"ended after {len(CONTENT)} of {len(CONTENT) + 1000} bytes", 5),
        *(([code], f"the server answered {code}.*data.source", 1) for code in ("403", "404", "410")),
    ],
)
def test_an_error_of_the_server_is_reported_without_the_query(
    pod: Pod, server: Server, answers: list[str], message: str, requests: int
) -> None:
    """Only errors that may pass are retried."""
    server.plan = Plan(answers=answers, ranges=False)
    with pytest.raises(DataError, match=message):
        pod.prepare(SOURCE=server.url("x?token=secret"), SHA256=SHA256)
    assert len(server.plan.seen) == requests
    assert "secret" not in pod.failure()["reason"]
    assert pod.leftovers() == []


@pytest.mark.parametrize(
    ("plan", "changed"),
    [
        ({}, {"content": OTHER, "tag": '"v2"'}),
        ({"if_range": False}, {"content": OTHER, "tag": '"v2"'}),
        ({"ranges": False}, {"content": OTHER, "tag": '"v2"'}),
        ({"tag": ""}, {"content": CONTENT[: 2 * CUT]}),
    ],
)
def test_a_source_that_changes_between_two_tries_is_rejected(
    pod: Pod, server: Server, plan: dict[str, Any], changed: dict[str, Any]
) -> None:
    server.plan = Plan(answers=["cut"], **plan)
    retry = Retry(tries=3, base=0.0, sleep=lambda _: vars(server.plan).update(changed))
    with pytest.raises(DataError, match="changed while it was read"):
        data_job.main(pod.settings(SOURCE=server.url(), SHA256=SHA256), retry=retry)


IN_SECRET = {"SOURCE_SECRET": {"name": "addresses", "key": "train"}}
OF_SECRET = "the address in Secret addresses/train.* Fix: "


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"SOURCE": "https://me:hidden@h/x"}, r"data\.source has a user name or password"),
        ({"SOURCE": "https://h/é.csv"}, r"data\.source has characters that a web address cannot contain"),
        *(
            (
                {key: f"https://{host}/x?token=hidden"},
                rf"{value}.* is malformed, or the server .*Fix: set {value}",
            )
            for key, value in (("SOURCE", r"data\.source"), ("TEST_SOURCE", r"data\.testSource"))
            for host in ("[::1", "[x]", "a:b")
        ),
        *(
            ({"SOURCE": url, **IN_SECRET}, OF_SECRET)
            for url in ("s3://bucket/hidden", "https://me:hidden@h/a", "https://h/hid den")
        ),
    ],
)
def test_an_address_that_cannot_be_requested_is_one_error_without_its_secrets(
    pod: Pod, values: dict[str, str], message: str
) -> None:
    pod.source(LINES)
    with pytest.raises(DataError, match=message) as error:
        pod.prepare(SHA256=SHA256 if IN_SECRET.items() <= values.items() else "", **values)
    assert "hid" not in str(error.value)


def test_the_progress_of_a_download_has_the_size_that_the_server_sends(
    pod: Pod, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = set()
    monkeypatch.setattr(DataProgress, "report", lambda progress, *_: totals.add(progress.total))
    pod.prepare(SOURCE=server.url("x"), SHA256=SHA256)
    assert len(CONTENT) in totals


def test_a_refused_connection_is_reported(pod: Pod) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
    with pytest.raises(DataError, match=r"5 attempts in a row: no connection \(.*refused"):
        pod.prepare(SOURCE=url, SHA256=SHA256)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_over_a_flaky_connection_is_read_completely(
    pod: Pod, server: Server, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    noise = random.Random(1).randbytes(3 * CUT)  # noqa: S311 - it must not compress
    server.plan = Plan(content=pack({"a/t.bin": noise, "a/in.txt": LINES}), answers=["cut", "503", "cut"])
    sha256 = hashlib.sha256(server.plan.content).hexdigest()
    manifest = pod.prepare(SOURCE=server.url(), SHA256=sha256, MEMBER="a/in.txt", TABLES=["a/t.bin"])
    assert manifest["sha256"] == sha256
    assert (pod.job / "tables" / "t.bin").read_bytes() == noise
    assert sorted(pod.train()) == ALL
    assert pod.leftovers() == []


def test_https_needs_no_checksum_and_follows_https(pod: Pod, secure: Server) -> None:
    secure.plan.answers = ["302", "cut"]
    secure.plan.location = "/elsewhere"
    assert pod.prepare(SOURCE=secure.url())["sha256"] == SHA256
    assert_complete(pod)


@pytest.mark.parametrize(
    ("answer", "values", "message"),
    [
        (
            "302",
            {},
            r"redirects to http://127.0.0.1:\d+/signed/hidden.txt: redirects from https are followed to https",
        ),
        ("302", IN_SECRET, OF_SECRET),
        ("403", IN_SECRET, OF_SECRET),
    ],
)
def test_a_rejection_over_https_or_a_redirect_to_http_is_one_error_without_secrets(
    pod: Pod, secure: Server, server: Server, *, answer: str, values: dict[str, Any], message: str
) -> None:
    secure.plan = Plan(answers=[answer], location=server.url(SECRET))
    with pytest.raises(DataError, match=message) as error:
        pod.prepare(SOURCE=secure.url(SECRET), SHA256=SHA256, **values)
    assert "sig=" not in str(error.value)
    assert not values or "hidden" not in str(error.value)
    assert server.plan.seen == []


def test_an_untrusted_certificate_is_rejected(
    pod: Pod, secure: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DataError, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
        pod.prepare(SOURCE=secure.url())


def test_address_in_a_secret_is_in_no_file_and_no_log(
    pod: Pod, secure: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secure.plan.answers = ["503", "cut"]
    manifest = pod.prepare(SOURCE=secure.url(SECRET) + "\n", **IN_SECRET, SHA256=SHA256)
    assert manifest["source"] == "the address in Secret addresses/train"
    assert_complete(pod)
    texts = [file.read_bytes() for file in pod.job.parent.rglob("*") if file.is_file()]
    shown = capfd.readouterr()
    texts += [text.encode() for text in (*caplog.messages, shown.out, shown.err)]
    assert not [text for text in texts if b"hidden" in text or b"sig=" in text]


HEADERS = {
    "Content-Length": ["", "x", "-1", "1" * 5000, "²", "1, 2", "1e3"],
    "Content-Range": ["", "x", "bytes x", "bytes 5-1/2", "bytes " + "1" * 5000 + "-2/3", "bytes 100000-2/" + "9" * 5000,
                      "bytes 100000-/5", "bytes 100000-1/*"],
    "ETag": ["", "x", "W/", '"a\r\n b"', "é"],
    "Last-Modified": ["", "x", "0"],
    "Transfer-Encoding": ["x", "gzip"],
    "Retry-After": ["9" * 5000, "²", "-1", "x"],
    "Location": ["http://[::1/", "//[::1", "http://[::1]x/", "http://127.0.0.1:port/", "http://127.0.0.1:99999999999/",
                 "http://" + "a" * 70 + "/", "http://a..b/", "http://[v1.x]/", "http://[::1%/"],
}  # fmt: skip


@pytest.mark.parametrize("status", [200, 206, 302, 404, 416, 503])
@pytest.mark.parametrize("header", [(name, value) for name, values in HEADERS.items() for value in values])
def test_a_wrong_header_is_one_error_or_changes_nothing(
    pod: Pod, server: Server, monkeypatch: pytest.MonkeyPatch, status: int, header: tuple[str, str]
) -> None:
    """The first answer breaks off, so that the later ones, which have the header, answer a request for a range."""
    monkeypatch.setattr("launcher.io.retry.time.sleep", lambda _: None)
    body = CONTENT if status == 200 else CONTENT[CUT:]
    headers = {"Content-Length": str(len(body)), "Content-Range": f"bytes {CUT}-1/{len(CONTENT)}"}
    server.plan = Plan(answers=["cut"], tag="", later=(status, headers | dict([header]), body))
    settings = pod.settings(SOURCE=server.url("x?token=secret"), SHA256=SHA256)
    try:
        data_job.main(settings, retry=Retry(tries=3, base=0.0, sleep=lambda _: None))
    except DataError as error:
        assert "Fix: " in str(error)
        assert "secret" not in str(error)
        assert "unexpected" not in pod.failure()["reason"]
    else:
        assert_complete(pod)


@pytest.mark.parametrize(
    ("path", "pack", "expected"),
    [
        ("a.zip?x=1", zipped, {"big.bin": CONTENT, "b": b"1"}),
        ("download", tarred, {"big.bin": CONTENT, "b": b"1"}),
        ("%C3%A9.npz", zipped, None),
    ],
)
def test_an_archive_from_a_flaky_server_is_unpacked_and_another_file_is_kept(
    pod: Pod,
    server: Server,
    path: str,
    pack: Callable[[dict[str, bytes]], bytes],
    expected: dict[str, bytes] | None,
) -> None:
    server.plan = Plan(content=pack({"big.bin": CONTENT, "b": b"1"}), answers=["503", "cut"])
    digest = hashlib.sha256(server.plan.content).hexdigest()
    pod.prepare(SOURCE=server.url(path), FORMAT="files", SHA256=digest)
    assert prepared_files(pod) == (expected or {"é.npz": server.plan.content})


@pytest.mark.parametrize("ranges", [True, False])
def test_a_parquet_file_is_read_over_a_flaky_connection(pod: Pod, server: Server, ranges: bool) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": list(range(3000))}), file, compression="none", use_dictionary=False)
    server.plan = Plan(content=file.getvalue(), answers=["cut"], ranges=ranges)
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    manifest = pod.prepare(SOURCE=server.url(), SHA256=digest, format="parquet", split_count=1)
    assert manifest["sha256"] == digest
    rows = read_shard(pod.job / "0" / "data" / "train.txt")
    assert [value for batch in rows for value in batch["x"].to_pylist()] == list(range(3000))
