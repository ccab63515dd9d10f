"""The runtimes, by the name of the value `runtime`."""

from __future__ import annotations

from launcher.errors import SettingsError, setting
from launcher.runtimes.base import Gang, ProcessSpec, Runtime

__all__ = ["RUNTIMES", "Gang", "ProcessSpec", "Runtime", "load"]

RUNTIMES = ("fleet", "v1")


def load(name: str) -> Runtime:
    """The runtime of that name; only its own module is imported."""
    if name == "v1":
        from launcher.runtimes.v1 import V1Runtime

        return V1Runtime()
    if name == "fleet":
        from launcher.runtimes.fleet import FleetRuntime

        return FleetRuntime()
    raise SettingsError(
        setting("runtime", name, " or ".join(RUNTIMES), "no such runtime", "Set runtime to one of them")
    )
