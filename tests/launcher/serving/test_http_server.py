"""Tests of the model's HTTP server and of the process `python -m launcher serve`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from launcher.serving.paddle_served import Model, http_server
from launcher.serving.paddle_served.http_server import ModelServer
from launcher.serving.paddle_served.model import PredictionResult
from local.paths import CLONE

JSON = {"Content-Type": "application/json"}
ROWS = [{"words": "5 12345", "size": 0.5}, {"words": "77", "size": "1"}]


class Client:
    """Send requests to an application without a socket."""

    def __init__(self, app: ModelServer) -> None:
        self._transport = httpx.ASGITransport(app)

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.ask("POST", path, **body)

    def ask(self, *request: str, **body: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://model") as client:
                return await client.request(*request, **body)

        return asyncio.run(ask())


@pytest.fixture
def client(made: SimpleNamespace) -> Client:
    return Client(ModelServer(Model(made.folder), workers=2, start_seconds=0.25))


def test_rows_are_answered_with_vectors_labels_and_unknown_ids(client: Client, made: SimpleNamespace) -> None:
    answer = client.post("/predict", json={"rows": ROWS})
    assert answer.status_code == 200
    found = answer.json()
    assert found["predictions"][0] == pytest.approx(made.expected([5, 12345], 0.5), rel=1e-5)
    assert found["predictions"][1] == pytest.approx(made.expected([77], 1.0), rel=1e-5)
    assert all(word.startswith("most likely ") for word in found["words"])
    assert found["unknownIds"] == {"word/vector": 1, "first": 0}


FORM = '{"rows": [{"words": "…", "size": "…"}]}'
BODY = json.dumps({"rows": ROWS}).encode()
NEEDED = "send the header Content-Type: application/json"
WEB_FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("request_", "content", "code", "messages"),
    [
        ("POST /predict application/json", b'{"rows": [{"words": "5", "size": 1}, {"words": "5"}]}', 422,
         ["row 2 has no size: it has words, but the model needs"]),
        ("POST /predict application/json", b"", 422, ["the body is empty", f"send {FORM}"]),
        ("POST /predict", BODY, 415, ["none", NEEDED]),
        (f"POST /predict {WEB_FORM}", BODY, 415, [WEB_FORM, NEEDED]),
        ("GET /predict", b"", 405, [f"POST {FORM}"]),
        ("GET /predictions", b"", 404, ["/predict, /model, /healthz, /metrics or /docs"]),
    ],
)  # fmt: skip
def test_an_invalid_request_is_answered_with_one_sentence_and_counted(
    client: Client, request_: str, content: bytes, code: int, messages: list[str]
) -> None:
    method, path, *kind = request_.split()
    answer = client.ask(
        method, path, content=content, headers=dict(zip(["Content-Type"], kind, strict=False))
    )
    assert (answer.status_code, list(answer.json())) == (code, ["error"])
    assert answer.headers.get("allow") == ("POST" if code == 405 else None)
    for message in messages:
        assert message in answer.json()["error"]
    counted = f'paddle_serve_requests_total{{code="{code}"}} 1.0' in client.get("/metrics").text
    assert counted == (path == "/predict")


def test_a_chunked_body_is_accepted_and_a_too_large_one_rejected(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pieces(count: int = 0) -> AsyncIterator[bytes]:
        yield json.dumps({"rows": ROWS}).encode()
        for _ in range(count):
            yield b" " * 50

    assert client.post("/predict", content=pieces(), headers=JSON).json()["unknownIds"]["word/vector"] == 1
    monkeypatch.setattr(http_server, "MAX_BYTES", 200)
    assert client.post("/predict", content=pieces(), headers=JSON).status_code == 200
    for content in (pieces(4), b" " * 201):
        answer = client.post("/predict", content=content, headers=JSON)
        assert (answer.status_code, list(answer.json())) == (413, ["error"])
        assert "more than 200 bytes" in answer.json()["error"]


def test_healthz_is_answered_while_a_body_is_parsed_and_its_rows_are_predicted(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a body was parsed where all requests are answered, so that a large one stopped the server."""
    model, go_on, parsing = Model(made.folder), threading.Event(), threading.Event()
    parse = model.program.module.parse
    monkeypatch.setattr(
        model.program.module, "parse", lambda *given: (parsing.set(), go_on.wait(60), parse(*given))[2]
    )

    async def ask() -> None:
        transport = httpx.ASGITransport(ModelServer(model, workers=1))
        async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
            with http_server._parsing:
                asked = asyncio.create_task(client.post("/predict", json={"rows": ROWS}))
                assert (await client.get("/healthz")).status_code == 200
                assert not parsing.is_set()
            while not parsing.is_set():
                assert (await client.get("/healthz")).status_code == 200
            assert not asked.done()
            go_on.set()
            assert len((await asked).json()["predictions"]) == len(ROWS)

    asyncio.run(ask())


def test_requests_that_together_are_too_large_are_rejected_until_others_are_answered(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps({"rows": ROWS}).encode()
    monkeypatch.setattr(http_server, "MAX_HELD_BYTES", 2 * len(content))
    server = ModelServer(Model(made.folder), workers=4)

    async def ask() -> None:
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:

            def post() -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(client.post("/predict", content=content, headers=JSON))

            with http_server._parsing:
                accepted = [post(), post()]
                rejected = await post()
                assert (rejected.status_code, rejected.headers["Retry-After"]) == (503, "1")
                assert "too many large requests. Fix: " in rejected.json()["error"]
                assert (await client.get("/healthz")).status_code == 200
            assert [(await one).status_code for one in accepted] == [200, 200]
            assert (await post()).status_code == 200

    asyncio.run(ask())


def test_a_server_that_leaves_answers_requests_and_sends_clients_elsewhere(made: SimpleNamespace) -> None:
    server = ModelServer(Model(made.folder), workers=1)
    client = Client(server)
    assert "Connection" not in client.post("/predict", json={"rows": ROWS}).headers
    assert (client.get("/healthz").status_code, client.get("/healthz").json()) == (200, {"status": "ok"})
    server.is_leaving = True
    answer = client.post("/predict", json={"rows": ROWS})
    assert (answer.status_code, answer.headers["Connection"]) == (200, "close")
    assert len(answer.json()["predictions"]) == len(ROWS)
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (503, {"status": "leaving"}), (
        "Kubernetes sends no more requests"
    )
    assert answer.headers["Connection"] == "close"


def test_a_failure_of_the_program_or_a_prediction_that_is_not_finite_is_a_server_error(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(made.folder)
    client = Client(ModelServer(model, workers=1))
    monkeypatch.setattr(model.program.module, "describe", lambda _: 1 / 0)
    failed = client.post("/predict", json={"rows": ROWS})
    found = PredictionResult(np.array([[0.5, 0.5], [0.5, np.nan]], np.float32), None, {}, {})
    monkeypatch.setattr(model, "answer", lambda _: found)
    infinite = client.post("/predict", json={"rows": ROWS})
    assert (failed.status_code, infinite.status_code) == (500, 500)
    assert "describe() of the model's program trainer_config.py failed" in failed.json()["error"]
    assert infinite.json()["error"].startswith("row 2: the prediction is NaN or infinite. Fix: ")
    assert 'paddle_serve_requests_total{code="500"} 2.0' in client.get("/metrics").text


def test_metrics_count_rows_ids_and_unknown_ids(client: Client) -> None:
    client.post("/predict", json={"rows": ROWS})
    text = client.get("/metrics").text
    for line in (
        'paddle_serve_requests_total{code="200"} 1.0',
        "paddle_serve_rows_total 2.0",
        'paddle_serve_ids_total{table="word/vector"} 8.0',
        'paddle_serve_unknown_ids_total{table="word/vector"} 1.0',
        'paddle_serve_unknown_ids_total{table="first"} 0.0',
        "paddle_serve_seconds_count 1.0",
        "paddle_serve_start_seconds 0.25",
    ):
        assert line in text


def test_the_openapi_page_has_the_models_columns(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/docs").status_code == 200
    about = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    schema = about["content"]["application/json"]["schema"]
    assert list(schema["examples"][0]["rows"][0]) == ["words", "size"]
    assert schema["description"] == "Rows with the columns words, size."
    found = client.get("/model").json()
    assert found["columns"] == ["words", "size"]
    assert found["tables"]["first"] == {"rows": 2, "width": 2}
    assert found["score"] == {"mean": 0.5}


ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(CLONE),
    "PADDLE_LAUNCHER_TERMINATION_LOG": os.devnull,
}


def test_an_invalid_model_folder_exits_with_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launcher", "serve", "--model", str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stderr == (
        f"launcher serve: {tmp_path} is not a model: it has no model.json. Fix: use the folder `model` of "
        "a run's output, or of a folder that `python -m launcher results --to DIR` copied\n"
    )


@pytest.mark.slow
def test_other_commands_do_not_import_the_http_server() -> None:
    script = (
        "import sys, launcher.supervisor.agent, launcher.dataprep.data_job, launcher.runtimes.fleet, "
        "launcher.cli.reader_commands, "
        "launcher.supervisor.bucket_export, launcher.trainer.training_loop, "
        "launcher.trainer.fleet_trainer\n"
        "heavy = {'fastapi', 'starlette', 'uvicorn', 'pydantic'}\n"
        "sys.exit(','.join(sorted(heavy & {name.split('.')[0] for name in sys.modules})) or 0)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
