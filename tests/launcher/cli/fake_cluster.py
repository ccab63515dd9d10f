"""A cluster in memory, with the methods of `launcher.cli.cluster_api.Cluster` that commands call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from launcher.cli.cluster_api import ConflictError, Labels
from launcher.cli.errors import CliError
from launcher.cli.storage import folder_storage

from .conftest import RUN_JSON

BASE = "storage: {type: hostPath, hostPath: {path: /volume}}"
"""The values of a release that describe the cluster, as YAML."""
Thing = dict[str, Any]


class FakeCluster:
    """Objects by kind; pods that are created run at once, and their commands run on this machine."""

    namespace, name, context = "paddle", "context test", "test"
    options = kubeconfig_options = ()
    has_hidden_namespaces = False

    def __init__(self, root: Path | None = None) -> None:
        """`root` is the folder that all pods mount; None: their commands fail."""
        self.root = root
        self.config_maps: dict[str, Thing] = {}
        self.values: dict[str, Thing] = {}
        """The values given to each release."""
        self.jobs: list[Thing] = []
        self.pods: list[Thing] = []
        self.claims: dict[str, str] = {}
        """The release of each claim."""
        self.leases: dict[str, Thing] = {}
        self.created: dict[str, Thing] = {}
        """Pods by name."""
        self.deleted: list[str] = []
        self.events: list[Thing] = []
        self.executed_in: list[str] = []
        """The pods in which commands ran."""
        self.suspended: list[tuple[str, bool]] = []

    def add_release(
        self, release: str = "paddle-training", namespace: str = "paddle", base: str = BASE, **run_json: Any
    ) -> None:
        """Add a release, or replace its values; its run is RUN_JSON with the changes of `run_json`.

        `base` are the values that describe the cluster, as YAML.
        """
        values = yaml.safe_load(base)
        about = {"clusterValues": [*values], "storage": values.get("storage")}
        run = {**RUN_JSON, **about, **({"jobPath": str(self.root)} if self.root else {}), **run_json}
        self.values[release] = values
        labels = {"app.kubernetes.io/instance": release}
        metadata = {"name": f"{release}-run", "namespace": namespace, "labels": labels}
        self.config_maps[release] = {"metadata": metadata, "data": {"run.json": json.dumps(run)}}
        self.claims[run["claim"]] = release

    def list_in_all_namespaces(self, kind: str, labels: Labels | None = None) -> list[Thing]:
        if kind == "persistent_volume_claim":
            return [
                {"metadata": {"name": claim, "labels": {"app.kubernetes.io/instance": release}}}
                for claim, release in self.claims.items()
            ]
        return {"config_map": [*self.config_maps.values()], "job": self.jobs, "pod": self.pods}[kind]

    def set_storage(self, release: str, storage: str) -> None:
        """Change the storage in a release's ConfigMap; `storage` is YAML such as BASE."""
        data = self.config_maps[release]["data"]
        known = json.loads(data["run.json"]) if data["run.json"] != "{" else {}
        data["run.json"] = json.dumps({**known, **yaml.safe_load(storage)})

    def list_objects(self, kind: str, labels: Labels | None = None) -> list[Thing]:
        is_reader = labels and "reader" in labels.values()
        found = [] if is_reader else self.list_in_all_namespaces(kind)
        return [one for one in found if one["metadata"].get("namespace", self.namespace) == self.namespace]

    def find(self, kind: str, name: str) -> Thing | None:
        if kind == "config_map":
            return self.config_maps.get(name.removesuffix("-run"))
        if kind == "persistent_volume_claim":
            return {"status": {"phase": "Bound"}} if name in self.claims else None
        if kind == "lease":
            return self.leases.get(name)
        if kind == "job":
            return next((job for job in self.jobs if job["metadata"]["name"] == name), None)
        return {"metadata": {}, "status": {"phase": "Running"}} if name in self.created else None

    def list_events(self, name: str = "", reason: str = "") -> list[Thing]:
        return [event for event in self.events if event["reason"] == reason]

    def create(self, kind: str, thing: Thing) -> Thing:
        name = thing["metadata"]["name"]
        if kind == "pod":
            self.created[name] = thing
            return thing
        if kind == "job":
            assert name not in [job["metadata"]["name"] for job in self.jobs]
            self.jobs.append(thing)
            return thing
        if name in self.leases:
            raise ConflictError(name)
        self.leases[name] = {**thing, "metadata": {"name": name, "resourceVersion": "1"}}
        return self.leases[name]

    def patch(self, kind: str, name: str, changes: Thing, action: str) -> Thing:
        lease = self.leases[name]
        version = str(int(lease["metadata"]["resourceVersion"]) + 1)
        metadata = {"name": name, "resourceVersion": version}
        self.leases[name] = {"metadata": metadata, "spec": {**lease["spec"], **changes["spec"]}}
        return self.leases[name]

    def delete(
        self, kind: str, name: str, version: str | None = None, grace_seconds: int | None = None
    ) -> None:
        if kind == "lease":
            assert self.leases[name]["metadata"]["resourceVersion"] == version
            del self.leases[name]
        else:
            self.deleted.append(name)
            self.jobs = [job for job in self.jobs if job["metadata"]["name"] != name]

    def suspend_job(self, name: str, suspended: bool) -> None:
        self.suspended.append((name, suspended))
        for job in self.jobs:
            if job["metadata"]["name"] == name:
                job["spec"]["suspend"] = suspended

    def exec(self, pod: str, container: str, argv: list[str], stdin: Any, idle_seconds: float) -> Any:
        self.executed_in.append(pod)
        if self.root is None:
            raise CliError("the storage cannot be read here")
        return folder_storage(self.root).start(argv[4:], stdin, idle_seconds)
