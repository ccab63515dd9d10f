"""What is made once for all processes of one run of pytest."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Made]) -> Made:
    """What the first process that asks for `name` makes; the others wait for it. What fails is made again."""
    base = factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}.pickle"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(make()))
        made: Made = pickle.loads(kept.read_bytes())  # noqa: S301 - our own
        return made
