"""Parsers of environment variables: each takes the variable's text and returns the value.

A parser raises `BadValueError` for a text that it rejects. All parsers are pure functions.
"""

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
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")  # int() would also take "1_000" and " 3"

JOB_NAME_MAX = 45  # 63 characters of a DNS label without "-data-", a digest of 8 and the pod's own suffix
PORT_MAX = 65535

Parser = Callable[[str], Any]


class BadValueError(ValueError):
    """A parser rejects the text of a variable.

    Attributes:
        limit: description of valid texts; follows the words `but must be` in the message.
        reason: why the text is rejected.
        fix: the action for the user; empty for `Set KEY to such a value`.
    """

    def __init__(self, limit: str, reason: str, fix: str = "") -> None:
        super().__init__(limit, reason, fix)
        self.limit, self.reason, self.fix = limit, reason, fix


def text(value: str) -> str:
    """Return the text unchanged; every text is valid, also an empty one."""
    return value


def filled(value: str) -> str:
    """Return the text unchanged; reject a text that is empty or blank."""
    if not value.strip():
        raise BadValueError("a text that is not empty", "it is empty")
    return value


def address(value: str) -> str:
    """Return an address without the end of line that a key of a Secret may have; reject a blank text."""
    return filled(value).strip()


def integer(low: int, high: int | None = None, why: str = "it is a count") -> Parser:
    """Return a parser of integers from `low` to `high`, both included; `why` is the reason in the message."""
    limit = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"

    def parse(value: str) -> int:
        if not _WHOLE.fullmatch(value):
            raise BadValueError(limit, "the value is not an integer of at most 19 decimal digits")
        number = int(value)
        if number < low or (high is not None and number > high):
            raise BadValueError(limit, why)
        return number

    return parse


def number(low: float, high: float, why: str) -> Parser:
    """Return a parser of decimal numbers from `low` to `high`, both included; `why` is the reason."""

    def parse(value: str) -> float:
        limit = f"a number from {low:g} to {high:g}"
        try:
            found = float(value)
        except ValueError:
            raise BadValueError(limit, "the value is not a number") from None
        if not low <= found <= high:
            raise BadValueError(limit, why)
        return found

    return parse


def choice(*names: str) -> Parser:
    """Return a parser that accepts exactly these `names`."""

    def parse(value: str) -> str:
        if value not in names:
            raise BadValueError("one of " + ", ".join(names), "other values are not supported")
        return value

    return parse


def flag(value: str) -> bool:
    """Return True for `true` and False for `false`; reject any other text."""
    if value not in ("true", "false"):
        raise BadValueError("true or false", "the setting is a boolean")
    return value == "true"


def _label(longest: int, why: str) -> Parser:
    """Return a parser of DNS labels (RFC 1123) of at most `longest` characters; `why` is the reason in the message."""

    def parse(value: str) -> str:
        if not _DNS_LABEL.fullmatch(value) or len(value) > longest:
            limit = f"a DNS label of at most {longest} characters (a-z, 0-9 and -, no - at either end)"
            raise BadValueError(limit, why)
        return value

    return parse


dns_label = _label(63, "the value becomes a name in DNS")
job_name = _label(JOB_NAME_MAX, "the names of Jobs and pods contain it and have at most 63 characters")
"""Parse a name that leaves room for the digest in the names of Jobs and pods."""


def folder_name(value: str) -> str:
    """Return the text if it is the name of one folder or file; reject a path."""
    if not _FOLDER.fullmatch(value):
        raise BadValueError(
            "a file name (letters, digits, '.', '_', '-', no '/')",
            "the value becomes part of a path on the shared storage",
        )
    return value


def absolute(value: str) -> Path:
    """Return the text as a path; reject a relative path, or one with `..`."""
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts:
        raise BadValueError("an absolute path without '..'", "pods need a full path")
    return path


def export_to(value: str) -> str:
    """Return `s3://BUCKET/PREFIX` without a slash at its end; an empty text stays empty."""
    fix = "Set training.exportTo to a bucket and a folder in it, or leave it empty"
    return _s3(value, "s3://BUCKET/PREFIX, or empty", "exports go to S3 only", fix) if value else ""


def init_model(value: str) -> str:
    """Return an empty text, `previous`, a run's folder relative to JOB_PATH, or `s3://BUCKET/PREFIX`.

    A slash at the end is removed.
    """
    limit = "a run's folder on the storage such as JOB/output or JOB/runs/RUN, s3://BUCKET/PREFIX, previous, or empty"
    fix = "Set the path below the shared storage's root, or the run's folder of an export"
    if value.startswith("s3:"):
        found = _s3(value, limit, "an export is in a bucket", fix)
        if found.count("/") < 3:
            raise BadValueError(
                limit,
                "the address has no folder after the bucket, and each exported run has its own folder",
                fix,
            )
        return found
    if value and not all(_FOLDER.fullmatch(part) for part in value.removesuffix("/").split("/")):
        raise BadValueError(
            limit,
            "the path is relative to the shared storage's root, without '/' at its start and without '..'",
            fix,
        )
    return value.removesuffix("/")


def _s3(value: str, limit: str, why: str, fix: str) -> str:
    match = _S3.fullmatch(value)
    if match is None:
        raise BadValueError(
            limit, f"{why}, and bucket names have 3 to 63 characters of a-z, 0-9, . and -", fix
        )
    parts = (match[1] or "").strip("/").split("/")
    if any(part in (".", "..") or (not part and len(parts) > 1) for part in parts):
        raise BadValueError(
            limit, "a prefix with an empty part ('//') or with a part '.' or '..' is not a folder", fix
        )
    return value.rstrip("/")


def web_address(value: str) -> str:
    """Return an http:// or https:// address without white space at its ends; reject any other text.

    A Secret that is made from a file often has a line end.
    """
    value = value.strip()
    if not _WEB.fullmatch(value):
        raise BadValueError(
            "http://HOST/… or https://HOST/…, without a user and password in it", "messages are posted there"
        )
    return value


def sha256(value: str) -> str:
    """Return 64 hex digits in lower case; an empty text stays empty."""
    if value and not _SHA256.fullmatch(value.lower()):
        raise BadValueError("empty or 64 hex digits", "the value is compared with the source's sha256")
    return value.lower()


def delimiter(value: str) -> str:
    r"""Return the text if it is one character; the two characters `\t` become a tab."""
    value = "\t" if value == "\\t" else value
    if len(value) != 1 or value in '\r\n"':
        raise BadValueError(
            r"one character, or \t for a tab, but not a quote or a line end",
            "the value separates the fields of a csv record",
        )
    return value


quoting = choice("minimal", "none")
"""Parse the names that pandas and Python's csv module have for what quotes mean."""


def encoding(value: str) -> str:
    """Return the text if Python has a text encoding with this name."""
    try:
        "".encode(value)  # unlike codecs.lookup, this rejects codecs that are not for text, such as hex
    except (LookupError, UnicodeError):  # the latter: the codec `undefined`, which encodes nothing
        raise BadValueError(
            "a text encoding such as utf-8 or latin-1", "Python has no encoding with this name"
        ) from None
    return value


def _array(value: str, limit: str) -> list[Any]:
    try:
        items = json.loads(value)
    except ValueError:
        raise BadValueError(limit, "the value is not JSON") from None
    if not isinstance(items, list):
        raise BadValueError(limit, "the value is JSON, but not an array")
    return items


def texts(value: str) -> tuple[str, ...]:
    """Return the strings of a JSON array; reject an array with other or empty items."""
    limit = "a JSON array of strings"
    items = _array(value, limit)
    if not all(isinstance(item, str) and item for item in items):
        raise BadValueError(limit, "each item of the array must be a string that is not empty")
    return tuple(items)


def columns(value: str) -> tuple[str | int, ...]:
    """Return the items of a JSON array of column names, or of column indexes that count from 0."""
    limit = "a JSON array of column names or of indexes from 0"
    items = _array(value, limit)
    for item in items:
        good = (isinstance(item, str) and item) or (
            isinstance(item, int) and not isinstance(item, bool) and item >= 0
        )
        if not good:
            raise BadValueError(
                limit,
                f"the item {item!r} is neither a name (a string that is not empty) nor an index (an integer from 0)",
            )
    return tuple(items)


def arguments(value: str) -> tuple[str, ...]:
    """Return the items of a JSON array of `--key=value` (or `--key`) arguments; reject duplicate keys."""
    limit = "a JSON array of arguments like --key=value"
    items = _array(value, limit)
    for item in items:
        if not isinstance(item, str) or not re.fullmatch(r"--[A-Za-z][\w.-]*(=.*)?", item, re.DOTALL):
            raise BadValueError(limit, f"the item {item!r} does not have the form --key=value or --key")
    keys = [item.split("=", 1)[0] for item in items]
    for key in keys:
        if keys.count(key) > 1:
            raise BadValueError(limit, f"{key} is a duplicate, and only one of them would be used")
    return tuple(items)
