"""Serve a model over HTTP: a FastAPI application whose OpenAPI page (/docs) shows the model's columns."""

# No `from __future__ import annotations` here: FastAPI evaluates the types of inner functions.
import asyncio
import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ModelError, RowError
from .model import Model, PredictionResult
from .request_rows import MAX_ROWS, read_rows
from .server_metrics import ServerMetrics

MAX_BYTES = 8 << 20
"""Limit for the body of a request. A thread that parses so much JSON stops all others for up to a second."""
MAX_HELD_BYTES = 64 << 20
"""Limit for the bodies of all requests that are not answered yet."""
VERSION_HEADER = "Model-Version"
"""Header of the responses of /predict: the version of the model that answered."""


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
    """Middleware that answers 413 to a body of more than MAX_BYTES, with or without a Content-Length.

    It answers 503 while all requests together have bodies of more than MAX_HELD_BYTES.
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
        """Whether the server ends soon: clients are asked to go to another one, but all requests are answered."""
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

    @app.exception_handler(RowError)
    async def bad_row(_: Request, error: RowError) -> JSONResponse:
        return wrong(422, str(error))

    @app.exception_handler(ModelError)
    async def bad_model(_: Request, error: ModelError) -> JSONResponse:
        return wrong(500, str(error))

    def predict_body(body: bytes) -> Response:
        """Parse a body, predict its rows and write the answer, all in a thread: /healthz is answered meanwhile."""
        rows = read_rows(body, model, form)
        answer: PredictionResult = model.answer(rows)
        finite = np.isfinite(answer.predictions).reshape(len(rows), -1).all(axis=1)
        if not finite.all():  # JSON has no such numbers
            raise ModelError(
                f"row {int(finite.argmin()) + 1}: the prediction is NaN or infinite. Fix: correct the row's numbers if "
                "they are unusually large; otherwise train the model again"
            )
        metrics.rows.inc(len(rows))
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
