"""What a launcher answers on peerPort beside the gang's own talk: the liveness probe and rank 0's picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.gang.status import metrics
from launcher.storage.probe import Probe
from launcher.timings import Timings

if TYPE_CHECKING:
    from launcher.gang.control import Page
    from launcher.gang.lead import Leader


def pages(
    stuck: Callable[[], float], probe: Probe, timings: Timings, leader: Callable[[], Leader | None]
) -> Mapping[str, Page]:
    """path → page. `stuck()`: seconds since the main thread went round."""

    def picture() -> dict[str, Any] | None:
        led = leader()
        return led.books.status() if led is not None and led.books is not None else None

    def healthz() -> tuple[int, str, bytes]:
        seconds, silence = stuck(), probe.silence()
        text = f"the main thread went round {seconds:.1f} s ago; the storage is silent for {silence} s\n"
        healthy = seconds < 2 * timings.stuck and silence < timings.storage
        return 200 if healthy else 503, "text/plain", text.encode()

    def status() -> tuple[int, str, bytes]:
        value = picture()
        body = json.dumps(value or {"error": "only rank 0 knows, once it has the output"}).encode()
        return 200 if value else 404, "application/json", body

    def numbers() -> tuple[int, str, bytes]:
        led, value = leader(), picture()
        if led is None or value is None:
            return 404, "text/plain", b"only rank 0 has metrics, once it has the output\n"
        return 200, "text/plain; version=0.0.4", metrics(value, led.rendezvous_seconds)

    return {"/healthz": healthz, "/status": status, "/metrics": numbers}
