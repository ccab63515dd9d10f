"""Raise Paddle's limit for messages between trainers and servers, and check that a program stays below it.

brpc, Paddle's network library, drops a message that is too long. The receiver only logs it, and Paddle
continues as if nothing had happened. The limit of 64 MiB is compiled in: some 66,000 ids of width 16 per
batch and server. No function of Paddle sets the limit, so it is set in the memory of trainers and servers, to
brpc's maximum. `push_each_gradient` sets another flag in the same way.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import paddle

from launcher.errors import setting_error
from launcher.trainer.graph.network_builder import BuiltNetwork

DEFAULT_BYTES = 64 << 20
MAX_BYTES = (1 << 31) - 1
MERGED = 12  # async sends the gradients of so many batches in one message (pserver_push_sparse_merge_limit)
_PADDLE_FLAGS = "_ZN6paddle11distributed12paddle_flags"
_MERGE_LIMITS = (
    f"{_PADDLE_FLAGS}36FLAGS_pserver_push_dense_merge_limitE",
    f"{_PADDLE_FLAGS}37FLAGS_pserver_push_sparse_merge_limitE",
)
_MAX_BODY_SIZE = "_ZN4brpc5fLU6419FLAGS_max_body_sizeE"


def _set(symbol: str, kind: type[ctypes.c_int32 | ctypes.c_uint64], value: int) -> bool:
    """Set the variable of Paddle's C++ library with this symbol, in the memory of this process.

    Return False if this build of Paddle does not export it.
    """
    library = Path(paddle.base.__file__).parent / "libpaddle.so"
    try:
        kind.in_dll(ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_NOW), symbol).value = value
    except (OSError, ValueError):
        return False
    return True


def push_each_gradient() -> None:
    """Let this trainer push each gradient at once, if that is possible. Call it before fleet.init_worker().

    By default Paddle merges the gradients of up to 12 batches, and pushes fewer only while `client_flush` runs.
    If the pushing thread is late then, as on a busy machine, the gradient stays here and counts for the next step.
    """
    for symbol in _MERGE_LIMITS:
        _set(symbol, ctypes.c_int32, 0)


def raise_limit(limit: int = MAX_BYTES) -> int:
    """Let this process send and receive messages of up to `limit` bytes; return the limit in bytes.

    If this build of Paddle does not export the variable with the limit, the 64 MiB stay and are returned.
    """
    return limit if _set(_MAX_BODY_SIZE, ctypes.c_uint64, limit) else DEFAULT_BYTES


def check_message_sizes(network: BuiltNetwork, batch_size: int, mode: str, limit: int) -> None:
    """Raise `SettingsError` if a message between a trainer and a server could be longer than `limit` bytes."""
    for table in network.tables:
        row = network.ids[table.name] * (8 + 4 * (table.width + 3)) * (MERGED if mode == "async" else 1)
        if batch_size * row > limit:
            raise setting_error(
                "training.batchSize (PADDLE_LAUNCHER_BATCH_SIZE)",
                batch_size,
                f"at most {limit // row}",
                f"with {network.ids[table.name]} ids per row in the table {table.name} of width "
                f"{table.width}, a message to a server could be longer than {limit} bytes",
                "Set a smaller training.batchSize, or use fewer ids per row in the program",
            )
