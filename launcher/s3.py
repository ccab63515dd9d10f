"""S3 as the launcher asks it: addresses, one bucket's client, and what its refusals mean.

Importing this module loads no library; the first `Bucket` loads boto3. Access comes from the pod's
environment alone (pod identity, or variables of the chart's `extraEnv`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.errors import UnfitError
from launcher.retry import TransientError

SCHEME = "s3://"
PAGE = 1000  # keys of one listing; S3 gives no more
_AGAIN = frozenset({"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError"})
_ACCESS = (
    "The pods get their keys from their service account (pod identity) or from extraEnv; see whether there "
    "is a role or a key, the region is known, and AWS_ENDPOINT_URL (if set) is an http address."
)

T = TypeVar("T")


class RefusedError(Exception):
    """What S3 refuses, however often it is asked."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code
        """S3's own word for it, such as NoSuchBucket; empty when no answer came from S3."""


@dataclass(frozen=True)
class Found:
    """One object of a listing."""

    key: str
    size: int
    """Bytes."""
    etag: str
    """Names this version of the object."""


def address(url: str) -> tuple[str, str]:
    """(bucket, key or prefix) of an s3:// address. A key may hold any character, also ? and #."""
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    return bucket, key.lstrip("/")


class Bucket:
    """One bucket's client.

    Every request raises `TransientError` where another try may help, `UnfitError` where another pod may, else
    `RefusedError`.
    """

    def __init__(self, name: str) -> None:
        import boto3
        from botocore.config import Config

        self.name = name
        retries = {"mode": "standard", "total_max_attempts": 2}  # the callers' own back-off is around it
        config = Config(retries=retries, connect_timeout=20, read_timeout=30)  # type: ignore[arg-type]
        self._client: Any = sorted_out(lambda: boto3.client("s3", config=config))

    def url(self, key: str) -> str:
        """The address of a key, for messages."""
        return f"{SCHEME}{self.name}/{key}"

    def call(self, doing: str, **arguments: Any) -> Any:
        """One request by its name in boto3, such as `get_object`."""
        return sorted_out(lambda: getattr(self._client, doing)(Bucket=self.name, **arguments))

    def page(self, prefix: str, size: int, token: str = "") -> tuple[list[Found], str]:
        """At most `size` objects whose key begins with `prefix`, by key, and the token of the next page."""
        further = {"ContinuationToken": token} if token else {}
        page = self.call("list_objects_v2", Prefix=prefix, MaxKeys=size, **further)
        found = [Found(o["Key"], o["Size"], o["ETag"]) for o in page.get("Contents", [])]
        return found, page["NextContinuationToken"] if page.get("IsTruncated") else ""

    def read(self, key: str) -> bytes:
        """A small object, whole."""

        def request() -> bytes:  # its body may break off too
            return bytes(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())

        return sorted_out(request)

    def close(self) -> None:
        """Ends the client's connections."""
        self._client.close()


def sorted_out(request: Callable[[], T]) -> T:
    """What the request gives, with boto3's many exceptions sorted into three."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as of

    try:
        return request()
    except (of.ClientError, of.BotoCoreError, Boto3Error, ValueError) as caught:
        # A failed upload_file raises an error of its own around the one that tells something.
        error = caught if not isinstance(caught, Boto3Error) else caught.__context__ or caught
        if isinstance(error, of.ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            if status >= 500 or status == 429 or code in _AGAIN:
                raise TransientError(f"S3 answered {status} {code}") from caught
            raise RefusedError(f"{code} ({status})", code) from caught
        if isinstance(error, of.NoCredentialsError):
            # Pod identity gives them when a pod is made, once a role is tied to its account for some seconds:
            # this pod will never have them, the next one may.
            raise UnfitError(f"{str(error).rstrip('.')}. {_ACCESS}") from caught
        if isinstance(error, (of.HTTPClientError, of.ConnectionError, of.IncompleteReadError)):
            raise TransientError(f"no connection ({error})") from caught
        raise RefusedError(f"{str(error).rstrip('.')}. {_ACCESS}") from caught
