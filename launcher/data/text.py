"""From the bytes of an object to runs of whole, checked UTF-8 lines."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from launcher.data import escape
from launcher.data.places import Places
from launcher.data.stream import Readable
from launcher.errors import DataError

CHUNK = 512 << 10
"""Bytes read at once: large enough that calls cost little, small enough that the lines stay in the caches."""
NEWLINE = 10
LINE_MAX = 8 << 20
"""Bytes of the longest line (and csv field) taken: a line is held whole, and a longer one is hardly text."""


def segments(
    stream: Readable,
    name: str,
    encoding: str,
    *,
    crlf: bool = False,
    chunk: int = CHUNK,
    found: Places | None = None,
) -> Iterator[bytes]:
    r"""Runs of whole lines of one object in UTF-8, each run ending with a newline.

    UTF-8 comes through byte for byte (but for a byte order mark at the begin), any other encoding is turned
    into it. A last line without a newline is taken, and gets one. `found` has their number at the end. Raises
    `DataError`, with the object, the row (line, from 1; called line with `crlf`) and the column (byte of the
    line, from 1), for bytes that are not in the encoding, a NUL, a line of more than `LINE_MAX` bytes, and,
    unless `crlf`, a line that ends with CRLF.
    """
    row, at = 1, f"{name}, {'line' if crlf else 'row'}"
    rest: list[bytes] = []  # the begin of a line whose end has not come
    waiting = 0
    for data in _utf8(stream, name, encoding, chunk):
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest.append(data)
            waiting += len(data)
            _check_length(waiting, at, row)
            continue
        run = b"".join((*rest, memoryview(data)[:cut]))
        rest, waiting = [data[cut:]], len(data) - cut
        if len(run) > LINE_MAX:
            for line in run.split(b"\n"):
                _check_length(len(line), at, row)
        _check(run, at, row, crlf)
        # twice as fast as bytes.count
        row += int(np.count_nonzero(np.frombuffer(run, dtype=np.uint8) == NEWLINE))
        yield run
    if waiting:
        run = b"".join((*rest, b"\n"))
        _check(run, at, row, crlf)
        row += 1
        yield run
    if found is not None:
        found.count = row - 1


def _utf8(stream: Readable, name: str, encoding: str, chunk: int) -> Iterator[bytes]:
    """Chunks in UTF-8, not yet checked when they were that before."""
    plain = codecs.lookup(encoding).name in ("utf-8", "ascii")
    decoder = None if plain else codecs.getincrementaldecoder(encoding)()
    first, rows = True, 0
    while True:
        data = stream.read(chunk)
        if decoder is not None:
            try:
                data_utf8 = decoder.decode(data, final=not data).encode()
            except UnicodeError as error:
                _fail_decoding(error, name, encoding, rows)
            rows += data_utf8.count(b"\n")
        else:
            data_utf8 = data
        if first and data:
            while plain and len(data_utf8) < len(codecs.BOM_UTF8) and (more := stream.read(chunk)):
                data_utf8 += more
            data_utf8, first = data_utf8.removeprefix(codecs.BOM_UTF8), False
        if data_utf8:
            yield data_utf8
        if not data:
            return


def _fail_decoding(error: UnicodeError, name: str, encoding: str, rows: int) -> NoReturn:
    where = f"after line {rows}"
    if isinstance(error, UnicodeDecodeError):
        before = error.object[: error.start].decode(encoding, errors="replace")
        where = f"about line {rows + before.count(chr(10)) + 1}"
    raise DataError(
        f"{name}, {where}: the text is not {encoding} ({error}). Set data.encoding to what the file has."
    ) from error


def _check_length(length: int, at: str, row: int) -> None:
    if length > LINE_MAX:
        raise DataError(
            f"{at} {row}: the line has more than {LINE_MAX >> 20} MiB, the longest that is taken. "
            "Is it text with newlines? (An archive needs data.member; old line ends, \\r alone, must be "
            "turned into \\n.)"
        )


def _check(run: bytes, at: str, row: int, crlf: bool) -> None:
    """Raises `DataError` for a NUL, for what is no UTF-8 and for CRLF."""
    # The search for one byte is far faster than for two: most texts have no \r at all.
    if not crlf and b"\r" in run and (crlf_at := run.find(b"\r\n")) >= 0:
        raise DataError(
            f"{_where(run, crlf_at, at, row)}: the line ends with CRLF, and the CR would become a part of "
            "its last field. Turn the file into Unix line ends (sed -i 's/\\r$//'), or set data.format "
            "to csv, which takes both."
        )
    if b"\0" in run:
        where = _where(run, run.index(b"\0"), at, row)
        raise DataError(
            f"{where}: a NUL byte. Text has none: is it binary, an archive (data.member) or UTF-16 "
            "(data.encoding)?"
        )
    if not run.isascii():
        try:
            run.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{_where(run, error.start, at, row)}: the byte 0x{run[error.start]:02x} is not UTF-8 "
                f"({error.reason}). Set data.encoding to what the file has (latin-1, cp1252, ...), or "
                "mend the row."
            ) from error


def _where(run: bytes, offset: int, at: str, row: int) -> str:
    line = run.rfind(b"\n", 0, offset) + 1
    return f"{at} {row + run.count(10, 0, offset)}, column {offset - line + 1}"


class Csv:
    """Reads csv objects of one shape into runs of escaped lines (`launcher.data.escape`)."""

    def __init__(
        self, delimiter: str, header: bool, columns: tuple[str | int, ...], batch: int = 4096
    ) -> None:
        self._delimiter, self._header, self._columns, self._batch = delimiter, header, columns, batch
        self.names: list[str] = []
        self.width = 0
        self._picked: list[int] | None = None

    def segments(self, runs: Iterator[bytes], name: str, found: Places) -> Iterator[bytes]:
        """One run for each `batch` records or so, each counted in `found`. Blank lines are no records.

        Raises `DataError` with the object and the line, and the row (the record) and column if known, for a
        record of another number of fields than the first, a quote that does not close, a column that is not
        there, and an object without its header.
        """
        csv.field_size_limit(LINE_MAX)
        texts = (line for run in runs for line in io.StringIO(run.decode(), newline=""))
        reader = csv.reader(texts, delimiter=self._delimiter, strict=True)
        wait_header = self._header
        lines: list[str] = []
        size = end = 0
        try:
            for record in reader:
                begin, end = end + 1, reader.line_num
                if not record:
                    continue
                if wait_header:
                    self._take_header(record, name)
                    wait_header = False
                    continue
                if len(record) != self.width:
                    self._first_or_fail(record, f"{name}, row {found.count + 1} (line {begin})", name)
                found.add(begin)
                line = escape(record if self._picked is None else [record[i] for i in self._picked])
                lines.append(line)
                size += len(line)
                if len(lines) >= self._batch or size > CHUNK:
                    yield ("\n".join(lines) + "\n").encode()
                    lines, size = [], 0
        except csv.Error as error:
            raise DataError(
                f"{name}, line {reader.line_num}: this is no csv with the delimiter {self._delimiter!r} "
                f"({error}). A quote that opens must close, and a quote inside a field is doubled; plain "
                "lines are read with data.format: lines."
            ) from error
        if lines:
            yield ("\n".join(lines) + "\n").encode()

    def _take_header(self, record: list[str], name: str) -> None:
        """Columns chosen by name are found anew in each object; else all objects have one header."""
        by_name = bool(self._columns) and all(isinstance(column, str) for column in self._columns)
        if self.names and record != self.names and not by_name:
            raise DataError(
                f"{name}, line 1: the header is {record[:20]}, but {self.names[:20]} in the object before "
                "it. All objects must have the same columns in the same order, or data.columns must name "
                "them."
            )
        self.names, self.width, self._picked = record, len(record), self._pick(len(record), record, name)

    def _first_or_fail(self, record: list[str], where: str, name: str) -> None:
        if self.width:
            column = min(len(record), self.width) + 1
            raise DataError(
                f"{where}, column {column}: {len(record)} fields, but {self.width} are "
                f"expected, as in the {'header' if self._header else 'first row'}. Quote fields that hold "
                f"{self._delimiter!r}, or see whether data.delimiter is right."
            )
        self.width, self._picked = len(record), self._pick(len(record), None, name)

    def _pick(self, width: int, header: list[str] | None, name: str) -> list[int] | None:
        """The places of `columns`, or None for all of them."""
        if not self._columns:
            return None
        picked = []
        for column in self._columns:
            if isinstance(column, str):
                if header is None or header.count(column) != 1:
                    found = "twice" if header and column in header else "not there"
                    names = (
                        ", ".join(map(repr, (header or [])[:20]))
                        or "none (data.header is false: give indexes)"
                    )
                    raise DataError(
                        f"{name}, line 1: the column {column!r} of data.columns is {found}; names: {names}."
                    )
                picked.append(header.index(column))
            elif column >= width:
                raise DataError(
                    f"{name}, line 1: data.columns asks for column {column}, but there are {width}, "
                    f"counted from 0 to {width - 1}. See whether data.delimiter ({self._delimiter!r}) is "
                    "right."
                )
            else:
                picked.append(column)
        return picked
