"""A model over HTTP: FastAPI on uvicorn, with the model's own columns in its OpenAPI page (/docs)."""

# No `from __future__ import annotations` here: FastAPI evaluates the types of inner functions.
import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

from .errors import ModelError, RowError
from .model import Answer, Model

MAX_ROWS = 10_000
MAX_BYTES = 64 << 20
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Rows(BaseModel):
    """What is asked of /predict."""

    rows: list[dict[str, str | int | float]] = Field(min_length=1, max_length=MAX_ROWS)


class Predictions(BaseModel):
    """The answer to /predict."""

    predictions: list[Any] = Field(description="of each row, as the program's network() gives it")
    words: list[str] | None = Field(description="the program's own describe() of each; null without one")
    unknownIds: dict[str, int] = Field(description="ids that a table does not know; they read as zeros")  # noqa: N815


class Wrong(BaseModel):
    """What is wrong with a request, in one sentence."""

    error: str


class _Ids(Collector):
    """The model's own counts, read when they are asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        for name, text, counts in (
            ("paddle_serve_ids", "Ids that were looked up.", self._model.ids),
            ("paddle_serve_unknown_ids", "Ids that the table does not know.", self._model.unknown),
        ):
            family = CounterMetricFamily(name, text, labels=["table"])
            for table, count in counts.items():
                family.add_metric([table], count)
            yield family


def application(model: Model, workers: int, start_seconds: float = 0.0) -> FastAPI:
    """The server's application. `workers`: predictions at once. `start_seconds`: the model took to open."""
    app = FastAPI(
        title=f"Model of {model.about['config']}",
        description=f"Score on the test set: {model.score}. A row has {', '.join(model.columns)}.",
        version=str(model.about["version"]),
    )
    pool = ThreadPoolExecutor(workers, "predict")
    registry = CollectorRegistry()
    registry.register(_Ids(model))
    requests = Counter("paddle_serve_requests", "Answers to /predict.", ["code"], registry=registry)
    rows = Counter("paddle_serve_rows", "Rows that were predicted.", registry=registry)
    seconds = Histogram(
        "paddle_serve_seconds", "Seconds of an answer to /predict.", buckets=SECONDS, registry=registry
    )
    Gauge("paddle_serve_start_seconds", "Seconds to open the model.", registry=registry).set(start_seconds)

    def wrong(code: int, text: str) -> JSONResponse:
        return JSONResponse({"error": text}, code)

    @app.middleware("http")
    async def measured(request: Request, call_next: Any) -> Response:
        if request.url.path != "/predict":
            return await call_next(request)  # type: ignore[no-any-return]
        began = time.perf_counter()
        size = request.headers.get("content-length", "")
        if not size.isdecimal() or int(size) > MAX_BYTES:
            response: Response = wrong(
                413,
                f"a request has a Content-Length of at most {MAX_BYTES} bytes, but this has {size or 'none'}",
            )
        else:
            response = await call_next(request)
        requests.labels(str(response.status_code)).inc()
        seconds.observe(time.perf_counter() - began)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return wrong(422, f'{where or "the body"}: {first["msg"]}; send {{"rows": [{{…}}]}}')

    @app.exception_handler(RowError)
    async def bad_row(_: Request, error: RowError) -> JSONResponse:
        return wrong(422, str(error))

    @app.exception_handler(ModelError)
    async def bad_model(_: Request, error: ModelError) -> JSONResponse:
        return wrong(500, str(error))

    example = {"rows": [dict.fromkeys(model.columns, "…")]}
    described = f"Rows with the columns {', '.join(model.columns)}."

    @app.post(
        "/predict", response_model=Predictions, responses={422: {"model": Wrong}, 413: {"model": Wrong}}
    )
    async def predict(asked: Annotated[Rows, Body(examples=[example], description=described)]) -> Response:
        answer: Answer = await asyncio.get_running_loop().run_in_executor(pool, model.answer, asked.rows)
        rows.inc(len(asked.rows))
        return JSONResponse(
            {
                "predictions": answer.predictions.tolist(),
                "words": answer.words,
                "unknownIds": answer.unknown,
            }
        )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model")
    async def about() -> dict[str, Any]:
        names = ("config", "options", "score", "tables")
        return {"columns": model.columns, **{name: model.about[name] for name in names}}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app
