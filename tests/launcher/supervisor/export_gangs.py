"""Gangs of launchers that export to a bucket of moto's S3, and a server in front of it that injects errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from launcher.errors import ExportError
from launcher.io import run_record
from launcher.io.retry import Retry
from launcher.paths import OutputPaths
from launcher.schema import RunFile
from launcher.settings import TrainSettings
from launcher.supervisor.bucket_export import ModelUpload
from tests.launcher.supervisor.loopback_gang import LoopbackGang, train_settings

RUN = "quick-start-0a1b2c3d"
FOLDER = f"models/quick-start/{RUN}/"
MODEL = {"model": {"network.pdmodel": 1000, "parts/network.pdiparams": 17_000_000}}
SMALL = {"model": {"network.pdmodel": 1000}}


class FakeS3:
    """HTTP server in front of moto's S3 that counts requests and injects errors and delays."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self.puts: list[str] = []
        """Written keys in order; a large file has one entry per part."""
        self.requests = 0
        self.answers: dict[str, list[Any]] = {}
        """End of a key → answers to its next writes: an HTTP status, or seconds to wait."""
        self.test_over = threading.Event()
        """Set at the end of a test: delayed requests then write nothing."""
        self._server = make_server("127.0.0.1", 0, self._handle, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def _handle(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request: with the next injected answer for its key, otherwise as moto does."""
        self.requests += 1
        key = environ["PATH_INFO"].partition("/")[2].partition("/")[2]
        if environ["REQUEST_METHOD"] == "PUT" and key:
            waiting = next((w for end, w in self.answers.items() if key.endswith(end) and w), [])
            answer = waiting.pop(0) if waiting else None
            if isinstance(answer, float):
                answer = 500 if self.test_over.wait(answer) else None
            if answer is not None:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                code = {403: "AccessDenied", 503: "SlowDown"}.get(answer, "InternalError")
                start(f"{answer} {code}", [("Content-Type", "application/xml")])
                return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]
            self.puts.append(key)
        return self._moto(environ, start)  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Stop the HTTP server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class ExportBucket:
    """A bucket, and gangs that export to it."""

    def __init__(self, store: FakeS3, client: Any, root: Path) -> None:
        self.store, self.client, self.root = store, client, root
        self.env = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-west-2",
            "PADDLE_LAUNCHER_EXPORT_TO": "s3://bucket/models",
        }

    def build_gang(self, **more: Any) -> LoopbackGang:
        """Return a gang of two trainers that exports to the bucket; `more`: its other arguments."""
        more = {"trainers": 2, "fake": SMALL, "PADDLE_LAUNCHER_PASSES": "1", **self.env, **more}
        return LoopbackGang(self.root, **more)

    @property
    def output(self) -> OutputPaths:
        """The output folder of the runs of `settings`."""
        return OutputPaths(self.settings().layout.output)

    def settings(self, **env: str) -> TrainSettings:
        """Return the settings of a run without launchers."""
        return train_settings(self.root, PADDLE_LAUNCHER_RUNTIME="v1", **{**self.env, **env})

    def write_output(self, *files: str) -> None:
        """Write the output folder of a complete run with these files."""
        for file in files:
            path = self.output.root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
        record = RunFile(run_id=RUN, state="complete", finished=10.0, fingerprint={"program": "p"})
        run_record.write(self.output, record)

    def build_upload(self, tries: int = 1, **env: str) -> ModelUpload:
        """Return the upload of that folder by this process, which does not wait between `tries`."""
        retry = Retry(tries, sleep=lambda _: None, error=ExportError)
        return ModelUpload(self.settings(**env), "output-1", retry)

    def list_keys(self) -> list[str]:
        """Return all keys of the bucket."""
        return [o["Key"] for o in self.client.list_objects_v2(Bucket="bucket").get("Contents", [])]

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return bytes(self.client.get_object(Bucket="bucket", Key=key)["Body"].read())

    def put(self, key: str, value: Any) -> None:
        """Write an object as JSON."""
        self.client.put_object(Bucket="bucket", Key=key, Body=json.dumps(value).encode())
