"""S3 client of the launcher: requests to one bucket.

Its errors are of three kinds: a retry may help, a new pod may help, or nothing helps without a change by the user.

Importing this module loads no library; the first `Bucket` loads boto3. Credentials come from the pod's
environment alone (pod identity, or variables of the chart's `extraEnv`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.errors import UnfitError
from launcher.io.retry import TransientError

SCHEME = "s3://"
PAGE = 1000
"""Keys per page of a listing, S3's maximum."""
_RETRIED_CODES = frozenset({"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError"})
_FIX_ACCESS = (
    "Fix: give the pods' service account a role (pod identity), or set a key in extraEnv. If there is one, "
    "check that the region is set, and that AWS_ENDPOINT_URL (if set) is an http address."
)

T = TypeVar("T")


class S3RejectedError(Exception):
    """An S3 request failed for a reason that a retry does not change, such as a missing bucket.

    `code` is S3's error code, such as NoSuchBucket; empty when S3 sent no answer.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class S3Object:
    """One object in the listing of a bucket."""

    key: str
    size: int
    """Size in bytes."""
    etag: str
    """Identifies this version of the object."""


def split_url(url: str) -> tuple[str, str]:
    """Return (bucket, key or prefix) of an s3:// address.

    A key may contain any character, also ? and #. Slashes at the start of the key are removed.
    """
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    return bucket, key.lstrip("/")


class Bucket:
    """Client of one S3 bucket.

    A failed request raises `TransientError` when a retry may help, `UnfitError` when this pod has no credentials
    but a new pod may get them, and `S3RejectedError` otherwise.
    """

    def __init__(self, name: str) -> None:
        import boto3
        from botocore.config import Config

        self.name = name
        retries = {"mode": "standard", "total_max_attempts": 2}  # the callers retry with their own backoff
        config = Config(retries=retries, connect_timeout=20, read_timeout=30)  # type: ignore[arg-type]
        self._client: Any = translate_errors(lambda: boto3.client("s3", config=config))

    def url(self, key: str) -> str:
        """Return the s3:// address of the object `key`, for messages."""
        return f"{SCHEME}{self.name}/{key}"

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of boto3's S3 client for this bucket, such as `get_object`; return its response."""
        return translate_errors(lambda: getattr(self._client, method)(Bucket=self.name, **arguments))

    def list_page(self, prefix: str, size: int, token: str = "") -> tuple[list[S3Object], str]:
        """Return (objects whose keys start with `prefix`, sorted by key; token of the next page).

        A page has at most `size` objects, and never more than 1000. To get the next page, pass the returned token as
        `token`. The returned token is empty after the last page.
        """
        continuation = {"ContinuationToken": token} if token else {}
        page = self.call("list_objects_v2", Prefix=prefix, MaxKeys=size, **continuation)
        found = [S3Object(o["Key"], o["Size"], o["ETag"]) for o in page.get("Contents", [])]
        return found, page["NextContinuationToken"] if page.get("IsTruncated") else ""

    def read(self, key: str) -> bytes:
        """Return the complete content of the object `key`, which must fit into memory."""
        body = self.call("get_object", Key=key)["Body"]
        return bytes(translate_errors(body.read))

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()


def translate_errors(request: Callable[[], T]) -> T:
    """Call `request` and return its result; convert boto3's exceptions to those that `Bucket` documents."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as of

    try:
        return request()
    except (of.ClientError, of.BotoCoreError, Boto3Error, ValueError) as caught:
        # boto3's upload_file raises an error of its own; the informative error is the context of that error.
        error = caught if not isinstance(caught, Boto3Error) else caught.__context__ or caught
        if isinstance(error, of.ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            if status >= 500 or status == 429 or code in _RETRIED_CODES:
                raise TransientError(f"S3 answered {status} {code}") from caught
            raise S3RejectedError(f"S3 answered {code} ({status})", code) from caught
        if isinstance(error, (of.NoCredentialsError, of.CredentialRetrievalError)):
            # Pod identity injects credentials when a pod is created. In the first seconds after a role was attached to
            # the service account this fails: the pod never gets credentials, but the next pod may. Or the node's agent
            # of pod identity, which hands out the credentials, has failed or restarts.
            raise UnfitError(f"{str(error).rstrip('.')}. {_FIX_ACCESS}") from caught
        if isinstance(error, (of.HTTPClientError, of.ConnectionError, of.IncompleteReadError)):
            raise TransientError(f"no connection ({error})") from caught
        raise S3RejectedError(f"{str(error).rstrip('.')}. {_FIX_ACCESS}") from caught
