"""One embedding table of a model: sorted ids and their vectors, mapped from two files and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError

IDS, VECTORS = "ids.npy", "vectors.npy"


class Table:
    """`ids.npy`: uint64 [rows], ascending. `vectors.npy`: float32 [rows, width]. Neither is read whole."""

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        """Raises `ModelError` when the files are not those of `rows` rows of `width` numbers."""
        self.rows, self.width = rows, width
        self.ids = _mapped(folder / IDS, (rows,), np.dtype(np.uint64))
        self.vectors = _mapped(folder / VECTORS, (rows, width), np.dtype(np.float32))

    def look_up(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], int]:
        """The vectors of these ids, shape [*ids.shape, width], and how many of the ids are unknown.

        An id is any 64 bits. 0 is padding: zeros, and not unknown. Unknown ids read as zeros.
        """
        wanted = ids.reshape(-1).view(np.uint64)
        if not self.rows:
            return np.zeros((*ids.shape, self.width), np.float32), int(np.count_nonzero(wanted))
        order = np.argsort(wanted)  # neighbours in the file are found together: three times as fast
        at = np.empty(len(wanted), np.int64)
        at[order] = np.searchsorted(self.ids, wanted[order])
        np.minimum(at, self.rows - 1, out=at)
        lost = self.ids[at] != wanted
        found = np.take(self.vectors, at, axis=0)
        found[lost] = 0
        return found.reshape(*ids.shape, self.width), int(np.count_nonzero(lost & (wanted != 0)))


def _mapped(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    try:
        # numpy cannot map an array without items
        array = np.asarray(np.load(path, mmap_mode="r" if shape[0] else None, allow_pickle=False))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: the model was not copied whole. Copy it again.") from None
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(f"{path} cannot be read ({error}): is it whole? Copy the model again.") from error
    if array.shape != shape or array.dtype != kind:
        raise ModelError(
            f"{path} holds {array.dtype} of shape {array.shape}, but model.json says {kind} of shape "
            f"{shape}: these are of two models. Copy the model again."
        )
    return array
