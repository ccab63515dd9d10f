"""Where rank 0 is, and what lets a rank in. Its pod may be replaced at any time: this is asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.gang.network import Network
from launcher.layout import Output
from launcher.settings import TrainSettings
from launcher.storage.lock import holder_at

if TYPE_CHECKING:
    from launcher.gang.rank0 import Rank0


def credential(settings: TrainSettings, token: str) -> str:
    """What lets a rank in: that it sees this run's lock, and not that of another run of the same output."""
    return f"{settings.namespace}/{settings.run_id}/{token}"


class Finder:
    """For another rank's link. Both methods may raise OSError or `LauncherError`."""

    def __init__(self, settings: TrainSettings, network: Network) -> None:
        self._settings, self._network = settings, network
        self._lock = Output(settings.layout.output).lock
        self._holder = ""
        """Its address as run.lock has it."""
        self._asked = -1
        self._api: Rank0 | None = None

    def credential(self) -> str | None:
        """As this pod sees it now; None while no rank 0 of this run holds the output."""
        holder, s = holder_at(self._lock), self._settings
        if (holder.get("runId"), holder.get("namespace")) != (s.run_id, s.namespace):
            return None
        self._holder = str(holder.get("address") or "")
        return credential(s, str(holder.get("token")))

    def locate(self) -> str:
        """The address to try next: for a while two pods of rank 0 may live, and DNS may be away."""
        s = self._settings
        if s.rendezvous == "api":
            if self._api is None:
                from launcher.gang.rank0 import Rank0
                from launcher.podapi import PodApi

                self._api = Rank0(s, PodApi(s.environ, s.namespace))
            return self._api.address()
        name = f"{s.k8s_job}-0.{s.service}"
        found = [address for address in self._network.resolve(name) if ":" not in address]
        found += [self._holder] if self._holder and self._holder not in found else []
        if not found:
            raise OSError(f"{name} does not resolve (rank 0's pod is not scheduled, or DNS does not answer)")
        self._asked += 1
        return found[self._asked % len(found)]

    def close(self) -> None:
        """Asks the API server no more."""
        if self._api is not None:
            self._api.close()
