"""Parse Kubernetes quantities, such as 250m and 2Gi. Imports no pulumi."""

from __future__ import annotations

import re
from decimal import Decimal

_FACTORS: dict[str, int | Decimal] = {
    "": 1,
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
_FACTORS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_quantity(quantity: object) -> float:
    """Return a quantity in its base unit (cores or bytes): `250m` → 0.25, `2Gi` → 2147483648.0.

    Raises:
        ValueError: `quantity` is not in the notation of Kubernetes.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mkMGT]|[KMGT]i)?", str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity such as 250m or 2Gi")
    return float(Decimal(match[1]) * _FACTORS[match[2] if match[2] is not None else ""])
