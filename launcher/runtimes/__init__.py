"""The runtimes: each runs one PaddlePaddle version, and the chart value `runtime` selects one of them."""

from __future__ import annotations

from launcher.runtimes.runtime_protocol import Runtime


def load_runtime(name: str) -> Runtime:
    """Return the runtime called `name` (`TrainSettings.runtime`); import only the module of this runtime."""
    if name == "v1":
        from launcher.runtimes.v1 import V1Runtime

        return V1Runtime()
    if name == "collective":
        from launcher.runtimes.collective import CollectiveRuntime

        return CollectiveRuntime()
    if name == "ps":
        from launcher.runtimes.ps import PsRuntime

        return PsRuntime()
    from launcher.runtimes.fleet import FleetRuntime

    return FleetRuntime()
