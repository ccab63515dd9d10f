"""The comment under a pull request: what the preview says, and how the rendered chart changes.

A release's own diff shows values only, so the chart is rendered twice, from the base and from the head of
the pull request, each with its own files and settings. When the cluster's API does not answer (a private
endpoint), the preview leaves the Kubernetes resources out and the comment says so.
"""

from __future__ import annotations

import difflib
import re
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from aws.stack import CommandError, configuration, outputs, run
from infra import chart_values
from infra.problems import SettingsError
from infra.settings import load

# By this line the workflow finds its own comment again, and replaces it.
MARKER = "<!-- paddle-training preview of {stack} -->"
# GitHub refuses a comment of more than 65,536 characters.
LIMIT = 65_000
CONNECT_SECONDS = 10
KUBERNETES = "**kubernetes:**"
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Both renderings get the same stand-ins for what only a stack's resources know.
_FACTS: dict[str, str] = {
    "file_system_id": "fs-00000000000000000",
    "access_point_id": "fsap-00000000000000000",
    "file_system_host": "efs.example.internal",
    "bucket": "the-stacks-bucket",
}
_IMAGE = "example.invalid/paddle-training@sha256:" + "0" * 64


@dataclass(frozen=True)
class Report:
    """What the comment is made of. `unreachable`: why the cluster was not compared, or empty."""

    stack: str
    code: int
    preview: str
    chart: str
    unreachable: str = ""


def fenced(text: str, language: str, room: int) -> str:
    """A code block that its own text cannot end; longer text is cut to `room` characters, and says so."""
    plain = _ANSI.sub("", text).strip("\n")
    if len(plain) > room:
        cut = plain[:room].rpartition("\n")[0]
        left = plain[len(cut) :].count("\n")
        plain = f"{cut}\n… {left} more lines; they are in the workflow's log"
    longest = max((len(run_) for run_ in re.findall(r"`+", plain)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{plain}\n{fence}"


def comment(report: Report) -> str:
    """The whole comment, Markdown, within GitHub's limit."""
    head = [MARKER.format(stack=report.stack), f"### Preview of `{report.stack}`"]
    if report.code != 0:
        head.append(f"**The preview failed** (exit code {report.code}).")
    if report.unreachable != "":
        head.append(
            f"**Not compared:** namespace and release, since the cluster's API was not reached "
            f"({report.unreachable}). What follows is AWS only."
        )
    room = LIMIT - sum(map(len, head)) - 500
    changed = report.chart != ""
    changes = fenced(report.chart, "diff", room // 2) if changed else "The rendered chart does not change."
    shown = fenced(report.preview, "diff", room - min(len(report.chart), room // 2))
    return "\n\n".join([*head, shown, "### Rendered chart, base → head", changes]) + "\n"


def unreachable(kubeconfig: Any) -> str:
    """Why the API server of that kubeconfig cannot be reached from here, or an empty text."""
    loaded = yaml.safe_load(kubeconfig) if isinstance(kubeconfig, str) else kubeconfig
    try:
        server = urlsplit(loaded["clusters"][0]["cluster"]["server"])
        address = (str(server.hostname), server.port or 443)
    except (KeyError, IndexError, TypeError, ValueError):
        return "the stack has no kubeconfig"
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return f"{address[0]}: {error.strerror or error}"
    return ""


def preview_argv(stack: str, *, without_cluster: bool) -> list[str]:
    """The preview's command line."""
    argv = ["pulumi", "preview", "--diff", "--non-interactive", "--color", "never", "--stack", stack]
    return [*argv, "--exclude", KUBERNETES, "--exclude-dependents"] if without_cluster else argv


def preview(stack: str, folder: Path) -> tuple[int, str, str]:
    """Exit code and text of the preview, and why the cluster was left out (or an empty text)."""
    try:
        known = outputs(folder, stack)
    except CommandError:
        known = {}
    # Before the first `up`, and with compute off, there is no cluster: nothing is left out then.
    why = unreachable(known["kubeconfig"]) if "kubeconfig" in known else ""
    argv, pipe = preview_argv(stack, without_cluster=why != ""), subprocess.PIPE
    done = subprocess.run(argv, cwd=folder, check=False, text=True, stdout=pipe, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout, why


def rendered(folder: Path, stack: str) -> str:
    """The chart's objects as YAML text, from a checkout's own chart, values and settings.

    Raises:
        CommandError, SettingsError: the checkout has no such stack, or its settings or values are wrong.
    """
    settings = load(configuration(folder, stack))
    own = chart_values.own_values(settings, folder)
    # {launcher} and digests differ with every commit: the comment is about the chart.
    facts = chart_values.Facts(_IMAGE, **_FACTS)
    with tempfile.TemporaryDirectory(prefix="paddle-training-render.") as made:
        values = Path(made) / "values.yaml"
        values.write_text(yaml.safe_dump(chart_values.build(settings, facts, own)), encoding="utf-8")
        argv = ["helm", "template", settings.release.name, str(folder / chart_values.CHART)]
        argv += ["--namespace", settings.namespace.name, "--values", str(values)]
        # helm by itself believes in whatever Kubernetes it was built for.
        argv += ["--kube-version", f"{settings.cluster.version}.0"]
        return run(argv, folder, capture=True)


def chart_diff(base: Path, head: Path, stack: str) -> str:
    """Unified diff of the two renderings; a checkout that cannot be rendered is told in its place."""
    texts = []
    for folder in (base, head):
        try:
            texts.append(rendered(folder, stack).splitlines())
        except (CommandError, SettingsError) as error:
            name = "base" if folder == base else "head"
            return f"The {name} could not be rendered, so nothing was compared.\n{error}"
    return "\n".join(difflib.unified_diff(texts[0], texts[1], "base", "head", lineterm=""))


def report(stack: str, base: Path, head: Path) -> Report:
    """Runs the preview of `head` and compares its chart with that of `base`."""
    if shutil.which("pulumi") is None:
        raise CommandError("pulumi is not on PATH")
    code, text, why = preview(stack, head)
    return Report(stack, code, text, chart_diff(base, head, stack), why)
