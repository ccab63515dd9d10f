"""Which run a command is about: the options that all of them share, and what they open."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.cli.cluster import CHART, NAMESPACE, connect
from launcher.cli.problems import UsageError
from launcher.cli.session import ClusterSession, FolderSession, Session


class Output(StrEnum):
    """How answers are printed."""

    text = "text"
    json = "json"


Format = Annotated[Output, typer.Option("--output", "-o", help="json for scripts.")]
PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path", metavar="DIR", help="Read a job's folder <JOB_PATH>/<JOB_NAME> directly; no cluster."
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
        help="Read the storage through this PersistentVolumeClaim, for a release that was uninstalled.",
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option("--image", help="Image to read with; by default that of a release of the namespace."),
]
Release = Annotated[str, typer.Option(help="Helm release.")]
Namespace = Annotated[
    str,
    typer.Option("--namespace", "-n", envvar="PADDLE_TRAINING_NAMESPACE", help="Namespace of the release."),
]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Kubeconfig; by default $KUBECONFIG or ~/.kube/config.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; by default its current one.")]


def confirmed(question: str) -> bool:
    """Return whether the user says yes to the question; False without a terminal, which asks nothing."""
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def say(text: str) -> None:
    """To stderr: stdout is for answers."""
    print(text, file=sys.stderr, flush=True)


def open_session(
    path: PathOption = None,
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> Session:
    """The folder of `--path`, else the release on the cluster."""
    if path is None:
        return ClusterSession(connect(kubeconfig, context, namespace), release, say)
    if kubeconfig is not None or context is not None:
        raise UsageError("--path reads a folder and asks no cluster: leave out --kubeconfig and --context.")
    return FolderSession(path)


def on_a_session(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes `open_session`'s options in the place of its parameter `session`."""
    where = inspect.signature(open_session, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def asked(**given: Any) -> None:
        opened = open_session(**{name: given.pop(name) for name in where})
        command(session=opened, **given)

    both = {**where, **{name: parameter for name, parameter in own.items() if name != "session"}}
    # Typer asks for the signature and for the annotations.
    asked.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in both.values()]
    )
    asked.__annotations__ = {name: parameter.annotation for name, parameter in both.items()}
    return asked
