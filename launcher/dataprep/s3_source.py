"""Read s3:// sources: the objects below a prefix, or one object that is an archive."""

from __future__ import annotations

import functools
import hashlib
import posixpath
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from launcher.dataprep.archives import NAMES_SHOWN
from launcher.dataprep.byte_streams import ReadAhead, RemoteBody, ResumingStream
from launcher.dataprep.source_parts import SourceContext, SourceObject, files_to_read
from launcher.errors import DataError
from launcher.io import s3
from launcher.io.retry import TransientError

PAGE = s3.PAGE
_FIXES = {
    "NoSuchBucket": "Fix: correct the bucket in {key}.",
    "NoSuchKey": "The object was removed while the source was read. Fix: start the run again with another runId.",
    "PreconditionFailed": "The object was replaced while the source was read. Fix: start the run again with "
    "another runId.",
}
_ROLE = "Fix: allow the pod's role s3:ListBucket on the bucket and s3:GetObject below the prefix."


class _ObjectBody:
    """Reads the bytes of one response of S3; a broken connection raises `TransientError`."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1, /) -> bytes:
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError

        try:
            return bytes(self._body.read(size))
        except (HTTPClientError, IncompleteReadError, HTTPError, OSError) as error:
            raise TransientError(f"the connection broke ({error})") from error


class S3Source:
    """Lists and opens objects of `data.source`; a request that S3 rejects raises `DataError` with a fix."""

    def __init__(self, context: SourceContext) -> None:
        self._context, self._source = context, context.settings.source
        name, self._key = s3.split_url(self._source)
        try:
            self._bucket = s3.Bucket(name)
        except s3.S3RejectedError as error:
            raise DataError(f"{context.key} {self._source}: {error}") from error

    def objects(self) -> list[SourceObject]:
        """Return the objects to read whose key is the prefix, or is below it as a folder, sorted by key.

        Raises:
            DataError: there is none.
        """
        folder = self._key.rstrip("/") + "/" if self._key else ""
        found = sorted(self._list(self._key), key=lambda one: one.name)
        below = [one for one in found if one.name == self._key or one.name.startswith(folder)]
        # Without the folder: the names in data.source itself, and an object that it names, are not hidden.
        return files_to_read(self._context, {one.name[len(folder) :]: one for one in below})

    def archive(self) -> SourceObject:
        """Return the one object with exactly the key of data.source.

        Raises:
            DataError: there is no such object; the message lists objects next to it.
        """
        first = next(self._list(self._key), None)  # of all keys with this prefix, the key itself is first
        if first is not None and first.name == self._key:
            return first
        if below := list(islice(self._list(self._key + "/"), NAMES_SHOWN)):
            raise DataError(
                f"data.source {self._source} is a prefix, not an object; below it are {_names(below)}. With "
                "data.member set, data.source must be the key of one archive. Fix: set that key, or leave data.member "
                "empty to read all text below the prefix."
            )
        parent = posixpath.dirname(self._key)
        raise DataError(
            f"data.source {self._source}: the object does not exist; the same prefix has "
            f"{_names(self._list(parent + '/' if parent else ''))}. Fix: correct bucket and key in data.source, or "
            "upload the archive."
        )

    def _list(self, prefix: str) -> Iterator[SourceObject]:
        """Yield all objects whose key starts with `prefix`, in the order of their keys, page by page."""
        token = ""
        while True:
            self._context.progress.report("listing the objects")
            page = functools.partial(self._bucket.list_page, prefix, PAGE, token)
            try:
                found, token = self._context.retry.call(self._source, page)
            except s3.S3RejectedError as error:
                raise _rejected(self._bucket.url(prefix), error, self._context.key) from error
            yield from (SourceObject(one.key, one.size, one.etag) for one in found)
            if not token:
                return

    def stream(
        self, found: SourceObject, begin: int = 0, digest: hashlib._Hash | None = None
    ) -> ResumingStream:
        """Open an object, in the version that was listed, at the byte `begin`; reads update `digest`, too."""
        context, name = self._context, self.display_name(found)

        def open_at(offset: int, _version: str, /) -> RemoteBody:
            part = {"Range": f"bytes={offset}-"} if offset else {}
            try:
                answer = self._bucket.call("get_object", Key=found.name, IfMatch=found.version, **part)
            except s3.S3RejectedError as error:
                raise _rejected(name, error, context.key) from error
            body, total = answer["Body"], offset + answer["ContentLength"]
            return RemoteBody(_ObjectBody(body), offset, total, found.version, body.close)

        stream = ResumingStream(name, open_at, context.retry, context.progress, digest, begin)
        stream.start()
        return stream

    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> ReadAhead:
        """Open an object at the byte `begin`, and read some blocks ahead; all bytes read are added to `digest`."""
        return ReadAhead(self.stream(found, begin, digest))

    def check_unchanged(self, found: SourceObject) -> None:
        """Do nothing: each request names the version (If-Match), so S3 sent this one."""

    def display_name(self, found: SourceObject) -> str:
        """Return the object's s3:// address."""
        return self._bucket.url(found.name)

    def close(self) -> None:
        """Close the client's connections."""
        self._bucket.close()


def _rejected(where: str, error: s3.S3RejectedError, key: str) -> DataError:
    if not error.code:
        return DataError(f"{where}: {error}")
    return DataError(f"{where}: {error}. {_FIXES.get(error.code, _ROLE).format(key=key)}")


def _names(found: Iterable[SourceObject]) -> str:
    return ", ".join(one.name for one in islice(found, NAMES_SHOWN)) or "nothing"
