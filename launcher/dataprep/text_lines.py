"""Convert the bytes of a file to blocks of complete lines, and check that they are valid UTF-8 text."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from launcher.dataprep.csv_records import RowPlaces, join_fields
from launcher.errors import DataError
from launcher.log import log

CHUNK = 512 << 10
"""Number of bytes that are read at once. So few calls are needed, and the lines still fit into the processor's
caches."""
CSV_RECORDS = 4096  # number of records in one block
NEWLINE = 10
LINE_MAX = 8 << 20
"""Largest size of a line in bytes, and of a csv field in characters. A line is held in memory, and a longer line is
hardly text."""


def line_blocks(stream: IO[bytes], name: str, encoding: str, *, crlf: bool = False) -> Iterator[bytes]:
    r"""Yield the content of a text file in UTF-8, as blocks of complete lines; each block ends with a newline.

    The bytes of a UTF-8 file stay the same, but a byte order mark at its start is removed. Other encodings are
    converted to UTF-8. If the last line has no newline, a newline is added.

    Args:
        stream: the bytes of the file.
        name: name of the file in messages.
        encoding: the file's encoding; `ascii` has the same effect as `utf-8`.
        crlf: whether lines may end with CRLF, as in csv. Then messages say `line` instead of `row`.

    Raises:
        DataError: the file has bytes that are invalid in the encoding, a NUL, a line of more than `LINE_MAX` bytes,
            or, if `crlf` is False, a line that ends with CRLF. The message has the file and the row (from 1), and also
            the column (byte of the line, from 1), except for too long a line. Invalid bytes of another encoding than
            UTF-8 have only an approximate row.
    """
    row, at = 1, f"{name}, {'line' if crlf else 'row'}"
    rest: list[bytes] = []  # the start of a line whose end is not read yet
    waiting = 0
    for data in _utf8_chunks(stream, name, encoding):
        end = data.rfind(b"\n") + 1
        if not end:
            rest.append(data)
            waiting += len(data)
            _check_length(waiting, at, row)
            continue
        block = b"".join((*rest, memoryview(data)[:end]))
        rest, waiting = [data[end:]], len(data) - end
        if len(block) > LINE_MAX:
            for line in block.split(b"\n"):
                _check_length(len(line), at, row)
        _check_bytes(block, at, row, crlf)
        # twice as fast as bytes.count
        row += int(np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == NEWLINE))
        yield block
    if waiting:
        block = b"".join((*rest, b"\n"))
        _check_bytes(block, at, row, crlf)
        yield block


def _utf8_chunks(stream: IO[bytes], name: str, encoding: str) -> Iterator[bytes]:
    """Yield the text of a file as chunks of UTF-8.

    This function does not decode a UTF-8 file, so the caller must check that its bytes are valid.
    """
    chunks = iter(lambda: stream.read(CHUNK), b"")
    if codecs.lookup(encoding).name not in ("utf-8", "ascii"):
        chunks = _converted(chunks, name, encoding)
    start = b""
    while len(start) < len(codecs.BOM_UTF8) and (more := next(chunks, None)) is not None:
        start += more
    yield start.removeprefix(codecs.BOM_UTF8)
    yield from chunks


def _converted(chunks: Iterator[bytes], name: str, encoding: str) -> Iterator[bytes]:
    """Convert the bytes `chunks` of a text from `encoding` to UTF-8, and yield the converted chunks."""
    decoder, rows = codecs.getincrementaldecoder(encoding)(), 0
    for data in itertools.chain(chunks, (b"",)):
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeError as error:
            where = f"after line {rows}"
            if isinstance(error, UnicodeDecodeError):
                before = error.object[: error.start].decode(encoding, errors="replace")
                where = f"about line {rows + before.count(chr(10)) + 1}"
            raise DataError(
                f"{name}, {where}: data.encoding is {encoding}, but the text has another encoding ({error}). Fix: set "
                "data.encoding to the file's encoding."
            ) from error
        rows += text.count("\n")
        yield text.encode()


def _check_length(length: int, at: str, row: int) -> None:
    if length > LINE_MAX:
        raise DataError(
            f"{at} {row}: the line has more than {LINE_MAX >> 20} MiB, the longest supported line. Fix: use text "
            "with newlines (set data.member for an archive; replace old line ends, \\r alone, by \\n)."
        )


def _check_bytes(block: bytes, at: str, row: int, crlf: bool) -> None:
    """Raise `DataError` if `block` has a NUL or invalid UTF-8, or if it has CRLF and `crlf` is False.

    `at` is the file and the word `row` or `line`, and `row` the number of the block's first line, for the message.
    """
    # The search for one byte is far faster than for two, and most texts have no \r at all.
    if not crlf and b"\r" in block and (crlf_at := block.find(b"\r\n")) >= 0:
        raise DataError(
            f"{_position(block, crlf_at, at, row)}: the line ends with CRLF, and the CR would become a part of "
            "its last field. Fix: convert the file to Unix line ends (sed -i 's/\\r$//'), or set data.format "
            "to csv, which accepts both."
        )
    if b"\0" in block:
        where = _position(block, block.index(b"\0"), at, row)
        raise DataError(
            f"{where}: a NUL byte, which text does not contain. Fix: for an archive set data.member, for UTF-16 "
            "set data.encoding; a binary file cannot be read."
        )
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{_position(block, error.start, at, row)}: the byte 0x{block[error.start]:02x} is not UTF-8 "
                f"({error.reason}). Fix: set data.encoding to the file's encoding (latin-1, cp1252, ...), or "
                "correct the row."
            ) from error


def _describe_unusable_column(column: str, header: list[str] | None) -> str:
    """Return the message about a column that `header` does not contain, or contains more than once.

    `header` is None if data.header is false.
    """
    if header is None:
        return (
            f"data.columns has the name {column!r}, but data.header is false, so the columns have no names. Fix: use "
            "indexes from 0, or set data.header to true."
        )
    names = ", ".join(map(repr, header[:20]))
    if column in header:
        return (
            f"data.columns has {column!r}, which is {header.count(column)} times in the header ({names}). Fix: use the "
            f"column's index, from 0: the first one is {header.index(column)}."
        )
    return f"data.columns has {column!r}, but the header has {names}. Fix: use names of the header, or indexes from 0."


def _position(block: bytes, offset: int, at: str, row: int) -> str:
    line = block.rfind(b"\n", 0, offset) + 1
    return f"{at} {row + block.count(10, 0, offset)}, column {offset - line + 1}"


def warn_of_quotes(spanning: int, first: str) -> None:
    """Log a warning if records of a tab-separated source span several lines, because this is rarely intended.

    `spanning` is the number of such records, and `first` says where the first one is.
    """
    if spanning:
        log.warning(
            "%d records of the tab-separated text span several lines, because a quote starts a field; the first one is "
            "%s. If quotes are ordinary characters in this text, set data.quoting to none",
            *(spanning, first),
        )


class CsvReader:
    """Reads csv objects with the same columns, and converts their records to lines (`csv_records.join_fields`)."""

    def __init__(
        self, delimiter: str, header: bool, columns: tuple[str | int, ...], quoting: str = "minimal"
    ) -> None:
        """Prepare to read objects.

        The arguments are data.delimiter, data.header, data.columns (names or indexes; empty: all) and data.quoting.
        """
        self._delimiter, self._header, self._columns = delimiter, header, columns
        self._form: Any = {"delimiter": delimiter, "quoting": getattr(csv, f"QUOTE_{quoting.upper()}")}
        self.names: list[str] = []
        """Column names in the header of the newest object; empty without headers."""
        self.width = 0
        """Number of fields of each record; 0 before the first record."""
        self.spanning, self.first_spanning = 0, ""
        """Number of records of a tab-separated source that span several lines; object and lines of the first one."""
        self._indexes: list[int] | None = None

    def line_blocks(self, blocks: Iterator[bytes], places: RowPlaces) -> Iterator[bytes]:
        """Yield blocks of about CSV_RECORDS lines, each of which is one record; blank lines of the object are ignored.

        `blocks` is what the function `line_blocks` of this module yields for the object. `places` has the object's name
        for messages, and counts the records.

        Raises:
            DataError: a record has another number of fields than the first record, a quote is not closed, a field is
                longer than LINE_MAX, a column of data.columns is missing or ambiguous, or the header differs from the
                object before. The message has the object and the line; for a wrong number of fields it also has the
                row (record).
        """
        csv.field_size_limit(LINE_MAX)
        name = places.name
        texts = (line for block in blocks for line in io.StringIO(block.decode(), newline=""))
        reader = csv.reader(texts, strict=True, **self._form)
        expect_header = self._header
        lines: list[str] = []
        size = end = 0
        try:
            for record in reader:
                begin, end = end + 1, reader.line_num
                if end > begin and self._delimiter == "\t":
                    self.spanning += 1
                    self.first_spanning = self.first_spanning or f"{name}, lines {begin} to {end}"
                if not record:
                    continue
                if expect_header:
                    self._read_header(record, name)
                    expect_header = False
                    continue
                if len(record) != self.width:
                    self._check_width(record, f"{name}, row {places.count + 1} (line {begin})", name)
                places.add(begin)
                line = join_fields(record if self._indexes is None else [record[i] for i in self._indexes])
                lines.append(line)
                size += len(line)
                if len(lines) >= CSV_RECORDS or size > CHUNK:
                    yield ("\n".join(lines) + "\n").encode()
                    lines, size = [], 0
        except csv.Error as error:
            raise DataError(
                f"{name}, line {reader.line_num}: invalid csv with data.delimiter {self._delimiter!r} ({error}). "
                "Fix: close each quote, and double a quote inside a field; or, if quotes are ordinary characters, set "
                "data.quoting to none."
            ) from error
        if lines:
            yield ("\n".join(lines) + "\n").encode()

    def _read_header(self, record: list[str], name: str) -> None:
        """Read the names of the columns from an object's header, and find the columns to keep.

        If data.columns has only names, objects may have different headers. Otherwise all objects need the same header.
        """
        by_name = bool(self._columns) and all(isinstance(column, str) for column in self._columns)
        if self.names and record != self.names and not by_name:
            raise DataError(
                f"{name}, line 1: the header is {record[:20]}, but {self.names[:20]} in the object before it. "
                "Fix: give all objects the same columns in the same order, or list names in data.columns."
            )
        self.names, self.width = record, len(record)
        self._indexes = self._column_indexes(len(record), record, name)

    def _check_width(self, record: list[str], where: str, name: str) -> None:
        """Store the number of fields if `record` is the first record; raise `DataError` if it is a later one.

        This method is called only for a record whose number of fields differs from `self.width`.
        """
        if self.width:
            column = min(len(record), self.width) + 1
            raise DataError(
                f"{where}, column {column}: {len(record)} fields, but the "
                f"{'header' if self._header else 'first row'} has {self.width}. Fix: correct data.delimiter, or the "
                f"fields that contain {self._delimiter!r}: quote them (with data.quoting minimal)."
            )
        self.width, self._indexes = len(record), self._column_indexes(len(record), None, name)

    def _column_indexes(self, width: int, header: list[str] | None, name: str) -> list[int] | None:
        """Return the indexes of the columns in data.columns; None for all columns.

        `width` is the number of columns of the object, and `header` its header or None.

        Raises:
            DataError: the object does not have such a column, or has its name more than once.
        """
        if not self._columns:
            return None
        indexes = []
        for column in self._columns:
            if isinstance(column, str):
                if header is None or header.count(column) != 1:
                    raise DataError(f"{name}, line 1: {_describe_unusable_column(column, header)}")
                indexes.append(header.index(column))
            elif column >= width:
                raise DataError(
                    f"{name}, line 1: data.columns has the index {column}, but the records have {width} fields, "
                    f"with the indexes 0 to {width - 1}. Fix: correct data.columns or data.delimiter "
                    f"({self._delimiter!r})."
                )
            else:
                indexes.append(column)
        return indexes
