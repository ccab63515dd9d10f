"""`dashboard`: show all trainings of a namespace in a browser, while they train."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.cluster_api import NAMESPACE
from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import Session
from launcher.cli.live_page.http_pages import DashboardServer
from launcher.cli.live_page.readings import Readings
from launcher.cli.shared_options import Context, Kubeconfig, Namespace, PathOption, open_session, with_options
from launcher.cli.terminal import print_line


def _open_namespace(
    path: PathOption = None,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> Session:
    """Return a session, of which only the folder of `--path`, or the namespace and its cluster are used."""
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
