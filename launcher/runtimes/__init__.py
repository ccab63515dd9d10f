"""The runtimes, which the chart value `runtime` selects: each runs one PaddlePaddle version."""

from __future__ import annotations

from launcher.errors import setting_error
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt, Runtime

__all__ = ["RUNTIMES", "ProcessSpec", "RankAttempt", "Runtime", "load_runtime"]

RUNTIMES = ("fleet", "v1", "collective")


def load_runtime(name: str) -> Runtime:
    """Return the runtime called `name`, importing only its module. Raise `SettingsError` for another name."""
    if name == "v1":
        from launcher.runtimes.v1 import V1Runtime

        return V1Runtime()
    if name == "fleet":
        from launcher.runtimes.fleet import FleetRuntime

        return FleetRuntime()
    if name == "collective":
        from launcher.runtimes.collective import CollectiveRuntime

        return CollectiveRuntime()
    raise setting_error(
        "runtime", name, " or ".join(RUNTIMES), "no such runtime", "Set runtime to one of them"
    )
