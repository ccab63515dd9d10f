"""Kubernetes quantities as plain numbers. Pure."""

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


def number(quantity: object) -> float:
    """`250m` → 0.25, `2Gi` → 2147483648.0, `1` → 1.0; the unit is the caller's (cores or bytes).

    Raises:
        ValueError: `quantity` is not written as Kubernetes writes quantities.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mkMGT]|[KMGT]i)?", str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is no quantity such as 250m or 2Gi")
    return float(Decimal(match[1]) * _FACTORS[match[2] if match[2] is not None else ""])
