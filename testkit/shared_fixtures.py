"""Share the result of a slow fixture, such as a trained model, between the processes of one pytest run."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def create_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Made]) -> Made:
    """Return the result of `make`, which only the first process of a pytest run calls; the others wait for it.

    If `make` raises, the next process calls it again. The result must be picklable.
    """
    base = factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}.pickle"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(make()))
        made: Made = pickle.loads(kept.read_bytes())  # noqa: S301 - our own
        return made
