"""Serve a model over HTTP: a FastAPI application whose OpenAPI page (/docs) shows the model's columns."""

# No `from __future__ import annotations` here: FastAPI evaluates the types of inner functions.
import asyncio
import json
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .model import Model, ModelError, PredictionResult, RowError, ServedError

MAX_ROWS = 10_000
MAX_BYTES = 8 << 20
"""Limit in bytes for the body of a request. A thread that parses a body of this size stops all other threads for up
to a second.
"""
MAX_HELD_BYTES = 64 << 20
"""Limit in bytes for the bodies of all unanswered requests together."""
_parsing = threading.Lock()
"""Held while a body is parsed, so that only one body is parsed at a time: the parsed values of a malicious body need 30
times as much memory as its text.
"""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
VERSION_HEADER = "Model-Version"
"""Header of each response of /predict. Its value is the version of the model that answered."""


class PredictRequest(BaseModel):
    """The body of a request to /predict."""

    rows: list[dict[str, str | float]] = Field(min_length=1, max_length=MAX_ROWS)


class PredictResponse(BaseModel):
    """The body of a response of /predict."""

    predictions: list[Any] = Field(
        description="prediction of each row, as the program's network() returns it"
    )
    words: list[str] | None = Field(description="the program's describe() of each row; null if it has none")
    unknownIds: dict[str, int] = Field(description="number of ids that are not in each table")  # noqa: N815


class ErrorResponse(BaseModel):
    """The body of an error response: one sentence."""

    error: str


class _BodyLimit:
    """Middleware that rejects large bodies, with or without a Content-Length.

    It answers 413 to a body of more than MAX_BYTES. It answers 503 to a request whose body, together with the bodies of
    all other unanswered requests, has more than MAX_HELD_BYTES.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            received = len(message.get("body", b""))
            if size + received > MAX_BYTES:
                raise HTTPException(
                    413, f"the body has more than {MAX_BYTES} bytes. Fix: send fewer rows per request"
                )
            if received and self._held + received > MAX_HELD_BYTES:
                text = "the server holds too many large requests. Fix: send the request again, or fewer rows at once"
                raise HTTPException(503, text, {"Retry-After": "1"})
            size += received
            self._held += received
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= size


def read_rows(body: bytes, model: Model, form: str) -> list[dict[str, Any]]:
    """Parse and check the body of a request, and return its rows.

    Call this in a thread, because it takes seconds for a large body. `form` is an example of a body, for messages.

    Raises:
        RowError: the body is invalid, or a row has a column that the model does not know. The message describes the
            first problem.
    """

    def require(condition: bool, problem: str) -> None:
        if not condition:
            raise RowError(f"{problem}. Fix: send {form}")

    require(bool(body), "the body is empty")
    try:
        with _parsing:
            value = json.loads(body)
    except json.JSONDecodeError as error:
        raise RowError(
            f"the body is not JSON ({error.msg}, character {error.pos}). Fix: send {form}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"the body is not JSON in UTF-8, or has too many levels or digits. Fix: send {form}"
        ) from error
    require(isinstance(value, dict), "the body is no JSON object")
    require("rows" in value, "rows: Field required")
    rows: list[dict[str, Any]] = value["rows"]
    require(isinstance(rows, list), "rows: Input should be a valid list")
    require(len(rows) > 0, "rows: List should have at least 1 item")
    require(len(rows) <= MAX_ROWS, f"rows: List should have at most {MAX_ROWS} items, not {len(rows)}")
    known = set(model.program.columns)
    for number, row in enumerate(rows):
        require(isinstance(row, dict), f"rows.{number}: Input should be a valid dictionary")
        if unknown := row.keys() - known:
            raise RowError(
                f"row {number + 1} has the column {min(unknown)[:60]!r}, which the model does not know: its columns "
                f"are {', '.join(model.program.columns)}. Fix: leave that column out, or correct its name"
            )
        for column, text in row.items():
            is_plain = type(text) in (str, int, float)  # not bool
            require(is_plain, f"rows.{number}.{column}: Input should be a text or a number")
    return rows


class ServerMetrics:
    """All metrics of one server. docs/reference/pods.md describes them."""

    def __init__(self, model: Model, start_seconds: float) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "paddle_serve_requests", "Responses of /predict, by code.", ["code"], registry=registry
        )
        self.rows = Counter("paddle_serve_rows", "Predicted rows.", registry=registry)
        self.seconds = Histogram(
            "paddle_serve_seconds",
            "Seconds from request to response of /predict.",
            buckets=SECONDS,
            registry=registry,
        )
        self.failures = Counter(
            "paddle_serve_model_failures",
            "New models that were rejected (reason model), and failed attempts to find or copy one (source).",
            ["reason"],
            registry=registry,
        )
        for reason in ("model", "source"):
            self.failures.labels(reason)  # an alert needs the value 0 before the first failure
        start = Gauge("paddle_serve_start_seconds", "Seconds to open the model.", registry=registry)
        start.set(start_seconds)
        text = "The served model: always 1."
        Gauge("paddle_serve_model_info", text, ["version"], registry=registry).labels(model.version).set(1)
        text = "When training wrote the model, in Unix seconds; 0: not known."
        created = Gauge("paddle_serve_model_created_seconds", text, registry=registry)
        created.set(model.about.get("created") or 0)
        text = "Ids that were looked up, by table."
        self._ids = Counter("paddle_serve_ids", text, ["table"], registry=registry)
        text = "Looked-up ids that are not in the table."
        self._unknown = Counter("paddle_serve_unknown_ids", text, ["table"], registry=registry)
        self._count_ids(dict.fromkeys(model.tables, 0), dict.fromkeys(model.tables, 0))

    def count(self, answer: PredictionResult) -> None:
        """Add the rows and ids of one answer to the metrics."""
        self.rows.inc(len(answer.predictions))
        self._count_ids(answer.ids, answer.unknown)

    def _count_ids(self, ids: Mapping[str, int], unknown: Mapping[str, int]) -> None:
        for table, number in ids.items():
            self._ids.labels(table).inc(number)
            self._unknown.labels(table).inc(unknown[table])


class ModelServer(FastAPI):
    """The application that answers requests with one model."""

    def __init__(self, model: Model, workers: int, start_seconds: float = 0.0) -> None:
        super().__init__(
            title=f"Model of {model.about['config']}",
            description=f"Score on the test set: {model.score}. A row has {', '.join(model.columns)}.",
            version=str(model.about["version"]),
        )
        self.model = model
        self.metrics = ServerMetrics(model, start_seconds)
        self.is_leaving = False
        """Whether the server ends soon. It still answers all requests, but closes the connections, so that clients
        connect to another server.
        """
        _add_endpoints(self, ThreadPoolExecutor(workers, "predict"))


def _add_endpoints(app: ModelServer, pool: ThreadPoolExecutor) -> None:
    model, metrics = app.model, app.metrics
    example = {"rows": [dict.fromkeys(model.columns, "…")]}
    form = json.dumps(example, ensure_ascii=False)

    def wrong(code: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": text}, code, headers)

    app.add_middleware(_BodyLimit)

    @app.middleware("http")
    async def measured(request: Request, call_next: Any) -> Response:
        began = time.perf_counter()
        is_predict = request.url.path == "/predict"
        kind = request.headers.get("content-type", "none")
        is_json = re.match(r"application/(\S+\+)?json\b", kind, re.IGNORECASE)
        if is_predict and request.method == "POST" and not is_json:
            text = f"the content type is {kind}. Fix: send the header Content-Type: application/json"
            response: Response = wrong(415, text)
        else:
            response = await call_next(request)
        if app.is_leaving:  # else a client sends more requests on a connection that it keeps open
            response.headers["Connection"] = "close"
        if is_predict:
            response.headers[VERSION_HEADER] = model.version
            metrics.requests.labels(str(response.status_code)).inc()
            metrics.seconds.observe(time.perf_counter() - began)
        return response

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        text, headers = error.detail, error.headers
        if error.status_code == 405 and request.url.path == "/predict":
            text, headers = f"{request.method} is not allowed here. Fix: POST {form}", {"Allow": "POST"}
        elif error.status_code == 404:
            text = f"there is no {request.url.path}. Fix: use /predict, /model, /healthz, /metrics or /docs"
        return wrong(error.status_code, text, headers)

    @app.exception_handler(ServedError)
    async def served_error(_: Request, error: ServedError) -> JSONResponse:
        return wrong(422 if isinstance(error, RowError) else 500, str(error))

    def predict_body(body: bytes) -> Response:
        """Parse a body, predict its rows and return the response.

        This runs in a thread, so that the server can answer /healthz in the meantime.
        """
        rows = read_rows(body, model, form)
        answer: PredictionResult = model.answer(rows)
        finite = np.isfinite(answer.predictions).reshape(len(rows), -1).all(axis=1)
        if not finite.all():  # JSON has no such numbers
            raise ModelError(
                f"row {int(finite.argmin()) + 1}: the prediction is NaN or infinite. Fix: correct the row's numbers if "
                "they are unusually large; otherwise train the model again"
            )
        metrics.count(answer)
        # Row by row: no other thread runs while json.dumps() does.
        numbers = ",".join(json.dumps(row.tolist()) for row in answer.predictions)
        more = json.dumps({"words": answer.words, "unknownIds": answer.unknown}, ensure_ascii=False)
        return Response(f'{{"predictions": [{numbers}], {more[1:]}', media_type="application/json")

    schema = PredictRequest.model_json_schema() | {
        "description": f"Rows with the columns {', '.join(model.columns)}.",
        "examples": [example],
    }

    @app.post(
        "/predict",
        response_model=PredictResponse,
        responses={code: {"model": ErrorResponse} for code in (413, 415, 422, 503)},
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
    )
    async def predict(request: Request) -> Response:
        body = await request.body()
        return await asyncio.get_running_loop().run_in_executor(pool, predict_body, body)

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "leaving"}, 503) if app.is_leaving else JSONResponse({"status": "ok"})

    @app.get("/model")
    async def about() -> dict[str, Any]:
        names = ("created", "config", "options", "score", "tables")
        found = {name: model.about.get(name) for name in names}
        return {"version": model.version, "columns": model.columns, **found}

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
