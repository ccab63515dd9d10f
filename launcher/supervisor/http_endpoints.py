"""Pages that every launcher serves on peerPort: the liveness probe, and rank 0's status and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from launcher.schema import StatusFile, to_json
from launcher.supervisor.coordinator.status import render_metrics
from launcher.supervisor.shared_storage.storage_probe import StorageProbe
from launcher.supervisor.timings import Timings

if TYPE_CHECKING:
    from launcher.supervisor.coordinator.coordinator import Coordinator
    from launcher.supervisor.peers.peer_server import Page


def build_pages(
    seconds_stuck: Callable[[], float],
    probe: StorageProbe,
    timings: Timings,
    find_coordinator: Callable[[], Coordinator | None],
) -> Mapping[str, Page]:
    """Return the pages of this launcher's HTTP server: path → function that returns the response.

    `seconds_stuck` returns the seconds since the main thread last ran, `find_coordinator` the coordinator of rank 0;
    None on other ranks and before it exists.
    """

    def build_status() -> StatusFile | None:
        coordinator = find_coordinator()
        files = coordinator.run_files if coordinator is not None else None
        return files.build_status() if files is not None else None

    def serve_healthz() -> tuple[int, str, bytes]:
        stuck, silence = seconds_stuck(), probe.silence()
        text = f"main thread last ran {stuck:.1f} s ago; storage has not answered for {silence} s\n"
        healthy = stuck < 2 * timings.stuck and silence < timings.storage
        return 200 if healthy else 503, "text/plain", text.encode()

    def serve_status() -> tuple[int, str, bytes]:
        status = build_status()
        missing = {"error": "only rank 0 has a status, once it holds the output lease. Fix: ask its pod"}
        body = json.dumps(missing if status is None else to_json(status)).encode()
        return 404 if status is None else 200, "application/json", body

    def serve_metrics() -> tuple[int, str, bytes]:
        coordinator, status = find_coordinator(), build_status()
        if coordinator is None or status is None:
            missing = b"only rank 0 has metrics, once it holds the output lease. Fix: ask its pod\n"
            return 404, "text/plain", missing
        return 200, "text/plain; version=0.0.4", render_metrics(status, coordinator.rendezvous_seconds)

    return {"/healthz": serve_healthz, "/status": serve_status, "/metrics": serve_metrics}
