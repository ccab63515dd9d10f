"""Read s3:// sources: the text objects below a prefix, or one object that is an archive."""

from __future__ import annotations

import functools
import hashlib
import posixpath
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from launcher.dataprep.byte_streams import HashingStream, RemoteBody, ResumingStream
from launcher.dataprep.source import SUFFIXES, SourceContext
from launcher.dataprep.source_parts import SourceObject
from launcher.errors import DataError
from launcher.io import s3
from launcher.io.retry import TransientError
from launcher.log import log

KEYS_SHOWN = 12
PAGE = s3.PAGE
_FIXES = {
    "NoSuchBucket": "Fix: correct the bucket in data.source.",
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


class _S3Location:
    """Lists and opens objects below `data.source`; a request that S3 rejects raises `DataError` with a fix."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        name, self.key = s3.split_url(context.settings.source)
        try:
            self._bucket = s3.Bucket(name)
        except s3.S3RejectedError as error:
            raise DataError(f"data.source {context.settings.source}: {error}") from error

    def objects(self, prefix: str) -> Iterator[s3.S3Object]:
        """Yield all objects whose key starts with `prefix`, in the order of their keys, page by page."""
        token = ""
        while True:
            self._context.progress.report("listing the objects")
            page = functools.partial(self._bucket.list_page, prefix, PAGE, token)
            try:
                found, token = self._context.retry.call(self._context.settings.source, page)
            except s3.S3RejectedError as error:
                raise self._rejected(self.url(prefix), error) from error
            yield from found
            if not token:
                return

    def open(self, found: s3.S3Object, digest: hashlib._Hash | None = None, begin: int = 0) -> ResumingStream:
        """Open an object, in the version that was listed, at the byte `begin`; reads update `digest`, too."""
        context, name = self._context, self.url(found.key)

        def open_at(offset: int, _version: str, /) -> RemoteBody:
            part = {"Range": f"bytes={offset}-"} if offset else {}
            try:
                answer = self._bucket.call("get_object", Key=found.key, IfMatch=found.etag, **part)
            except s3.S3RejectedError as error:
                raise self._rejected(name, error) from error
            body, total = answer["Body"], offset + answer["ContentLength"]
            return RemoteBody(_ObjectBody(body), offset, total, found.etag, body.close)

        stream = ResumingStream(name, open_at, context.retry, context.progress, digest, begin)
        stream.start()
        return stream

    def url(self, key: str) -> str:
        """Return the address of a key, for messages."""
        return self._bucket.url(key)

    def close(self) -> None:
        """Close the client's connections."""
        self._bucket.close()

    @staticmethod
    def _rejected(where: str, error: s3.S3RejectedError) -> DataError:
        if not error.code:
            return DataError(f"{where}: {error}")
        return DataError(f"{where}: {error}. {_FIXES.get(error.code, _ROLE)}")


def open_s3_archive(context: SourceContext) -> tuple[HashingStream, Callable[[], None]]:
    """Open the one object with exactly the key of data.source.

    Returns:
        The object's bytes, and the function that closes the client's connections.

    Raises:
        DataError: there is no such object; the message lists objects next to it.
    """
    location = _S3Location(context)
    try:
        return location.open(_archive_object(location, context.settings.source)), location.close
    except BaseException:
        location.close()
        raise


def _archive_object(location: _S3Location, source: str) -> s3.S3Object:
    first = next(
        location.objects(location.key), None
    )  # of all keys with this prefix, the key itself is first
    if first is not None and first.key == location.key:
        return first
    below = _keys(location, location.key + "/")
    if below:
        raise DataError(
            f"data.source {source} is a prefix, not an object; below it are {below}. With data.member set, "
            "data.source must be the key of one archive. Fix: set that key, or leave data.member empty to "
            "read all text below the prefix."
        )
    parent = posixpath.dirname(location.key)
    neighbours = _keys(location, parent + "/" if parent else "") or "nothing"
    raise DataError(
        f"data.source {source}: the object does not exist; the same prefix has {neighbours}. Fix: correct "
        "bucket and key in data.source, or upload the archive."
    )


def _keys(location: _S3Location, prefix: str) -> str:
    return ", ".join(found.key for found in islice(location.objects(prefix), KEYS_SHOWN))


class S3Objects:
    """Reads all text objects (`SUFFIXES`) whose key is the prefix, or is below the prefix as a folder."""

    def __init__(self, context: SourceContext) -> None:
        self._source = context.settings.source
        self._location = _S3Location(context)
        self.remote = True

    def objects(self) -> list[SourceObject]:
        """Return the objects in the order of their keys. Raises `DataError` when there is none."""
        prefix = self._location.key
        found = list(self._location.objects(prefix))
        folder = prefix.rstrip("/") + "/" if prefix else ""
        below = [o for o in found if o.key == prefix or o.key.startswith(folder)]
        texts = [o for o in below if o.key.lower().endswith(SUFFIXES) and o.size]
        if not texts:
            keys = ", ".join(o.key for o in (below or found)[:KEYS_SHOWN]) or "nothing"
            raise DataError(
                f"data.source {self._source} has no text object that is not empty ({', '.join(SUFFIXES)}); below "
                f"it is {keys}. Fix: correct bucket and prefix, upload the data, or set data.member for an archive."
            )
        if len(texts) < len(below):
            log.info("%d of %d objects are text; the others are ignored", len(texts), len(below))
        return [SourceObject(o.key, o.size, o.etag) for o in sorted(texts, key=lambda o: o.key)]

    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> ResumingStream:
        """Open an object, in the version that was listed, at the byte `begin`."""
        return self._location.open(s3.S3Object(found.name, found.size, found.version), digest, begin)

    def check_unchanged(self, found: SourceObject) -> None:
        """Do nothing: each request names the version (If-Match), so S3 sent this one."""

    def display_name(self, found: SourceObject) -> str:
        """Return the object's s3:// address."""
        return self._location.url(found.name)

    def close(self) -> None:
        """Close the client's connections."""
        self._location.close()
