"""Options that several commands share, and the session that they open."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.cli.cluster.cluster_api import CHART, NAMESPACE, connect
from launcher.cli.errors import UsageError
from launcher.cli.session import ClusterSession, FolderSession, Session


class OutputFormat(StrEnum):
    """How a command prints its answer."""

    text = "text"
    json = "json"


Format = Annotated[OutputFormat, typer.Option("--output", "-o", help="json for scripts.")]
PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path",
        metavar="DIR",
        help="Read the job's folder <JOB_PATH>/<JOB_NAME> on this machine, without a cluster. "
        "Commands that change the cluster reject this option.",
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="Another job's folder on the same storage (its jobName)."),
]
ClaimOption = Annotated[
    str | None,
    typer.Option(
        "--claim",
        metavar="NAME",
        help="Read the storage through this PersistentVolumeClaim, for a release that is uninstalled.",
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="Image of the pod that reads the storage; default: that of a release of the namespace.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Release = Annotated[str, typer.Option(help="Helm release.")]
Namespace = Annotated[
    str,
    typer.Option("--namespace", "-n", envvar="PADDLE_TRAINING_NAMESPACE", help="Namespace of the release."),
]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Kubeconfig file; default: $KUBECONFIG or ~/.kube/config.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: its current one.")]


def confirm(question: str) -> bool:
    """Return whether the user answers yes; False if stdin is not a terminal, without asking."""
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def say(text: str) -> None:
    """Print a message to stderr; stdout is for answers."""
    print(text, file=sys.stderr, flush=True)


def require_cluster(session: Session, command: str) -> ClusterSession:
    """Return the session if it is on a cluster. Raises UsageError for the folder of --path."""
    if not isinstance(session, ClusterSession):
        raise UsageError(
            f"--path reads a folder, but `{command}` changes objects of a cluster",
            "choose the release with --release and --namespace instead of --path",
        )
    return session


def open_session(
    path: PathOption = None,
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> Session:
    """Return a session on the folder of `--path`, else on the release on the cluster."""
    if path is None:
        return ClusterSession(connect(kubeconfig, context, namespace), release, say)
    if kubeconfig is not None or context is not None:
        raise UsageError("--path reads a folder, no cluster", "omit --kubeconfig and --context")
    return FolderSession(path)


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of `open_session` in place of its parameter `session`."""
    session_options = inspect.signature(open_session, eval_str=True).parameters
    own_options = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        opened = open_session(**{name: given.pop(name) for name in session_options})
        command(session=opened, **given)

    both = {**session_options, **{name: one for name, one in own_options.items() if name != "session"}}
    # Typer reads the signature and the annotations.
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in both.values()]
    )
    with_options.__annotations__ = {name: parameter.annotation for name, parameter in both.items()}
    return with_options
