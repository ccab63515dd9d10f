"""Find the training chart, and run the `helm` that is installed on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import launcher
from launcher.cli.cluster.cluster_api import CHART
from launcher.cli.errors import CliError, UsageError
from launcher.io import spelling

COMMAND_SECONDS = 300.0  # one helm command may take so long
_CONFLICTS = (
    "another operation (install/upgrade/rollback) is in progress",
    "release: already exists",  # two upgrades that create the same revision
    'secrets "sh.helm.release',  # two first installations
    "cannot re-use a name",
    "cannot reuse a name",  # Helm 4
)
_FIELD_CONFLICT = "conflict occurred while applying object"
"""Part of Helm 4's message if another client has set a field to another value than the release."""
_HELM_FIX = "correct what helm reports, then run the same command again"


def find_chart() -> str:
    """Return the folder of the chart that comes with the launcher. Raises UsageError if it is absent."""
    package = Path(launcher.__file__).resolve().parent
    for charts in (package / "charts", package.parent / "charts"):  # installed; a clone
        if (charts / CHART / "Chart.yaml").is_file():
            return str(charts / CHART)
    raise UsageError(
        f"the chart {CHART} is not next to the launcher in {package}",
        "run the command in a clone of the project, or pip install '.' there again",
    )


class HelmFailedError(CliError):
    """A helm command exited with an error; the message has what helm printed."""


class HelmConflictError(CliError):
    """Raised when another helm process changes the release at the same time, or was killed while it did."""


@dataclass(frozen=True)
class Helm:
    """Runs helm from PATH for one namespace. Raises CliError with helm's own message if a command fails.

    In its methods, `base` is the YAML of the values that describe the cluster, and `values` that of the training's
    values, which override them. `keep` is the path that messages show for `values`; this file is not read.
    """

    chart: str
    namespace: str
    kubeconfig: Path | None = None
    context: str | None = None

    def read_defaults(self) -> dict[str, Any]:
        """Return the default values of the chart."""
        return dict(yaml.safe_load(self._run(["show", "values", self.chart])))

    def upgrade_command(self, release: str, values: Path) -> list[str]:
        """Return the helm command line (argv) that installs or upgrades a release.

        helm reads the values that describe the cluster from stdin; those in the file `values` override them. Without
        --cleanup-on-fail, helm would forget the objects that a failed upgrade has created.
        """
        return [
            *("helm", "upgrade", "--install", release, _short(self.chart), "-n", self.namespace),
            *("--reset-values", "--cleanup-on-fail", "-f", "-", "-f", str(values), *self._options()),
        ]

    def check(self, release: str, base: str, values: str, keep: Path) -> str:
        """Return the name of the training Job that an upgrade to these values would create; nothing is changed.

        Raises UsageError if the chart or the cluster rejects the values.
        """
        try:
            answer = self._upgraded(release, base, values, keep, "--dry-run=server", "-o", "json")
        except HelmFailedError as error:
            hints = "".join(f"\n{line}" for line in _suggest_keys(error.problem, self.read_defaults()))
            raise UsageError(
                f"helm rejects the values of release {release}, and nothing was changed: {error.problem}{hints}",
                "correct the values that helm reports, then run the same command again",
            ) from error
        run_json = _run_json(release, json.loads(answer)["manifest"])
        if run_json.get("cronJob"):
            raise UsageError(
                f"training.schedule is set, but `run` starts a training now; nothing of {release} was changed",
                "remove training.schedule here; once the training works, set it with helm upgrade",
            )
        return str(run_json["k8sJob"])

    def upgrade(self, release: str, base: str, values: str, keep: Path, description: str) -> None:
        """Install or upgrade a release. Raises HelmConflictError if another helm process changes the release."""
        self._upgraded(release, base, values, keep, "--description", description)

    def _upgraded(self, release: str, base: str, values: str, keep: Path, *more: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            private = Path(folder) / keep.name
            private.write_text(values, "utf-8")
            try:
                return self._run([*self.upgrade_command(release, private)[1:], *more], base)
            except HelmFailedError as error:
                text = error.problem.replace(str(private), str(keep))
                if any(part in text for part in _CONFLICTS):
                    at = f"{release} -n {self.namespace}"
                    raise HelmConflictError(
                        f"{text}\nAnother helm (`pulumi up`, or one started by hand) changes this release, "
                        "or was killed while it did",
                        f"run this again once `helm history {at}` shows no pending revision; if one stays "
                        f"pending: helm rollback {at} (if it is the only one: helm uninstall {at})",
                    ) from error
                if _FIELD_CONFLICT in text:
                    raise HelmFailedError(
                        f"{text}\nAnother client (kubectl, Kueue, `stop` or `resume`) has changed these fields in "
                        "the cluster, and Helm 4 does not overwrite them; helm may have changed other objects of the "
                        "release",
                        "remove the fields from your values, or give them the value that they have in the cluster; "
                        "then run the same command again",
                    ) from error
                raise HelmFailedError(text, _HELM_FIX) from error

    def uninstall(self, release: str) -> None:
        """Uninstall a release. The storage keeps its data and results."""
        self._run(["uninstall", release, "-n", self.namespace, *self._options()])

    def _options(self) -> list[str]:
        options = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        return [*options, "--kube-context", self.context] if self.context else options

    def _run(self, words: Sequence[str], given: str = "") -> str:
        program = shutil.which("helm")
        if program is None:
            raise UsageError(
                "helm is not on PATH; it installs and upgrades the release of a training",
                "install helm 3.14 or newer (https://helm.sh/docs/intro/install); in a clone, "
                'eval "$(make -s env)" adds the clone\'s helm to PATH',
            )
        try:
            ended = subprocess.run(
                [program, *words],
                input=given,
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_SECONDS,
                # Variables such as HELM_KUBECONTEXT and HELM_KUBEAPISERVER may select another cluster than ours.
                env={name: text for name, text in os.environ.items() if not name.startswith("HELM_KUBE")},
            )
        except subprocess.TimeoutExpired as error:
            raise CliError(
                f"helm {words[0]} timed out after {COMMAND_SECONDS:.0f} s",
                f"check that the cluster answers (kubectl get pods -n {self.namespace}), and run this again",
            ) from error
        if ended.returncode:
            raise HelmFailedError(f"{shlex.join(['helm', *words])} failed: {ended.stderr.strip()}", _HELM_FIX)
        return ended.stdout


def _run_json(release: str, manifest: str) -> dict[str, Any]:
    """Return `run.json` of the run ConfigMap in a release's manifest; {} if there is none."""
    for thing in yaml.safe_load_all(manifest):
        if thing and (thing["kind"], thing["metadata"]["name"]) == ("ConfigMap", f"{release}-run"):
            return dict(json.loads(thing["data"]["run.json"]))
    return {}


def _suggest_keys(message: str, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield `KEY: did you mean KNOWN?` for each unknown key of the values that helm's message rejects."""
    for path, problem in spelling.AT.findall(message):
        known: Any = defaults
        for key in filter(None, path.split("/")):
            known = known.get(key) if isinstance(known, Mapping) else None
        name = spelling.find_unknown_name(problem)
        if name is not None and (hint := spelling.suggest(name, known or ())):
            yield f"{name}: {hint}"


def _short(chart: str) -> str:
    """Return the chart's path relative to the current folder if it is inside it, else the path unchanged."""
    path, here = Path(chart), Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else chart
