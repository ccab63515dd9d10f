"""Write record files, and let the program check all labels once they are written."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.errors import DataError
from launcher.io import files
from launcher.serving.paddle_served.mapped_table import map_or_read
from launcher.trainer.program_loader import TrainingProgram, with_fix
from launcher.trainer.records.record_files import RecordFile, Records
from launcher.trainer.records.row_parsing import no_usable_rows, record_dtype


def write_record_file(folder: Path, number: int, records: NDArray[Any]) -> RecordFile:
    """Write records, [rows] of `record_dtype`, to `<folder>/<number>.rec`."""
    path = folder / f"{number:05d}.rec"
    raw = records.view(np.uint8).data
    with files.storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return RecordFile(path.name, len(records), records.nbytes, zlib.crc32(raw))


def finish_records(
    program: TrainingProgram, folder: Path, written: list[RecordFile], name: str, skipped: int
) -> Records:
    """Return the written records after the program's check_labels(), if it has one, accepted all labels.

    Raises:
        DataError: there are no records, or check_labels() rejected the labels.
        SettingsError: check_labels() failed.
    """
    dtype = record_dtype(program.inputs)
    if not written:
        raise no_usable_rows(name, program, skipped)
    check_labels = getattr(program.module, "check_labels", None)
    if check_labels is not None:
        labels = _collect_labels(program.label, folder, written, dtype)
        with program.calling("check_labels()"):
            try:
                check_labels(labels)
            except ValueError as error:
                fix = "correct the labels in the data, or check_labels() of the program"
                raise DataError(with_fix(f"{name}: {error}", fix)) from error
    return Records(folder, dtype, tuple(written), skipped)


def _collect_labels(
    label: str, folder: Path, written: list[RecordFile], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return the labels of all rows, shape [rows, width], in a memory-mapped file that is already deleted."""
    path = folder / "labels.tmp"
    with files.storage_errors(path):
        try:
            with path.open("wb") as file:
                for part in written:
                    mapped = _map_file(folder / part.name, dtype)
                    file.write(np.ascontiguousarray(mapped[label]).data)
            one = dtype[label]
            return _map_file(path, one.base).reshape(-1, *one.shape)
        finally:
            path.unlink()  # the mapping stays valid


def _map_file(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    return map_or_read(lambda: np.memmap(path, dtype, mode="r"), lambda: np.fromfile(path, dtype))
