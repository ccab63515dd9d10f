"""What the handlers of single types share: clients of the moto server, ARNs, tags, and the base class."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import boto3
from botocore.config import Config

from .account import Account, AwsError
from .wire import Props

# Clients by moto server, region and service: each takes up to half a second to make; threads may share them.
_CLIENTS: dict[tuple[str, str, str], Any] = {}
_MAKING = threading.Lock()


class Cloud:
    """One account in one region, as the provider is configured for it."""

    def __init__(self, account: Account, region: str, project: Path | None = None) -> None:
        self.account = account
        self.region = region
        self.project = project or Path()
        """Where the paths of file assets begin: the program's folder."""

    def client(self, service: str) -> Any:
        """A boto3 client that talks to the moto server."""
        key = (self.account.moto, self.region, service)
        with _MAKING:  # making a session's clients is not thread-safe
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
        """`arn:aws:<service>:<region>:<account>:<resource>`."""
        return f"arn:aws:{service}:{self.region if region else ''}:{self.account.number}:{resource}"


class Handler:
    """How one type is made, read, changed and removed. The base class needs no cloud call: the generic
    model."""

    filled: ClassVar[tuple[str, ...]] = ()  # optional inputs that AWS fills in when a program leaves them out
    volatile: ClassVar[tuple[str, ...]] = ()  # outputs that every change of an input changes too

    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        """Make it; id and the outputs that differ from the inputs."""
        return uuid.uuid4().hex[:17], {}

    def read(self, cloud: Cloud, rid: str, p: Props) -> Props | None:
        """Inputs as the cloud has them now, for refresh and import; raises the cloud's not-found error."""
        return {}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props) -> Props:
        """Change it in place; outputs that changed with it."""
        return {}

    def delete(self, cloud: Cloud, rid: str, p: Props) -> None:
        """Remove it."""

    def owned(self, outputs: Props) -> list[str]:
        """Ids that came into being with it, and go with it."""
        return []


HANDLERS: dict[str, Handler] = {}


def handles(*tokens: str) -> Callable[[type[Handler]], type[Handler]]:
    """Register a handler class for types."""

    def register(cls: type[Handler]) -> type[Handler]:
        for token in tokens:
            HANDLERS[token] = cls()
        return cls

    return register


def digest(*parts: object) -> str:
    """17 hexadecimal digits that depend on the parts alone."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:17]


def tag_list(tags: Props | None, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """Tags as most calls want them."""
    return [{key: name, value: text} for name, text in (tags or {}).items()]


def tag_map(tags: list[dict[str, str]] | None, key: str = "Key", value: str = "Value") -> dict[str, str]:
    """The inverse of `tag_list`, without AWS's own tags."""
    return {tag[key]: tag[value] for tag in tags or [] if not tag[key].startswith("aws:")}


def tag_changes(old: Props, new: Props) -> tuple[dict[str, str], list[str]]:
    """Tags to set and tag names to remove."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    return {k: v for k, v in after.items() if before.get(k) != v}, [k for k in before if k not in after]


def pick(p: Props, **names: str) -> Props:
    """Call arguments from inputs that are given: `pick(p, VpcId="vpcId")`."""
    return {argument: p[name] for argument, name in names.items() if p.get(name) is not None}


__all__ = [
    "HANDLERS",
    "AwsError",
    "Cloud",
    "Handler",
    "digest",
    "handles",
    "pick",
    "tag_changes",
    "tag_list",
    "tag_map",
]
