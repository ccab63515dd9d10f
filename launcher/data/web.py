"""https:// and (with a checksum) http:// sources."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from typing import IO, Any

from launcher.data.stream import Body
from launcher.errors import DataError
from launcher.retry import TransientError

TIMEOUT = 30.0  # seconds without a byte
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d+)-\d*/(\d+|\*)")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(  # noqa: PLR0917 - the signature is urllib's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        target = urllib.parse.urlsplit(newurl).scheme
        if target not in ("http", "https") or (req.type == "https" and target != "https"):
            fp.close()
            raise DataError(
                f"{bare(req.full_url)} redirects to {bare(newurl)}: from https only https is followed, "
                "for nobody could tell whether the data was changed on the way. Name the final address, "
                "with https, in data.source."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Answer:
    """An http answer whose failures are `TransientError`s."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._response.read(size)
        except http.client.IncompleteRead as error:
            raise TransientError("the connection ended in the middle of a chunk") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"the connection broke ({_reason(error)})") from error


def bare(url: str) -> str:
    """The address without what may be secret in it (user, password, query)."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class Web:
    """Opens one address at any byte."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(_SafeRedirects)

    def __call__(self, offset: int, version: str, /) -> Body:
        headers = {"User-Agent": "paddle-training-launcher", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if version:
                headers["If-Range"] = version
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - the scheme is checked
        try:
            response = self._opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from error
        except urllib.error.URLError as error:
            raise TransientError(f"no connection ({error.reason})") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"no connection ({_reason(error)})") from error
        return self._body(response, offset)

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in AGAIN:
            wait = error.headers.get("Retry-After", "")
            return TransientError(
                f"the server answered {error.code}", float(wait) if wait.isdecimal() else 0.0
            )
        return DataError(
            f"{bare(self._url)}: the server answered {error.code} {error.reason}. See whether the address "
            "in data.source is right and may be read without a password."
        )

    def _body(self, response: http.client.HTTPResponse, offset: int) -> Body:
        headers: Message = response.headers
        tag = headers.get("ETag", "")
        version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
        length = headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        begin = 0
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            match = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is None or int(match[1]) != offset:
                response.close()
                raise TransientError(
                    f"the server sent another part than asked for, {headers.get('Content-Range')!r}"
                )
            begin = offset
            total = None if match[2] == "*" else int(match[2])
        return Body(_Answer(response), begin, total, version, response.close)
