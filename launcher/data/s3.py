"""s3:// sources: the objects below a prefix, in the order of their keys, or one object that is an archive."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from itertools import islice
from typing import Any

from launcher import s3
from launcher.data.plan import Object
from launcher.data.source import SUFFIXES, OneFile, Tools
from launcher.data.stream import Body, Open, ResumingStream
from launcher.errors import DataError
from launcher.reporting.log import log
from launcher.retry import TransientError

KEYS_SHOWN = 12
PAGE = s3.PAGE


class _Answer:
    """An object's bytes, whose failures are `TransientError`s."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1, /) -> bytes:
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError

        try:
            return bytes(self._body.read(size))
        except (HTTPClientError, IncompleteReadError, HTTPError, OSError) as error:
            raise TransientError(f"the connection broke ({error})") from error


class _Place:
    """The bucket and key (or prefix) that `data.source` names. Refusals are `DataError`s with the mend."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        name, self.key = s3.address(tools.settings.source)
        try:
            self._bucket = s3.Bucket(name)
        except s3.RefusedError as error:
            raise DataError(f"{tools.settings.source}: {error}") from error

    def objects(self, prefix: str) -> Iterator[s3.Found]:
        """All objects whose key begins with `prefix`, by key; asks for a page when it is needed."""
        token = ""
        while True:
            self._tools.progress.tick("listing the objects")
            found, token = self._page(prefix, token)
            yield from found
            if not token:
                return

    def _page(self, prefix: str, token: str) -> tuple[list[s3.Found], str]:
        retry, source = self._tools.retry, self._tools.settings.source
        try:
            return retry.call(source, lambda: self._bucket.page(prefix, PAGE, token))
        except s3.RefusedError as error:
            raise self._refused(self.url(prefix), error) from error

    def stream(self, found: s3.Found, also: hashlib._Hash | None = None, begin: int = 0) -> ResumingStream:
        """The bytes of exactly this version of the object. `also` is a sha256 over several streams."""
        tools, name = self._tools, self.url(found.key)
        stream = ResumingStream(name, self._opener(found), tools.retry, tools.progress, also, begin)
        stream.start()
        return stream

    def _opener(self, found: s3.Found) -> Open:
        def open_at(offset: int, _version: str, /) -> Body:
            part = {"Range": f"bytes={offset}-"} if offset else {}
            try:
                answer = self._bucket.call("get_object", Key=found.key, IfMatch=found.etag, **part)
            except s3.RefusedError as error:
                raise self._refused(self.url(found.key), error) from error
            body = answer["Body"]
            total = offset + answer["ContentLength"]
            return Body(_Answer(body), offset, total, found.etag, body.close)

        return open_at

    def url(self, key: str) -> str:
        """The address of a key, for messages."""
        return self._bucket.url(key)

    def close(self) -> None:
        """Ends the client's connections."""
        self._bucket.close()

    @staticmethod
    def _refused(where: str, error: s3.RefusedError) -> DataError:
        if not error.code:
            return DataError(f"{where}: {error}")
        return DataError(
            f"{where}: {error}. {_MENDS.get(error.code, '')}The pod's role must allow s3:ListBucket of the "
            "bucket and s3:GetObject below the prefix."
        )


_MENDS = {
    "NoSuchBucket": "There is no such bucket: mend data.source. ",
    "NoSuchKey": "The object was removed while the source was read. ",
    "PreconditionFailed": "The object was replaced while the source was read: start the Job again. ",
}


class S3Archive(OneFile):
    """The one object of exactly that key, read as an archive: `data.member` names the text in it."""

    def __init__(self, tools: Tools) -> None:
        self._place = _Place(tools)
        try:
            stream = self._place.stream(self._object(tools.settings.source))
        except BaseException:
            self._place.close()
            raise
        super().__init__(tools, tools.settings.source, stream, None)

    def _object(self, source: str) -> s3.Found:
        """Raises `DataError` with what is there, when it is not."""
        place = self._place
        first = next(place.objects(place.key), None)  # of all keys with this beginning, itself is the first
        if first is not None and first.key == place.key:
            return first
        folder = place.key + "/"
        below = self._names(folder)
        if below:
            raise DataError(
                f"{source} is no object but a prefix; below it is {below}. With data.member set, "
                "data.source must be the key of one archive: name it, or leave data.member empty to read all "
                "text below the prefix."
            )
        beside = posixpath.dirname(place.key)
        there = self._names(beside + "/" if beside else "") or "nothing"
        raise DataError(
            f"{source}: there is no such object; beside it is {there}. See whether bucket and key in "
            "data.source are right, and the archive was uploaded."
        )

    def _names(self, prefix: str) -> str:
        return ", ".join(found.key for found in islice(self._place.objects(prefix), KEYS_SHOWN))

    def close(self) -> None:
        """Ends the connections."""
        super().close()
        self._place.close()


class S3Store:
    """All objects whose key is the prefix, or lies below it as a folder, and ends with one of `SUFFIXES`."""

    def __init__(self, tools: Tools) -> None:
        self._source = tools.settings.source
        self._place = _Place(tools)
        self.remote = True

    def objects(self) -> list[Object]:
        """The objects with text, by key. Raises `DataError` when there is none."""
        prefix = self._place.key
        found = list(self._place.objects(prefix))
        folder = prefix.rstrip("/") + "/" if prefix else ""
        below = [o for o in found if o.key == prefix or o.key.startswith(folder)]
        taken = [o for o in below if o.key.lower().endswith(SUFFIXES) and o.size]
        if not taken:
            keys = ", ".join(o.key for o in (below or found)[:KEYS_SHOWN]) or "nothing"
            raise DataError(
                f"{self._source} has no object with text in it (.txt, .csv, .tsv, .gz); below it is {keys}. "
                "See whether bucket and prefix in data.source are right, and the data was uploaded; of an "
                "archive, data.member names the text."
            )
        if len(taken) < len(below):
            log.info("%d of %d objects are text; the others are left alone", len(taken), len(below))
        return [Object(o.key, o.size, o.etag) for o in sorted(taken, key=lambda o: o.key)]

    def stream(self, found: Object, begin: int, also: hashlib._Hash) -> ResumingStream:
        """The bytes of exactly this version, from `begin` on."""
        return self._place.stream(s3.Found(found.name, found.size, found.version), also, begin)

    def unchanged(self, found: Object) -> None:
        """S3 gave this version or none."""

    def shown(self, found: Object) -> str:
        """The object as messages name it."""
        return self._place.url(found.name)

    def close(self) -> None:
        """Ends the client's connections."""
        self._place.close()
