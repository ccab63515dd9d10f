"""Rows of Criteo as a shard of `data.format: parquet`: label and counts as numbers, categories as texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from launcher.dataprep import parquet_rows


def write_as_parquet(lines: Iterable[str], path: Path, batch_rows: int = 65_536) -> None:
    """Write the rows of lines of text; empty counts become missing values."""
    cells = list(zip(*(row.rstrip("\n").split("\t") for row in lines), strict=True))
    columns: dict[str, Any] = {"label": pa.array(map(int, cells[0]), pa.int8())}
    for number, cell in enumerate(cells[1:14], 1):
        columns[f"I{number}"] = pa.array([int(value) if value else None for value in cell], pa.int64())
    columns |= {f"C{number}": list(cell) for number, cell in enumerate(cells[14:], 1)}
    batches = pa.table(columns).to_batches(max_chunksize=batch_rows)
    path.write_bytes(b"".join(map(parquet_rows.encode_rows, batches)))
