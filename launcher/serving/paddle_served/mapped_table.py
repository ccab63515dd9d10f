"""Look up vectors in an embedding table of a model: memory-mapped files of sorted ids and of their vectors."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError

IDS, VECTORS = "ids.npy", "vectors.npy"
CANNOT_MAP = {errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of a file system that cannot map files, such as some FUSE file systems."""


class MappedTable:
    """Reads a table: `ids.npy` is uint64 [rows] in ascending order, `vectors.npy` is float32 [rows, width]."""

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        """Map the files.

        Raises:
            ModelError: a file is missing, or does not have `rows` rows or vectors of `width` numbers.
        """
        self.rows, self.width = rows, width
        self.ids = _mapped(folder / IDS, (rows,), np.dtype(np.uint64))
        self.vectors = _mapped(folder / VECTORS, (rows, width), np.dtype(np.float32))

    def look_up(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], int]:
        """Look up ids.

        Args:
            ids: int64 of any shape. Each has the bits of an unsigned 64-bit id, so it may be negative; 0 is padding.

        Returns:
            The vectors, shape [*ids.shape, width], zeros for padding and unknown ids; and the number of
            unknown ids.
        """
        wanted = ids.reshape(-1).view(np.uint64)
        if not self.rows:
            return np.zeros((*ids.shape, self.width), np.float32), int(np.count_nonzero(wanted))
        order = np.argsort(wanted)  # three times as fast: neighbours in the file are read together
        at = np.empty(len(wanted), np.int64)
        at[order] = np.searchsorted(self.ids, wanted[order])
        np.minimum(at, self.rows - 1, out=at)
        lost = self.ids[at] != wanted
        found = np.take(self.vectors, at, axis=0)
        found[lost] = 0
        return found.reshape(*ids.shape, self.width), int(np.count_nonzero(lost & (wanted != 0)))


def map_or_read(map_file: Callable[[], Any], read: Callable[[], Any]) -> NDArray[Any]:
    """Return what `map_file` returns, or what `read` returns if the file system cannot map files."""
    try:
        return np.asarray(map_file())
    except OSError as error:
        if error.errno not in CANNOT_MAP:
            raise
        return np.asarray(read())


def map_array(path: Path, empty: bool = False) -> NDArray[Any]:
    """Return the array of a .npy file, memory-mapped if possible. numpy cannot map an array without items (`empty`)."""
    mode: Any = None if empty else "r"
    return map_or_read(
        lambda: np.load(path, mmap_mode=mode, allow_pickle=False), lambda: np.load(path, allow_pickle=False)
    )


def _mapped(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    try:
        array = map_array(path, empty=not shape[0])
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing: the copy of the model is incomplete. Fix: copy it again"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}). Fix: copy the model again; the copy may be incomplete"
        ) from error
    if array.shape != shape or array.dtype != kind:
        raise ModelError(
            f"{path} has {array.dtype} of shape {array.shape}, but model.json says {kind} of shape {shape}: "
            "the files are from two models. Fix: copy the model again"
        )
    return array
