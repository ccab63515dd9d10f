"""`dashboard`: show all trainings of a namespace in a browser, while they train.

The HTTP server listens on the loopback interface, and is read-only. Other web pages in the same browser must not read
its pages. So the server rejects a request if the host in it is not a name of this machine (a defence against DNS
rebinding), or if another site has made the request and the user has not followed a link of that site. The pages run
only the dashboard's own script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import typer

from launcher.cli.cluster_api import NAMESPACE
from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import Session
from launcher.cli.live_page import pages
from launcher.cli.live_page.readings import OVERVIEW_SECONDS, VIEW_SECONDS, Readings, Seen
from launcher.cli.shared_options import Context, Kubeconfig, Namespace, PathOption, open_session, with_options
from launcher.cli.terminal import print_line
from launcher.reporting.html_report import STYLE

HOSTS = ("127.0.0.1", "localhost")
REQUEST_SECONDS = 10  # for a browser to send its request, or to take the answer
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_HERE = Path(pages.__file__).parent
_FILES = {
    "/page.css": ("text/css", (STYLE, _HERE / "page.css")),
    "/page.js": ("text/javascript", (_HERE / "page.js",)),
}


class DashboardServer(ThreadingHTTPServer):
    """Serves the pages of `readings` on a port of 127.0.0.1; port 0 means any free port.

    Raises OSError if the port is in use.
    """

    daemon_threads = True

    def __init__(self, readings: Readings, port: int) -> None:
        """Bind the port."""
        self.readings = readings
        super().__init__((HOSTS[0], port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed its connection; print the traceback of any other error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: DashboardServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._is_allowed():
            self._send(
                HTTPStatus.FORBIDDEN, "text/plain", "this address is only for a browser on this machine\n"
            )
        elif path in _FILES:
            kind, files = _FILES[path]
            self._send(HTTPStatus.OK, kind, "".join(file.read_text("utf-8") for file in files))
        else:
            status, page = self._render(path, {key: values[-1] for key, values in parse_qs(query).items()})
            self._send(status, "text/html", page)

    def _is_allowed(self) -> bool:
        """Return whether a page of this server, or the user, made the request."""
        site, target = (self.headers.get(f"Sec-Fetch-{name}", "none") for name in ("Site", "Dest"))
        host = self.headers.get("Host", "").partition(":")[0]
        return host in HOSTS and (site in ("none", "same-origin") or target == "document")

    def _render(self, path: str, query: Mapping[str, str]) -> tuple[HTTPStatus, str]:
        """Return the HTTP status and the HTML of the page for this path and query."""
        readings = self.server.readings
        names = readings.jobs.get(OVERVIEW_SECONDS / 2)
        jobs = names.value or {}
        if path == "/":
            views = {name: job.view.get(OVERVIEW_SECONDS, wait=False) for name, job in jobs.items()}
            return HTTPStatus.OK, pages.render_overview(readings.where, names, views)
        release = query.get("release", "")
        job = jobs.get(release)
        if path not in ("/run", "/runs") or (job is None and names.value is not None and not names.problem):
            return HTTPStatus.NOT_FOUND, pages.render_absent(release)
        if job is None:
            return HTTPStatus.OK, pages.render_run(release, Seen(None, problem=names.problem))
        if path == "/run":
            job.is_open = True
            return HTTPStatus.OK, pages.render_run(release, job.view.get(VIEW_SECONDS))
        runs = job.runs.get(VIEW_SECONDS)
        return HTTPStatus.OK, pages.render_runs(release, runs, query.get("a"), query.get("b"))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Print nothing about requests."""


def _open_namespace(
    path: PathOption = None,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> Session:
    """Return a session for the dashboard, which reads the folder of `--path`, or else all releases of the namespace.

    The dashboard does not use the session's release.
    """
    return open_session(path=path, namespace=namespace, kubeconfig=kubeconfig, context=context)


@with_options(session=_open_namespace)
def dashboard(
    session: Session,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 chooses a free one.")] = 0,
) -> None:
    """Serve a page on this machine with all releases of the namespace: curves, ranks, restarts, logs, comparisons.

    The page follows the trainings and changes nothing. Its address is printed; Ctrl-C ends it. Other users of this
    machine can open it, too.
    """
    readings = Readings(session)
    try:
        server = DashboardServer(readings, port)
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror}", "choose another port, or omit --port") from error
    with server:
        print_line(f"{readings.where}: http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        finally:
            readings.close()
