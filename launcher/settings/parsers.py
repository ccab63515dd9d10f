"""Parsers of settings: each takes a value of the settings document, or the text of a variable, and returns the setting.

A parser raises `BadValueError` for a value that it rejects. All parsers are pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s\\]{0,500})?")

JOB_NAME_MAX = 45  # 63 characters of a DNS label without "-data-", a digest of 8 and the pod's own suffix
PORT_MAX = 65535

Parser = Callable[[Any], Any]


class BadValueError(ValueError):
    """A parser rejects a value.

    Attributes:
        limit: description of valid values; follows the words `but must be` in the message.
        reason: why the value is rejected.
        fix: the action for the user; empty for `Set KEY to such a value`.
    """

    def __init__(self, limit: str, reason: str, fix: str = "") -> None:
        super().__init__(limit, reason, fix)
        self.limit, self.reason, self.fix = limit, reason, fix


def text(value: Any) -> str:
    """Return a text unchanged, also an empty one."""
    if not isinstance(value, str):
        raise BadValueError("a text", "the value is of another type")
    return value


def matching(pattern: str, limit: str, why: str) -> Parser:
    """Return a parser of texts that match the regular expression `pattern`; `why` is the reason in the message."""
    expression = re.compile(pattern)

    def parse(value: Any) -> str:
        if not expression.fullmatch(text(value)):
            raise BadValueError(limit, why)
        return str(value)

    return parse


def integer(low: int, high: int | None = None, why: str = "it is a count") -> Parser:
    """Return a parser of integers from `low` to `high`, both included; `why` is the reason in the message."""
    limit = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"

    def parse(value: Any) -> int:
        # int() would also take True, 1.5, "1_000" and " 3".
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]{1,19}", str(value)):
            raise BadValueError(limit, "the value is not an integer of at most 19 decimal digits")
        number = int(value)
        if number < low or (high is not None and number > high):
            raise BadValueError(limit, why)
        return number

    return parse


def number(low: float, high: float, why: str) -> Parser:
    """Return a parser of numbers from `low` to `high`, both included; `why` is the reason."""
    limit = f"a number from {low:g} to {high:g}"

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValueError(limit, "the value is not a number")
        if not low <= value <= high:
            raise BadValueError(limit, why)
        return float(value)

    return parse


def choice(*names: str) -> Parser:
    """Return a parser that accepts exactly these `names`."""

    def parse(value: Any) -> str:
        if value not in names:
            raise BadValueError("one of " + ", ".join(names), "other values are not supported")
        return str(value)

    return parse


def flag(value: Any) -> bool:
    """Return True or False; reject any other value."""
    if not isinstance(value, bool):
        raise BadValueError("true or false", "the setting is a boolean")
    return value


def _label(longest: int, why: str) -> Parser:
    """Return a parser of DNS labels (RFC 1123) of at most `longest` characters; `why` is the reason in the message."""
    limit = f"a DNS label of at most {longest} characters (a-z, 0-9 and -, no - at either end)"
    return matching(rf"(?=.{{1,{longest}}}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?", limit, why)


filled = matching(r"(?s).*\S.*", "a text that is not empty", "it is empty")
dns_label = _label(63, "the value becomes a name in DNS")
job_name = _label(JOB_NAME_MAX, "the names of Jobs and pods contain it and have at most 63 characters")
"""Parse a name that leaves room for the digest in the names of Jobs and pods."""
folder_name = matching(
    _FOLDER.pattern,
    "a file name (letters, digits, '.', '_', '-', no '/')",
    "the value becomes part of a path on the shared storage",
)
quoting = choice("minimal", "none")
"""Parse the names that pandas and Python's csv module have for what quotes mean."""


def program_file(value: Any) -> str:
    """Return the file of a program `FOLDER/FILE`; `trainer_config.py` for a folder."""
    return str(folder_name(text(value).partition("/")[2] or "trainer_config.py"))


def address(value: Any) -> str:
    """Return an address without the end of line that a key of a Secret may have; reject a blank text."""
    return str(filled(value)).strip()


def absolute(value: Any) -> Path:
    """Return the text as a path; reject a relative path, or one with `..`."""
    path = Path(text(value))
    if not path.is_absolute() or ".." in path.parts:
        raise BadValueError("an absolute path without '..'", "pods need a full path")
    return path


def export_to(value: Any) -> str:
    """Return `s3://BUCKET/PREFIX` without a slash at its end; an empty text stays empty."""
    fix = "Set training.exportTo to a bucket and a folder in it, or leave it empty"
    return _s3(value, "s3://BUCKET/PREFIX, or empty", "exports go to S3 only", fix) if text(value) else ""


def init_model(value: Any) -> str:
    """Return an empty text, `previous`, a run's folder relative to JOB_PATH, or `s3://BUCKET/PREFIX`.

    A slash at the end is removed.
    """
    limit = "a run's folder on the storage such as JOB/output or JOB/runs/RUN, s3://BUCKET/PREFIX, previous, or empty"
    fix = "Set the path below the shared storage's root, or the run's folder of an export"
    folder = text(value).removesuffix("/")
    if folder.startswith("s3:"):
        found = _s3(value, limit, "an export is in a bucket", fix)
        if found.count("/") < 3:
            reason = "the address has no folder after the bucket, and each exported run has its own folder"
            raise BadValueError(limit, reason, fix)
        return found
    if folder and not all(_FOLDER.fullmatch(part) for part in folder.split("/")):
        reason = (
            "the path is relative to the shared storage's root, without '/' at its start and without '..'"
        )
        raise BadValueError(limit, reason, fix)
    return folder


def _s3(value: Any, limit: str, why: str, fix: str) -> str:
    match = _S3.fullmatch(text(value))
    if match is None:
        reason = f"{why}, and bucket names have 3 to 63 characters of a-z, 0-9, . and -"
        raise BadValueError(limit, reason, fix)
    parts = (match[1] or "").strip("/").split("/")
    if any(part in (".", "..") or (not part and len(parts) > 1) for part in parts):
        reason = "a prefix with an empty part ('//') or with a part '.' or '..' is not a folder"
        raise BadValueError(limit, reason, fix)
    return match[0].rstrip("/")


_web_address = matching(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?([/?][!-~]*)?",
    "http://HOST/… or https://HOST/…, without a user and password in it",
    "messages are posted there",
)


def web_address(value: Any) -> str:
    """Return an http:// or https:// address without white space at its ends; reject any other text.

    A Secret that is made from a file often has a line end.
    """
    return str(_web_address(text(value).strip()))


def sha256(value: Any) -> str:
    """Return 64 hex digits in lower case; an empty text stays empty."""
    digits = text(value).lower()
    if not re.fullmatch(r"([0-9a-f]{64})?", digits):
        raise BadValueError("empty or 64 hex digits", "the value is compared with the source's sha256")
    return digits


def secret_key(value: Any) -> str:
    """Return NAME/KEY of a reference `{name, key}` to a key of a Secret; empty if the name is empty."""
    if not isinstance(value, dict):
        raise BadValueError("a name and a key", "the value refers to a Secret")
    return f"{value['name']}/{value['key']}" if value.get("name") else ""


def delimiter(value: Any) -> str:
    r"""Return the text if it is one character; the two characters `\t` become a tab."""
    found = "\t" if value == "\\t" else text(value)
    if len(found) != 1 or found in '\r\n"':
        raise BadValueError(
            r"one character, or \t for a tab, but not a quote or a line end",
            "the value separates the fields of a csv record",
        )
    return found


def encoding(value: Any) -> str:
    """Return the text if Python has a text encoding with this name."""
    try:
        "".encode(text(value))  # unlike codecs.lookup, this rejects codecs that are not for text, such as hex
    except (LookupError, UnicodeError):  # UnicodeError: the codec `undefined`, which encodes nothing
        limit = "a text encoding such as utf-8 or latin-1"
        raise BadValueError(limit, "Python has no encoding with this name") from None
    return str(value)


def _array(of: str, is_item: Callable[[Any], object], item: str) -> Parser:
    """Return a parser of arrays of `of`. `is_item` accepts an item; `item` describes a good one."""

    def parse(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise BadValueError(f"an array of {of}", "the value is not an array")
        for each in value:
            if not is_item(each):
                raise BadValueError(f"an array of {of}", f"the item {each!r} is not {item}")
        return tuple(value)

    return parse


def _is_index(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


texts = _array("texts", lambda item: isinstance(item, str) and item, "a text that is not empty")
columns = _array(
    "column names or of indexes from 0",
    lambda item: (isinstance(item, str) and item) or _is_index(item),
    "a name (a text that is not empty) or an index (an integer from 0)",
)
_arguments = _array(
    "arguments like --key=value",
    lambda item: isinstance(item, str) and re.fullmatch(r"(?s)--[A-Za-z][\w.-]*(=.*)?", item),
    "of the form --key=value or --key",
)


def arguments(value: Any) -> tuple[str, ...]:
    """Return the items of an array of `--key=value` (or `--key`) arguments; reject duplicate keys."""
    items: tuple[str, ...] = _arguments(value)
    keys = [item.split("=", 1)[0] for item in items]
    for key in keys:
        if keys.count(key) > 1:
            reason = f"{key} is a duplicate, and only one of them would be used"
            raise BadValueError("an array of arguments like --key=value", reason)
    return items
