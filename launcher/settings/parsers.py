"""Parsers of settings whose type alone does not say which values are valid.

Each parser takes a value of the settings document, or the text of a variable, and returns the setting. A parser raises
`BadValueError` for a value that it rejects. All parsers are pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Parser = Callable[[Any], Any]


class BadValueError(ValueError):
    """A parser rejects a value.

    Attributes:
        limit: description of valid values; follows the words `but must be` in the message.
        reason: why the value is rejected.
    """

    def __init__(self, limit: str, reason: str) -> None:
        super().__init__(limit, reason)
        self.limit, self.reason = limit, reason


def count(value: Any) -> int:
    """Return an integer of at least 1."""
    if not re.fullmatch(r"0*[1-9][0-9]*", str(value)):
        raise BadValueError("an integer of at least 1", "it is a count")
    return int(value)


def choice(*names: str) -> Parser:
    """Return a parser that accepts exactly these `names`."""

    def parse(value: Any) -> str:
        if value not in names:
            raise BadValueError("one of " + ", ".join(names), "other values are not supported")
        return str(value)

    return parse


def program_file(value: str) -> str:
    """Return the FILE of a program that is given as `FOLDER/FILE`; `trainer_config.py` if it is given as `FOLDER`."""
    return value.partition("/")[2] or "trainer_config.py"


def address(value: str) -> str:
    """Return an address without white space at its ends: a value of a Secret may end with a line end."""
    return value.strip()


def folder(value: str) -> str:
    """Return a path or an address without a slash at its end."""
    return value.rstrip("/")


def sha256(value: str) -> str:
    """Return the hex digits of a sha256 in lower case."""
    return value.lower()


def web_address(value: str) -> str:
    """Return an http:// or https:// address without white space at its ends; reject any other text.

    A Secret that is made from a file often has a line end.
    """
    form = r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?([/?][!-~]*)?"
    if not re.fullmatch(form, value.strip()):
        limit = "http://HOST/… or https://HOST/…, without a user and password in it"
        raise BadValueError(limit, "messages are posted there")
    return value.strip()


def secret_key(value: Mapping[str, str]) -> str:
    """Return NAME/KEY of a reference `{name, key}` to a key of a Secret; empty if the name is empty."""
    return f"{value['name']}/{value['key']}" if value.get("name") else ""


def delimiter(value: Any) -> str:
    r"""Return the text if it is one character, but no quote or line end; the two characters `\t` become a tab."""
    found = "\t" if value == "\\t" else str(value)
    if len(found) != 1 or found in '\r\n"':
        raise BadValueError(
            r"one character, or \t for a tab, but not a quote or a line end",
            "the value separates the fields of a csv record",
        )
    return found


def encoding(value: Any) -> str:
    """Return the text if Python has a text encoding with this name."""
    try:
        "".encode(value)  # unlike codecs.lookup, this rejects codecs that are not for text, such as hex
    # TypeError: no text. UnicodeError: the codec `undefined`, which encodes nothing.
    except (LookupError, UnicodeError, TypeError):
        limit = "a text encoding such as utf-8 or latin-1"
        raise BadValueError(limit, "Python has no encoding with this name") from None
    return str(value)
