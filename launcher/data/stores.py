"""Sources of many objects, and of files that can be read from any byte: what several pods share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from launcher.data.archive import Part, refuse_compressed, whole
from launcher.data.plan import COMPRESSED, LinesOf, Object, Stretch
from launcher.data.source import SUFFIXES, Stream, Tools, check_inside, readable
from launcher.data.stream import BLOCK, Ahead, FileStream, Peeked
from launcher.errors import DataError
from launcher.files import storage


class Store(Protocol):
    """A source of many objects, each of which can be read from any byte."""

    remote: bool
    """Reading waits for a network: some blocks are read ahead."""

    def objects(self) -> list[Object]: ...

    def stream(self, found: Object, begin: int, also: hashlib._Hash) -> Stream: ...

    def unchanged(self, found: Object) -> None: ...

    def shown(self, found: Object) -> str: ...

    def close(self) -> None: ...


def open_store(tools: Tools) -> Store | None:
    """The source as objects that can be read apart (`check` has passed); None when it is one stream.

    Raises `DataError` when it is not there.
    """
    source = tools.settings.source
    if tools.settings.member:
        return None
    if source.startswith("s3://"):
        from launcher.data.s3 import S3Store

        return S3Store(tools)
    if source.startswith("file://"):
        return Folder(tools)
    return None


class Folder:
    """A file of the shared storage, or all text files below a folder of it, in the order of their paths."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._root = readable(tools.settings)
        self._base = self._root if self._root.is_dir() else self._root.parent
        self.remote = False

    def objects(self) -> list[Object]:
        """The files. Raises `DataError` for none, and for one that may not be read."""
        root = self._root
        if root.is_dir():
            paths = sorted(
                path
                for path in root.rglob("*")
                if path.name.lower().endswith(SUFFIXES) and path.is_file() and path.stat().st_size
            )
        else:
            paths = [root]
        if not paths:
            raise DataError(
                f"{self._tools.settings.source} has no file with text in it ({', '.join(SUFFIXES)}). Put "
                "the data there (python -m launcher push), or mend data.source."
            )
        for path in paths:
            check_inside(self._tools.settings, path)
            with storage(path):
                try:
                    path.open("rb").close()
                except PermissionError as error:
                    raise DataError(
                        f"{self._tools.settings.source}: {path} may not be read by this user ({error}). "
                        "chmod a+r it."
                    ) from error
        return [self._object(path) for path in paths]

    def _object(self, path: Path) -> Object:
        stat = path.stat()
        return Object(path.relative_to(self._base).as_posix(), stat.st_size, str(stat.st_mtime_ns))

    def stream(self, found: Object, begin: int, also: hashlib._Hash) -> FileStream:
        """The file, from `begin` on."""
        self.unchanged(found)
        return FileStream(self._base / found.name, self._tools.progress, also, begin)

    def unchanged(self, found: Object) -> None:
        """Raises `DataError` when the file is another one than when it was listed."""
        try:
            same = self._object(self._base / found.name) == found
        except FileNotFoundError:
            same = False
        if not same:
            raise DataError(
                f"{self.shown(found)} changed while it was read. Let whoever writes it end, then start the "
                "Job again."
            )

    def shown(self, found: Object) -> str:
        """The file as messages name it."""
        source = self._tools.settings.source
        return f"{source.rstrip('/')}/{found.name}" if self._base == self._root else source

    def close(self) -> None:
        """Nothing is open."""


class Stretches:
    """A part of a store as a source. The sha256 is that of the bytes that were used, one after the other."""

    def __init__(self, store: Store, stretches: Sequence[Stretch]) -> None:
        self._store, self._stretches = store, stretches
        self._sha256 = hashlib.sha256()

    def parts(self) -> Iterator[Part]:
        """One text for each stretch."""
        store = self._store
        plain = sum(s.end - s.begin for s in self._stretches if not s.object.name.endswith(COMPRESSED))
        for stretch in self._stretches:
            found, name = stretch.object, store.shown(stretch.object)
            unused = hashlib.sha256()
            first = max(0, stretch.begin - 1)
            stream = store.stream(found, first, self._sha256 if stretch.whole else unused)
            ahead = Ahead(stream) if store.remote else None
            read = ahead or stream
            try:
                if stretch.whole:
                    part = whole(read, name, None)
                else:
                    lines = Peeked(LinesOf(read, stretch.begin, stretch.end, self._sha256))
                    if not stretch.begin:
                        refuse_compressed(lines, name)
                    else:
                        name += f" from byte {stretch.begin:,} on"
                    part = Part(name, lines, None)
                yield Part(part.name, part.stream, plain or None, object=store.shown(found))
                plain = 0  # room for all of them was looked for with the first
                while stretch.whole and read.read(BLOCK):
                    pass
            finally:
                if ahead is not None:
                    ahead.close()
                stream.close()
            store.unchanged(found)

    def hexdigest(self) -> str:
        """The sha256 over all of it."""
        return self._sha256.hexdigest()

    def close(self) -> None:
        """The store is closed by who opened it."""
