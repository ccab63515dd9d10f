"""The ASGI application that the HTTP server runs: passes requests to the present model, and switches models."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .http_server import build_application
from .model import Model
from .server_metrics import ServerMetrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

DRAIN_SECONDS = 60.0
"""How long requests may continue on a model that was replaced."""
DRAIN_POLL_SECONDS = 0.05


@dataclass
class _ServedModel:
    """A model, the application that answers requests with it, and the number of its unanswered requests."""

    model: Model
    application: ASGIApp
    requests: int = 0


class ModelServer:
    """Serves one model at a time. Each request is answered completely by the model that was present at its start."""

    def __init__(self, model: Model, workers: int, start_seconds: float = 0.0) -> None:
        self.metrics = ServerMetrics(model, start_seconds)
        self._pool = ThreadPoolExecutor(workers, "predict")
        self._lock = threading.Lock()
        """Held while a request reads `_present` and adds itself to the number of that model's requests."""
        self._present = self._served(model)

    @property
    def model(self) -> Model:
        """Return the present model."""
        return self._present.model

    def _served(self, model: Model) -> _ServedModel:
        return _ServedModel(model, build_application(model, self._pool, self.metrics))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        with self._lock:
            served = self._present
            served.requests += 1
        try:
            await served.application(scope, receive, send)
        finally:
            served.requests -= 1

    def switch(self, model: Model) -> None:
        """Answer new requests with `model`, wait until the former model has answered all of its own, and close it.

        Requests never fail because of this. Call it from another thread than the server's.

        Raises:
            TimeoutError: some requests to the former model still run after DRAIN_SECONDS. New requests are
                answered with `model`, but the former model stays in memory until its requests end.
        """
        served, former = self._served(model), self._present
        model.last_row = former.model.last_row
        with self._lock:
            self._present = served
        self.metrics.set_model(model)
        deadline = time.monotonic() + DRAIN_SECONDS
        while former.requests:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{former.requests} requests to model {former.model.version} have run for {DRAIN_SECONDS:g} s"
                )
            time.sleep(DRAIN_POLL_SECONDS)
        former.model.close()
