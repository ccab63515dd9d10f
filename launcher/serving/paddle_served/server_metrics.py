"""Metrics of the model server for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .model import Model

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class ServerMetrics:
    """All metrics of one server (docs/reference/metrics.md)."""

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
        loaded = Gauge(
            "paddle_serve_model_loaded_seconds",
            "When the model was loaded, in Unix seconds.",
            registry=registry,
        )
        loaded.set(time.time())
        registry.register(_ModelMetrics(model))


class _ModelMetrics(Collector):
    """Reads the metrics that the model has itself, whenever Prometheus reads /metrics."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def collect(self) -> Iterator[Metric]:
        model = self.model
        info = GaugeMetricFamily("paddle_serve_model_info", "The served model: always 1.", labels=["version"])
        info.add_metric([model.version], 1)
        yield info
        text = "When training wrote the model, in Unix seconds; 0: not known."
        yield GaugeMetricFamily("paddle_serve_model_created_seconds", text, model.about.get("created") or 0)
        for name, text, counts in (
            ("paddle_serve_ids", "Ids that were looked up, by table.", model.ids),
            ("paddle_serve_unknown_ids", "Looked-up ids that are not in the table.", model.unknown),
        ):
            family = CounterMetricFamily(name, text, labels=["table"])
            for table, count in counts.items():
                family.add_metric([table], count)
            yield family
