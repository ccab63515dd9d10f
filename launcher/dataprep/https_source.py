"""Read https:// sources, and http:// sources that have a checksum."""

from __future__ import annotations

import http.client
import io
import re
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from typing import IO, Any

from launcher.dataprep.byte_streams import RemoteBody
from launcher.errors import DataError
from launcher.io.retry import TransientError

TIMEOUT_SECONDS = 30.0  # without a byte
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,18})-\d*/(\d{1,18}|\*)")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def __init__(self, key: str, name: str) -> None:
        self._key, self._name = key, name

    def redirect_request(  # noqa: PLR0917 - the signature is urllib's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        target = urllib.parse.urlsplit(newurl).scheme
        if target not in ("http", "https") or (req.type == "https" and target != "https"):
            fp.close()
            # A source in a Secret has a name without an address, and the new address may contain the same secret.
            shown = without_credentials(newurl) if "://" in self._name else f"an address with {target}://"
            raise DataError(
                f"{self._name} redirects to {shown}: redirects from https are followed to https only, since the data "
                "could be changed on the way. Fix: set "
                f"{self._key} to the final address, with https."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any
    ) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:  # the new address is malformed
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _HttpBody:
    """Reads the bytes of one HTTP response; a broken connection raises `TransientError`."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._response.read(size)
        except http.client.IncompleteRead as error:
            raise TransientError("the server closed the connection before the end of the file") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"the connection broke ({_reason(error)})") from error


def without_credentials(url: str) -> str:
    """Return the address without user, password, query and fragment, which may be secret."""
    return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", url)[0], count=1)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class HttpsOpener:
    """Opens one web address at any byte of its content, for `ResumingStream`."""

    def __init__(self, url: str, key: str, name: str) -> None:
        """Prepare to open `url`, the value of the setting `key`; messages show `name` instead of it.

        Raises:
            DataError: the address cannot be requested.
        """
        self._url, self._key, self._name = url, key, name
        self._opener = urllib.request.build_opener(_SafeRedirects(key, name))
        self._malformed = DataError(
            f"{name}: the address in {key}, a redirect or a header of the server is malformed. Fix: set {key} to the "
            "final address; curl -sIL ADDRESS shows redirects and headers."
        )
        try:
            host = urllib.parse.urlsplit(url).netloc
        except ValueError as error:
            raise self._malformed from error
        if "@" in host:
            raise DataError(
                f"{name}: {key} has a user name or password, which is not supported. Fix: use an "
                "address that is readable without a password, or a file:// or s3:// source."
            )
        if not url.isascii() or not url.isprintable() or " " in url:
            raise DataError(
                f"{name}: {key} has characters that a web address cannot contain. Fix: replace "
                "them by their percent-encoded form, such as %C3%A9 for é."
            )

    def __call__(self, offset: int, version: str, /) -> RemoteBody:
        """Request the bytes from `offset` on, if the content still has this `version`."""
        headers = {"User-Agent": "paddle-training-launcher", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if version:
                headers["If-Range"] = version
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - the scheme is checked
        try:
            response = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                # After a break at the very end of a source whose size the server did not send.
                if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{offset}":
                    return RemoteBody(io.BytesIO(), offset, offset, version, lambda: None)
                raise self._status_error(error) from error
        except (ValueError, http.client.InvalidURL) as error:
            raise self._malformed from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(
                f"no connection ({getattr(error, 'reason', '') or _reason(error)})"
            ) from error
        return self._body(response, offset)

    def _status_error(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in RETRIED_STATUS:
            wait = error.headers.get("Retry-After", "")
            return TransientError(
                f"the server answered {error.code}", float(wait) if wait.isdecimal() else 0.0
            )
        return DataError(
            f"{self._name}: the server answered {error.code} {error.reason}. Fix: check the "
            f"address in {self._key}; it must be readable without a password."
        )

    def _body(self, response: http.client.HTTPResponse, offset: int) -> RemoteBody:
        headers: Message = response.headers
        tag = headers.get("ETag", "")
        version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
        length = headers.get("Content-Length", "")
        total = int(length) if re.fullmatch(r"\d{1,18}", length) else None
        begin = 0
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            match = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is None or int(match[1]) != offset:
                response.close()
                raise TransientError(
                    f"the server answered a request from byte {offset} on with Content-Range: "
                    f"{headers.get('Content-Range')!r}"
                )
            begin = offset
            total = None if match[2] == "*" else int(match[2])
        return RemoteBody(_HttpBody(response), begin, total, version, response.close)
