"""Calls of provider functions for resources that may not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

# Texts of the provider's errors for a resource that does not exist; these errors have no types.
_NOT_FOUND = re.compile(
    r"not.?found|no ?such|couldn't find|empty result|does not exist|is Pending", re.IGNORECASE
)


def read_if_exists(read: Callable[[str], Found], id_: str) -> Found | None:
    """Return what `read` returns, or None if the resource does not exist. Other errors are raised."""
    try:
        return read(id_)
    except Exception as error:
        if _NOT_FOUND.search(str(error)):
            return None
        raise
