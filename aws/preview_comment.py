"""The comment on a pull request: the preview's output and the diff of the rendered chart.

`pulumi preview` shows which values of the Helm release change, but not what that changes in the cluster. So the chart
is rendered twice, from the base and from the head of the pull request, each with its own files and settings. When
the cluster's API cannot be reached (a private endpoint), the preview excludes the Kubernetes resources and the
comment says so.
"""

from __future__ import annotations

import difflib
import re
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from aws.stack_access import FOLDER, CommandError, read_stack
from infra import chart_values
from infra.settings import SettingsError, load_settings, read_stack_config

# The workflow finds its earlier comment by this line and replaces it.
MARKER = "<!-- paddle-training preview of {stack} -->"
# GitHub rejects comments of more than 65,536 characters.
LIMIT = 65_000
CONNECT_SECONDS = 10
WITHOUT_CLUSTER = ("--exclude", "**kubernetes:**", "--exclude-dependents")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def code_block(text: str, language: str, room: int) -> str:
    """Return `text` as a Markdown code block with a fence that `text` does not contain.

    Text beyond `room` characters is replaced by a note.
    """
    plain = _ANSI.sub("", text).strip("\n")
    if len(plain) > room:
        cut = plain[:room].rpartition("\n")[0]
        left = plain[len(cut) :].count("\n")
        plain = f"{cut}\n… {left} more lines; they are in the workflow's log"
    longest = max((len(run_) for run_ in re.findall(r"`+", plain)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{plain}\n{fence}"


def build_comment(stack: str, code: int, preview: str, chart: str, unreachable: str) -> str:
    """Return the comment as Markdown, within GitHub's limit.

    `code` and `preview` are exit code and output of the preview, `chart` is the diff of the rendered chart, and
    `unreachable` is why the preview excluded the Kubernetes resources; the last two may be empty.
    """
    head = [MARKER.format(stack=stack), f"### Preview of `{stack}`"]
    if code != 0:
        head.append(f"**The preview failed** (exit code {code}). Fix: correct the cause in its output below.")
    if unreachable != "":
        why = f"since the cluster's API was not reached ({unreachable})"
        head.append(f"**Not compared:** namespace and release, {why}. What follows is AWS only.")
    room = LIMIT - sum(map(len, head)) - 500
    changes = code_block(chart, "diff", room // 2) if chart != "" else "The rendered chart does not change."
    shown = code_block(preview, "diff", room - min(len(chart), room // 2))
    return "\n\n".join([*head, shown, "### Rendered chart, base → head", changes]) + "\n"


def why_unreachable(kubeconfig: str) -> str:
    """Return why the API server of this kubeconfig cannot be reached from here, or an empty text."""
    try:
        server = urlsplit(yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]["server"])
        address = (str(server.hostname), server.port or 443)
    except (yaml.YAMLError, KeyError, IndexError, TypeError, ValueError):
        return "the stack has no kubeconfig"
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return f"{address[0]}: {error.strerror or error}"
    return ""


def run_preview(stack: str) -> tuple[int, str, str]:
    """Run the preview; return its exit code, its output, and why it excluded the Kubernetes resources (or "").

    Raises:
        CommandError: pulumi is not on PATH.
    """
    if shutil.which("pulumi") is None:
        raise CommandError("pulumi is not on PATH. Fix: install it")
    try:
        known = read_stack(stack).outputs()
    except (CommandError, SettingsError):
        known = {}  # the preview itself reports invalid settings
    # Before the first `up`, and with compute off, there is no cluster to exclude.
    why = why_unreachable(known["kubeconfig"]) if "kubeconfig" in known else ""
    argv = ["pulumi", "preview", "--diff", "--non-interactive", "--color", "never", "--stack", stack]
    argv += WITHOUT_CLUSTER if why else ()
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(argv, cwd=FOLDER, check=False, text=True, stdout=pipe, stderr=out)
    return done.returncode, done.stdout, why


def render_chart(folder: Path, stack: str) -> str:
    """Return the rendered chart of a checkout, from its own chart, values and settings, as YAML text.

    Raises:
        CommandError, SettingsError: the checkout has no such stack, or invalid settings or values.
        FileNotFoundError: helm is not on PATH.
    """
    settings = load_settings(read_stack_config(folder, stack))
    # Without the stack's image: its digest differs with every commit, and this diff is about the chart.
    done = chart_values.run_helm_template(settings, chart_values.user_values(settings, folder), folder)
    if done.returncode != 0:
        raise CommandError(
            f"helm cannot render the chart in {folder}. Fix: correct the cause:\n{done.stderr.strip()}"
        )
    return done.stdout


def chart_diff(base: Path, head: Path, stack: str) -> str:
    """Return the unified diff of the chart rendered in two checkouts, or the error of a rendering that failed."""
    texts = []
    for name, folder in (("base", base), ("head", head)):
        try:
            texts.append(render_chart(folder, stack).splitlines())
        except (CommandError, SettingsError, FileNotFoundError) as error:
            return f"The {name} could not be rendered, so nothing was compared.\n{error}"
    return "\n".join(difflib.unified_diff(texts[0], texts[1], "base", "head", lineterm=""))
