"""Options that several commands share, and the decorator that adds them to a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer

from launcher.cli.cluster_api import CHART, NAMESPACE, connect
from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import ClusterSession, FolderSession, Session
from launcher.cli.storage import StorageRequest
from launcher.cli.terminal import reserve_stdout

OutputFormat = Literal["text", "json"]


def _reserve_stdout_for_json(chosen: OutputFormat) -> OutputFormat:
    if chosen == "json":
        reserve_stdout()
    return chosen


Format = Annotated[
    OutputFormat,
    typer.Option(
        "--output", "-o", callback=_reserve_stdout_for_json, help="Print text, or JSON for scripts."
    ),
]
ScriptOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|MODULE",
        help="The script in the folder (tools/train.py), or its module (tools.train); default: trainer_config.py, "
        "train.py, or the only .py file at the folder's top.",
    ),
]
RequirementsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|none",
        help="A file with the Python packages that the program needs (requirements.txt, pyproject.toml); default: "
        "the one at the folder's top. none: the image's packages only.",
    ),
]
PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path",
        metavar="DIR",
        help="Use the job's folder <JOB_PATH>/<JOB_NAME> on this machine, without a cluster.",
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


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The options of `run`, `sweep` and `try` that say what is trained, and with which values."""

    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM",
            help="A program's folder (for `try` also its file), or the name of an example: quick_start, ctr, …",
        ),
    ]
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- ARGUMENTS",
            help="After `--`: the arguments of a script, as they are ({output_dir} and others become paths of the "
            "run); they replace training.args.",
        ),
    ] = None
    script: ScriptOption = None
    requirements: RequirementsOption = None
    values: Annotated[
        list[Path] | None,
        typer.Option(
            "--values", "-f", metavar="VALUES.yaml", help="A file with chart values; later ones override."
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A value of the chart (training.batchSize=128), or an option of the program (width=4).",
        ),
    ] = None


def open_release(
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> ClusterSession:
    """Return a session on the release on the cluster. Raises UsageError for an unusable kubeconfig."""
    return ClusterSession(connect(kubeconfig, context, namespace), release)


def open_session(
    path: PathOption = None,
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> Session:
    """Return a session on the folder of `--path`, or without it on the release on the cluster."""
    if path is None:
        return open_release(release, namespace, kubeconfig, context)
    if kubeconfig is not None or context is not None:
        raise UsageError("--path excludes --kubeconfig and --context", "omit them, or --path")
    return FolderSession(path)


MAX_WAIT = 366 * 24 * 3600.0
"""Largest --timeout in seconds. Without a limit, `inf` would pass the check and fail later."""
FollowTimeout = Annotated[
    float,
    typer.Option(
        min=0, max=MAX_WAIT, metavar="SECONDS", help="Stop following after this time (exit code 2)."
    ),
]

Command = Callable[..., None]


def _options_of(builder: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or dataclass that become options of a command, by name."""
    is_class = isinstance(builder, type)
    every: Mapping[str, inspect.Parameter] = inspect.signature(builder, eval_str=not is_class).parameters
    if is_class:  # the types of an inherited field are names of the module of its class
        hints = get_type_hints(builder, include_extras=True)
        every = {name: one.replace(annotation=hints[name]) for name, one in every.items()}
    return {name: one for name, one in every.items() if get_origin(one.annotation) is Annotated}


def with_options(**builders: Callable[..., Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of functions or dataclasses.

    `NAME=function` replaces the parameter NAME of the command. Those parameters of the function (or dataclass) that
    have the type `Annotated` become options of the command. When the command runs, the function gets the values of
    these options, and the command gets the function's result as NAME.
    """

    def decorate(command: Command) -> Command:
        options: dict[str, inspect.Parameter] = {}
        used: dict[str, list[str]] = {}
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            found = {name: parameter}
            if name in builders:
                found = _options_of(builders[name])
                used[name] = list(found)
            options |= found

        @functools.wraps(command)
        def run_command(**given: Any) -> None:
            built = {
                name: builders[name](**{key: given.pop(key) for key in keys}) for name, keys in used.items()
            }
            command(**built, **given)

        # Typer reads the signature and the annotations.
        run_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in options.values()]
        )
        run_command.__annotations__ = {name: one.annotation for name, one in options.items()}
        return run_command

    return decorate


with_release = with_options(session=open_release)
"""Decorator: replaces the parameter `session` of a command by the options of `open_release`."""
with_session = with_options(session=open_session)
"""Decorator: replaces the parameter `session` of a command by the options of `open_session`."""
with_storage = with_options(session=open_session, request=StorageRequest)
"""Decorator: does what `with_session` does, and replaces the parameter `request` by the options of StorageRequest."""
