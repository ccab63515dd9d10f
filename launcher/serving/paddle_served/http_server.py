"""Serve a model over HTTP: a FastAPI application whose OpenAPI page (/docs) shows the model's columns."""

# No `from __future__ import annotations` here: FastAPI evaluates the types of inner functions.
import asyncio
import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Annotated, Any

import numpy as np
from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ModelError, RowError
from .model import Model, PredictionResult
from .server_metrics import ServerMetrics

MAX_ROWS = 10_000
MAX_BYTES = 64 << 20
VERSION_HEADER = "Model-Version"
"""Header of the responses of /predict: the version of the model that answered."""


class PredictRequest(BaseModel):
    """The body of a request to /predict."""

    # Strict: without it, true becomes 1.
    rows: list[dict[str, StrictStr | StrictInt | StrictFloat]] = Field(min_length=1, max_length=MAX_ROWS)


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
    """Middleware that answers 413 to a body of more than MAX_BYTES, with or without a Content-Length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BYTES:
                raise HTTPException(
                    413, f"the body has more than {MAX_BYTES} bytes. Fix: send fewer rows per request"
                )
            return message

        await self._app(scope, counted, send)


def build_application(model: Model, pool: Executor, metrics: ServerMetrics) -> FastAPI:
    """Return the application that answers requests with one model."""
    app = FastAPI(
        title=f"Model of {model.about['config']}",
        description=f"Score on the test set: {model.score}. A row has {', '.join(model.columns)}.",
        version=str(model.about["version"]),
    )
    example = {"rows": [dict.fromkeys(model.columns, "…")]}
    form = json.dumps(example, ensure_ascii=False)

    def wrong(code: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": text}, code, headers)

    app.add_middleware(_BodyLimit)

    @app.middleware("http")
    async def measured(request: Request, call_next: Any) -> Response:
        if request.url.path != "/predict":
            return await call_next(request)  # type: ignore[no-any-return]
        began = time.perf_counter()
        kind = request.headers.get("content-type", "none")
        if request.method == "POST" and not re.match(r"application/(\S+\+)?json\b", kind, re.IGNORECASE):
            text = f"the content type is {kind}. Fix: send the header Content-Type: application/json"
            response: Response = wrong(415, text)
        else:
            response = await call_next(request)
        response.headers[VERSION_HEADER] = model.version
        metrics.requests.labels(str(response.status_code)).inc()
        metrics.seconds.observe(time.perf_counter() - began)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        problem = first["msg"]
        if first["type"] == "json_invalid":
            where, problem = "the body", f"is not JSON ({first['ctx']['error']}, character {where})"
        elif where == "the body" and first["input"] is None:
            problem = "is empty" if first["type"] == "missing" else "is null"
        return wrong(422, f"{where}: {problem}. Fix: send {form}")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        text, headers = error.detail, error.headers
        if error.status_code == 405 and request.url.path == "/predict":
            text, headers = f"{request.method} is not allowed here. Fix: POST {form}", {"Allow": "POST"}
        elif error.status_code == 404:
            text = f"there is no {request.url.path}. Fix: use /predict, /model, /healthz, /metrics or /docs"
        elif error.status_code == 400:  # FastAPI's answer to a body that it cannot decode
            return wrong(
                422, f"the body is not JSON in UTF-8, or has too many levels or digits. Fix: send {form}"
            )
        return wrong(error.status_code, text, headers)

    @app.exception_handler(RowError)
    async def bad_row(_: Request, error: RowError) -> JSONResponse:
        return wrong(422, str(error))

    @app.exception_handler(ModelError)
    async def bad_model(_: Request, error: ModelError) -> JSONResponse:
        return wrong(500, str(error))

    described = f"Rows with the columns {', '.join(model.columns)}."

    @app.post(
        "/predict",
        response_model=PredictResponse,
        responses={code: {"model": ErrorResponse} for code in (413, 415, 422)},
    )
    async def predict(
        asked: Annotated[PredictRequest, Body(examples=[example], description=described)],
    ) -> Response:
        answer: PredictionResult = await asyncio.get_running_loop().run_in_executor(
            pool, model.answer, asked.rows
        )
        finite = np.isfinite(answer.predictions).reshape(len(asked.rows), -1).all(axis=1)
        if not finite.all():  # JSON has no such numbers
            raise ModelError(
                f"row {int(finite.argmin()) + 1}: the prediction is NaN or infinite. Fix: correct the row's numbers if "
                "they are unusually large; otherwise train the model again"
            )
        metrics.rows.inc(len(asked.rows))
        return JSONResponse(
            {"predictions": answer.predictions.tolist(), "words": answer.words, "unknownIds": answer.unknown}
        )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model")
    async def about() -> dict[str, Any]:
        names = ("created", "config", "options", "score", "tables")
        found = {name: model.about.get(name) for name in names}
        return {"version": model.version, "columns": model.columns, **found}

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
