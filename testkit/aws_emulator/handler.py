"""Handlers of resource types: their base class, those of the table moto_calls.yaml, and helpers."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import jmespath
import yaml
from botocore.config import Config

from testkit.aws_emulator.account import Account, AwsError
from testkit.aws_emulator.property_values import Props

# Clients by moto server, region and service. Creating one takes up to half a second; threads may share them.
_CLIENTS: dict[tuple[str, str, str], Any] = {}
_MAKING = threading.Lock()


class MotoCloud:
    """One account in one region, with clients of its moto server."""

    def __init__(self, account: Account, region: str, project: Path | None = None) -> None:
        self.account = account
        self.region = region
        self.project = project or Path()
        """Where the paths of file assets begin: the program's folder."""

    def client(self, service: str) -> Any:
        """Return a boto3 client of the moto server."""
        key = (self.account.moto, self.region, service)
        with _MAKING:  # creating clients of a session is not thread-safe
            if key not in _CLIENTS:
                _CLIENTS[key] = boto3.client(
                    service,
                    region_name=self.region,
                    endpoint_url=self.account.moto,
                    aws_access_key_id="emulator",
                    aws_secret_access_key="emulator",
                    config=Config(
                        retries={"total_max_attempts": 1},
                        connect_timeout=10,
                        read_timeout=60,
                        max_pool_connections=32,
                    ),
                )
            return _CLIENTS[key]

    def arn(self, service: str, resource: str, *, region: bool = True) -> str:
        """Return `arn:aws:<service>:<region>:<account>:<resource>`."""
        return f"arn:aws:{service}:{self.region if region else ''}:{self.account.number}:{resource}"


class Handler:
    """Create, read, update and delete one resource type.

    The base class makes no call to moto: it is the generic model.
    """

    volatile: tuple[str, ...] = ()  # outputs that change with every change of an input
    token = ""  # the Pulumi type

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        """Create the resource without its tags; return its id and the outputs that differ from the inputs."""
        return uuid.uuid4().hex[:17], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        """Return the present inputs of the resource, for refresh and import; None if it does not exist.

        Raises:
            ClientError, AwsError: the resource does not exist, or another error of the cloud.
        """
        return {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        """Change everything but the tags in place; return the outputs that changed."""
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        """Delete the resource."""

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        """Add or change tags."""

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        """Remove tags."""

    def owned(self, outputs: Props) -> list[str]:
        """Return the ids of things that AWS creates and deletes together with the resource."""
        return []


def authorize(cloud: MotoCloud, action: str, role: str = "", resource: str = "", **context: str) -> None:
    """Raise if the caller may not perform an action of IAM on a resource, or on an existing role with its boundary."""
    if role:
        found = cloud.client("iam").get_role(RoleName=role)["Role"]
        resource = found["Arn"]
        if boundary := found.get("PermissionsBoundary"):
            context["PermissionsBoundary"] = boundary["PermissionsBoundaryArn"]
    cloud.account.authorize([f"iam:{action}"], resource, **context)


def run_calls(cloud: MotoCloud, calls: list[Props], values: Props) -> Props:
    """Make the calls of a row of moto_calls.yaml; return `values` with the answers."""
    given = {"region": cloud.region, "account": cloud.account.number, "token": uuid.uuid4().hex}
    values = values | given | {"answers": []}
    for call in calls:
        found = {name: jmespath.search(text, values) for name, text in call.items() if name != "call"}
        if not found.pop("when", True):
            continue
        service, method = call["call"].split(".")
        arguments = {name: value for name, value in found.items() if value is not None}
        if service == "authorize":
            authorize(cloud, method, **arguments)
            continue
        values["answer"] = getattr(cloud.client(service), method)(**arguments)
        values["answers"].append(values["answer"])
    return values


class TableHandler(Handler):
    """A type whose calls are a row of moto_calls.yaml, which explains the fields."""

    def __init__(self, row: Props) -> None:
        self.row = row
        self.volatile = tuple(row.get("volatile", ()))

    def _run(self, cloud: MotoCloud, operation: str, values: Props) -> Props:
        parts = values.get("id", "").split(self.row.get("separator", ":"), 1)
        return run_calls(cloud, self.row.get(operation, []), values | {"parts": parts})

    def _search(self, field: str, values: Props, default: Any) -> Any:
        return jmespath.search(self.row[field], values) if field in self.row else default

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        if "exists" in self.row and self.read(cloud, "", p) is not None:
            raise AwsError(jmespath.search(self.row["exists"], p))
        values = self._run(cloud, "create", p)
        values["id"] = jmespath.search(self.row["id"], values)
        return values["id"], self._search("outputs", values, {})

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        values = self._run(cloud, "read", p | {"id": rid})
        if not self._search("present", values, True):
            return None
        seen = self._search("seen", values, {})
        if isinstance(seen.get("tags", {}), list | None):
            seen["tags"] = tag_map(seen["tags"])
        return {name: value for name, value in seen.items() if value is not None}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        values = self._run(cloud, "update", new | {"id": rid, "old": old})
        return self._search("updated", values, {})

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self._run(cloud, "delete", p | {"id": rid})

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        self._run(cloud, "tag", {"id": rid, "tags": tag_list(tags), "tagMap": tags})

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        self._run(cloud, "untag", {"id": rid, "keys": keys})


TABLE: Props = yaml.safe_load(Path(__file__).with_name("moto_calls.yaml").read_text(encoding="utf-8"))
HANDLERS: dict[str, Handler] = {
    kind: TableHandler(row) for kind, row in TABLE.items() if "id" in row and kind[0] != "."
}


def register_handler(*tokens: str) -> Callable[[type[Handler]], type[Handler]]:
    """Register a handler class for resource types; a subclass of `TableHandler` gets the row of each type."""

    def register(cls: type[Handler]) -> type[Handler]:
        for token in tokens:
            HANDLERS[token] = cls(TABLE[token]) if issubclass(cls, TableHandler) else cls()
            HANDLERS[token].token = token
        return cls

    return register


def handler_of(kind: str) -> Handler:
    """Return the handler of a resource type; a type without one has the generic model."""
    return HANDLERS.get(kind, Handler())


def digest(*parts: object) -> str:
    """Return 17 hexadecimal digits that depend only on the parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:17]


def tag_list(tags: Props) -> list[dict[str, str]]:
    """Return tags as most API calls take them: `[{"Key": …, "Value": …}]`."""
    return [{"Key": name, "Value": text} for name, text in tags.items()]


def tag_map(tags: list[dict[str, str]] | None) -> dict[str, str]:
    """Return tags by key from a list as `tag_list` returns it, without tags that AWS itself sets (`aws:…`)."""
    return {tag["Key"]: tag["Value"] for tag in tags or [] if not tag["Key"].startswith("aws:")}


def pick_arguments(p: Props, **names: str) -> Props:
    """Return arguments for a boto3 call from the inputs `p`: `pick_arguments(p, VpcId="vpcId")`."""
    return {argument: p[name] for argument, name in names.items() if p.get(name) is not None}
