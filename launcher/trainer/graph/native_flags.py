"""Set flags of Paddle's C++ library that no function of Paddle sets, in the memory of this process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import paddle

_PADDLE_FLAGS = "_ZN6paddle11distributed12paddle_flags"
_MERGE_LIMITS = (
    f"{_PADDLE_FLAGS}36FLAGS_pserver_push_dense_merge_limitE",
    f"{_PADDLE_FLAGS}37FLAGS_pserver_push_sparse_merge_limitE",
)
_MAX_BODY_SIZE = "_ZN4brpc5fLU6419FLAGS_max_body_sizeE"


def _set(symbol: str, kind: type[ctypes.c_int32 | ctypes.c_uint64], value: int) -> bool:
    """Set the variable with this symbol; return False if this build of Paddle does not export it."""
    library = Path(paddle.base.__file__).parent / "libpaddle.so"
    try:
        kind.in_dll(ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_NOW), symbol).value = value
    except (OSError, ValueError):
        return False
    return True


def set_message_limit(limit: int) -> bool:
    """Let this process send and receive messages of up to `limit` bytes; return False if that is impossible."""
    return _set(_MAX_BODY_SIZE, ctypes.c_uint64, limit)


def push_each_gradient() -> None:
    """Let this trainer push each gradient at once, if that is possible. Call it before fleet.init_worker().

    By default Paddle merges the gradients of up to 12 batches, and pushes fewer only while `client_flush` runs.
    If the pushing thread is late then, as on a busy machine, the gradient stays here and counts for the next step.
    """
    for symbol in _MERGE_LIMITS:
        _set(symbol, ctypes.c_int32, 0)
