"""s3://bucket/prefix: the objects below a prefix, in the order of their keys."""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

from launcher.data.archive import Part, whole
from launcher.data.source import Tools
from launcher.data.stream import Body, ResumingStream, TransientError
from launcher.errors import DataError
from launcher.gang.log import log

SUFFIXES = (".txt", ".csv", ".tsv", ".gz")
KEYS_SHOWN = 12
PAGE = 1000  # keys of one listing; S3 gives no more


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


class S3Source:
    """All objects whose key is the prefix, or lies below it as a folder, and ends with one of `SUFFIXES`.

    The sha256 is that of the objects' bytes one after the other.
    """

    def __init__(self, tools: Tools) -> None:
        import boto3
        from botocore.config import Config

        url = urllib.parse.urlsplit(tools.settings.source)
        self._bucket, self._prefix = url.netloc, url.path.lstrip("/")
        self._tools = tools
        self._sha256 = hashlib.sha256()
        retries = {"mode": "standard", "total_max_attempts": 2}  # the streams' own back-off is around it
        config = Config(retries=retries, connect_timeout=20, read_timeout=30)  # type: ignore[arg-type]
        self._client = boto3.client("s3", config=config)
        self._objects = self._list()
        tools.progress.total = sum(size for _, size, _ in self._objects)

    def _call(self, doing: str, **arguments: Any) -> Any:
        """One request. Raises `TransientError` or `DataError`."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            return getattr(self._client, doing)(Bucket=self._bucket, **arguments)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
                raise TransientError(f"S3 answered {status} {code}") from error
            raise DataError(
                f"s3://{self._bucket}/{arguments.get('Key', self._prefix)}: {code} ({status}). "
                f"{_MENDS.get(code, '')}The pod's role must allow s3:ListBucket of the bucket and "
                "s3:GetObject below the prefix."
            ) from error
        except HTTPClientError as error:
            raise TransientError(f"no connection ({error})") from error
        except BotoCoreError as error:
            raise DataError(
                f"s3://{self._bucket}/{self._prefix}: {error} The pods get their keys from their service "
                "account (pod identity); see whether it has a role, and the region is known."
            ) from error

    def _list(self) -> list[tuple[str, int, str]]:
        """(key, bytes, ETag) of each object, by key."""
        found: list[tuple[str, int, str]] = []
        token: dict[str, str] = {}
        retry = self._tools.retry
        while True:
            self._tools.progress.tick("listing the objects")
            try:
                page = self._call("list_objects_v2", Prefix=self._prefix, MaxKeys=PAGE, **token)
            except TransientError as error:
                retry.failed(self._tools.settings.source, error)
                continue
            retry.moved()
            found += [(o["Key"], o["Size"], o["ETag"]) for o in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        folder = self._prefix.rstrip("/") + "/" if self._prefix else ""
        below = [o for o in found if o[0] == self._prefix or o[0].startswith(folder)]
        taken = sorted(o for o in below if o[0].lower().endswith(SUFFIXES) and o[1])
        if not taken:
            keys = ", ".join(key for key, _, _ in (below or found)[:KEYS_SHOWN]) or "nothing"
            raise DataError(
                f"{self._tools.settings.source} has no object with text in it (.txt, .csv, .tsv, .gz); "
                f"below it is {keys}. See whether bucket and prefix in data.source are right, and the "
                "data was uploaded."
            )
        if len(taken) < len(below):
            log.info("%d of %d objects are text; the others are left alone", len(taken), len(below))
        return taken

    def parts(self) -> Iterator[Part]:
        """One part an object."""
        plain = sum(size for key, size, _ in self._objects if not key.endswith(".gz"))
        for key, _, etag in self._objects:
            name = f"s3://{self._bucket}/{key}"
            stream = ResumingStream(
                name, self._opener(key, etag), self._tools.retry, self._tools.progress, self._sha256
            )
            stream.start()
            part = whole(stream, name, None)
            yield Part(part.name, part.stream, plain or None)
            plain = 0  # room for all of them was looked for with the first
            while stream.read(1 << 20):
                pass
            stream.close()

    def _opener(self, key: str, etag: str) -> Any:
        def open_at(offset: int, _version: str, /) -> Body:
            part = {"Range": f"bytes={offset}-"} if offset else {}
            answer = self._call("get_object", Key=key, IfMatch=etag, **part)
            body = answer["Body"]
            return Body(_Answer(body), offset, offset + answer["ContentLength"], etag, body.close)

        return open_at

    def hexdigest(self) -> str:
        """The sha256 over all objects' bytes."""
        return self._sha256.hexdigest()

    def close(self) -> None:
        """Ends the client's connections."""
        self._client.close()


_MENDS = {
    "NoSuchBucket": "There is no such bucket: mend data.source. ",
    "NoSuchKey": "The object was removed while the source was read. ",
    "PreconditionFailed": "The object was replaced while the source was read: start the Job again. ",
}
