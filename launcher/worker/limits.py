"""How long a message between a trainer and a server may be.

brpc, which carries them, drops a longer one with a line in the log of who should have got it, and Paddle goes
on as if nothing were. The limit is 64 MiB, compiled in: some 66,000 ids of width 16 a batch and server.
No function of Paddle's sets it, so it is set in memory, in trainers and servers, to the most that brpc can.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import paddle

from launcher.errors import SettingsError, setting
from launcher.worker.network import Network

COMPILED_IN = 64 << 20
MOST = (1 << 31) - 1
MERGED = 12  # batches whose gradients async sends in one message: pserver_push_sparse_merge_limit
_SYMBOL = "_ZN4brpc5fLU6419FLAGS_max_body_sizeE"


def lift(limit: int = MOST) -> int:
    """Sets the longest message of this process in bytes. Returns the limit that holds now."""
    library = Path(paddle.base.__file__).parent / "libpaddle.so"
    try:
        flag = ctypes.c_uint64.in_dll(ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_NOW), _SYMBOL)
    except (OSError, ValueError):
        return COMPILED_IN  # a Paddle that keeps the symbol to itself
    flag.value = limit
    return limit


def check(network: Network, batch_size: int, mode: str, limit: int) -> None:
    """Raises `SettingsError` for a network whose messages could be longer than `limit`."""
    if mode == "geo":
        for table in network.tables:
            size = (table.rows or 0) * (8 + 4 * table.width)
            if size > limit:
                raise SettingsError(
                    setting(
                        f"rows of the table {table.name} (network() of the program)",
                        table.rows,
                        f"at most {limit // (8 + 4 * table.width)}",
                        f"with training.mode geo a table goes to the servers in one message, which holds "
                        f"{limit} bytes and would have {size}",
                        "Take training.mode async or sync, where no trainer has the whole table",
                    )
                )
        return
    for table in network.tables:
        row = network.ids[table.name] * (8 + 4 * (table.width + 3)) * (MERGED if mode == "async" else 1)
        if batch_size * row > limit:
            raise SettingsError(
                setting(
                    "training.batchSize (PADDLE_LAUNCHER_BATCH_SIZE)",
                    batch_size,
                    f"at most {limit // row}",
                    f"the {network.ids[table.name]} ids of each row in the table {table.name} of width "
                    f"{table.width} could make a message to a server longer than {limit} bytes",
                    "Set it lower",
                )
            )
