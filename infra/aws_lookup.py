"""Call the AWS provider's read functions (`aws.eks.get_cluster`) for resources that may not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

# Texts of the provider's errors for a resource that does not exist; these errors have no types.
_NOT_FOUND = re.compile(
    r"not.?found|no ?such|no matching .* found|couldn't find|empty result|does not exist|is Pending",
    re.IGNORECASE,
)


def read_if_exists(read: Callable[[str], Found], id_: str) -> Found | None:
    """Return `read(id_)`, or None if it raises because the resource does not exist; raise all other errors."""
    try:
        return read(id_)
    except Exception as error:
        if _NOT_FOUND.search(str(error)):
            return None
        raise
