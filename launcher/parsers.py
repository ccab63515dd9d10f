"""From the text of one environment variable to its value. Pure; a refusal is a `BadValueError`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s\\]{0,500})?")
_WEB = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?([/?][!-~]*)?")
_WHOLE = re.compile(r"[+-]?[0-9]+")  # int() would also take "1_000" and " 3"

JOB_NAME_MAX = 45  # Kubernetes' 63 less "-data-", a digest of 8 and the pod's own suffix (DESIGN)

Parser = Callable[[str], Any]


class BadValueError(ValueError):
    """A value that a parser refuses."""

    def __init__(self, limit: str, reason: str, mend: str = "") -> None:
        super().__init__(limit, reason, mend)
        self.limit, self.reason, self.mend = limit, reason, mend


def text(value: str) -> str:
    """Any text, also empty."""
    return value


def filled(value: str) -> str:
    """Text that is not empty."""
    if not value.strip():
        raise BadValueError("a text that is not empty", "nothing was given")
    return value


def whole(low: int, high: int | None = None, why: str = "it counts something") -> Parser:
    """A whole number from `low` up to `high` (both included)."""
    limit = f"a whole number from {low} up" if high is None else f"a whole number from {low} to {high}"

    def parse(value: str) -> int:
        if not _WHOLE.fullmatch(value):
            raise BadValueError(limit, "this is no whole number in decimal digits")
        number = int(value)
        if number < low or (high is not None and number > high):
            raise BadValueError(limit, why)
        return number

    return parse


def number(low: float, high: float, why: str) -> Parser:
    """A decimal number from `low` to `high` (both included)."""

    def parse(value: str) -> float:
        limit = f"a number from {low:g} to {high:g}"
        try:
            found = float(value)
        except ValueError:
            raise BadValueError(limit, "this is no number") from None
        if not low <= found <= high:
            raise BadValueError(limit, why)
        return found

    return parse


def choice(*names: str) -> Parser:
    """One of `names`."""

    def parse(value: str) -> str:
        if value not in names:
            raise BadValueError("one of " + ", ".join(names), "nothing else is known")
        return value

    return parse


def flag(value: str) -> bool:
    """`true` or `false`."""
    if value not in ("true", "false"):
        raise BadValueError("true or false", "it is a yes or no")
    return value == "true"


def dns_label(value: str) -> str:
    """A name that Kubernetes and DNS take."""
    if not _DNS_LABEL.fullmatch(value) or len(value) > 63:
        raise BadValueError(
            "a DNS label (a-z, 0-9 and -, at most 63 characters, no - at either end)",
            "it becomes a name in DNS",
        )
    return value


def job_name(value: str) -> str:
    """A DNS label that leaves room for the digest behind it; also the folder's name on the storage."""
    if not _DNS_LABEL.fullmatch(value) or len(value) > JOB_NAME_MAX:
        raise BadValueError(
            f"a DNS label of at most {JOB_NAME_MAX} characters (a-z, 0-9 and -, no - at either end)",
            "the names of the Jobs and their pods are made of it and must stay below 63 characters",
        )
    return value


def folder_name(value: str) -> str:
    """One plain folder or file name."""
    if not _FOLDER.fullmatch(value):
        raise BadValueError(
            "one plain name (letters, digits, '.', '_', '-', no '/')",
            "it is joined to a path on the shared storage",
        )
    return value


def absolute(value: str) -> Path:
    """An absolute path without `..`."""
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts:
        raise BadValueError("an absolute path without '..'", "it names a place in the pod")
    return path


def export_to(value: str) -> str:
    """Empty, or `s3://BUCKET/PREFIX`; a slash at the end is dropped."""
    mend = "Set training.exportTo to a bucket and a folder in it, or leave it empty"
    return (
        _s3(value, "s3://BUCKET/PREFIX, or empty", "the launcher exports to buckets only", mend)
        if value
        else ""
    )


def init_from(value: str) -> str:
    """Empty, a run's folder relative to JOB_PATH, or `s3://BUCKET/PREFIX`; a slash at the end is dropped."""
    limit = "a run's folder on the storage such as JOB/output or JOB/runs/RUN, s3://BUCKET/PREFIX, or empty"
    mend = "Name the folder as it lies below the shared storage's root, or the run's folder of an export"
    if value.startswith("s3:"):
        found = _s3(value, limit, "an export lies in a bucket", mend)
        if found.count("/") < 3:
            raise BadValueError(limit, "a whole bucket is no run", mend)
        return found
    if value and not all(_FOLDER.fullmatch(part) for part in value.removesuffix("/").split("/")):
        raise BadValueError(
            limit, "it is joined to the shared storage's root, so it has neither '/' in front nor '..'", mend
        )
    return value.removesuffix("/")


def _s3(value: str, limit: str, why: str, mend: str) -> str:
    match = _S3.fullmatch(value)
    if match is None:
        raise BadValueError(limit, f"{why}, whose names have 3 to 63 of a-z, 0-9, . and -", mend)
    parts = (match[1] or "").strip("/").split("/")
    if any(part in (".", "..") or (not part and len(parts) > 1) for part in parts):
        raise BadValueError(limit, "a prefix with '//', '.' or '..' in it names no folder", mend)
    return value.rstrip("/")


def web_address(value: str) -> str:
    """`http://…` or `https://…`, without the line end that a Secret made from a file has."""
    value = value.strip()
    if not _WEB.fullmatch(value):
        raise BadValueError(
            "http://HOST/… or https://HOST/…, without a user and password in it", "messages are posted there"
        )
    return value


def sha256(value: str) -> str:
    """Empty, or 64 hex digits (upper case is lowered)."""
    if value and not _SHA256.fullmatch(value.lower()):
        raise BadValueError("empty or 64 hex digits", "it is compared with the source's sha256")
    return value.lower()


def delimiter(value: str) -> str:
    r"""One character, or the two characters `\t` for a tab."""
    value = "\t" if value == "\\t" else value
    if len(value) != 1 or value in '\r\n"':
        raise BadValueError(
            r"one character, or \t for a tab, and neither a quote nor a line end",
            "fields are cut at it",
        )
    return value


def encoding(value: str) -> str:
    """A text encoding that Python knows."""
    import codecs

    try:
        codecs.lookup(value)
    except LookupError:
        raise BadValueError("a text encoding such as utf-8 or latin-1", "no such encoding is known") from None
    return value


def _array(value: str, limit: str) -> list[Any]:
    try:
        items = json.loads(value)
    except ValueError:
        raise BadValueError(limit, "this is no JSON") from None
    if not isinstance(items, list):
        raise BadValueError(limit, "this JSON is no array")
    return items


def texts(value: str) -> tuple[str, ...]:
    """A JSON array of texts."""
    limit = "a JSON array of texts"
    items = _array(value, limit)
    if not all(isinstance(item, str) and item for item in items):
        raise BadValueError(limit, "each item must be a text that is not empty")
    return tuple(items)


def columns(value: str) -> tuple[str | int, ...]:
    """A JSON array of column names or of indexes from 0."""
    limit = "a JSON array of column names or of indexes from 0"
    items = _array(value, limit)
    for item in items:
        good = (isinstance(item, str) and item) or (
            isinstance(item, int) and not isinstance(item, bool) and item >= 0
        )
        if not good:
            raise BadValueError(limit, f"the item {item!r} is neither")
    return tuple(items)


def arguments(value: str) -> tuple[str, ...]:
    """A JSON array of `--key=value` (or bare `--key`) arguments."""
    limit = "a JSON array of arguments like --key=value"
    items = _array(value, limit)
    for item in items:
        if not isinstance(item, str) or not re.fullmatch(r"--[A-Za-z][\w.-]*(=.*)?", item, re.DOTALL):
            raise BadValueError(limit, f"the item {item!r} has another form")
    keys = [item.split("=", 1)[0] for item in items]
    for key in keys:
        if keys.count(key) > 1:
            raise BadValueError(limit, f"{key} is there twice, and only one of them would count")
    return tuple(items)
