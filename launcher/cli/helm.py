"""The chart, and the person's own helm that installs it."""

from __future__ import annotations

import json
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
from launcher import misspelt
from launcher.cli.cluster import CHART
from launcher.cli.problems import CliError, UsageError

SECONDS = 300.0  # for one command
_AT_WORK = (
    "another operation (install/upgrade/rollback) is in progress",
    "release: already exists",  # two upgrades that make the same revision
    'secrets "sh.helm.release',  # two first installations
    "cannot re-use a name",
)


def find_chart(given: str | None) -> str:
    """A chart that helm can take: `given` (a folder, a package or oci://…), else the one that came along.

    Raises UsageError.
    """
    if given is not None:
        path = Path(given)
        if "://" in given or path.is_file() or (path / "Chart.yaml").is_file():
            return given
        raise UsageError(
            f"--chart {given} is no chart: neither a folder with a Chart.yaml, nor a package, nor oci://…"
        )
    package = Path(launcher.__file__).resolve().parent
    for charts in (package / "charts", package.parent / "charts"):  # installed; a clone
        if (charts / CHART / "Chart.yaml").is_file():
            return str(charts / CHART)
    raise UsageError(
        f"the chart {CHART} is not beside the launcher in {package}. Name it with --chart PATH or oci://…"
    )


class _AtWorkError(CliError):
    """Another helm changes the release."""


@dataclass(frozen=True)
class Helm:
    """helm on PATH, for one namespace. Its own messages come with a CliError."""

    chart: str
    namespace: str
    kubeconfig: Path | None = None
    context: str | None = None

    def defaults(self) -> dict[str, Any]:
        """The chart's own values."""
        return dict(yaml.safe_load(self._run(["show", "values", self.chart])))

    def upgrade(self, release: str, values: Path) -> list[str]:
        """The command that installs or upgrades, over the values that come by stdin."""
        return [
            *("helm", "upgrade", "--install", release, _short(self.chart), "-n", self.namespace),
            *("--reset-values", "-f", "-", "-f", str(values), *self._where()),
        ]

    def check(self, release: str, base: str, values: str, keep: Path) -> dict[str, Any]:
        """Return `run.json` as an upgrade to these values would make it; nothing is changed.

        Raises UsageError when chart or cluster refuse the values.
        """
        try:
            told = self._upgraded(release, base, values, keep, "--dry-run=server", "-o", "json")
        except _AtWorkError:
            raise
        except CliError as error:
            meant = "".join(f"\n{line}" for line in _meant(str(error), self.defaults()))
            raise UsageError(f"these values are refused; nothing was sent. {error}{meant}") from error
        described = _described(release, json.loads(told)["manifest"])
        if "k8sJob" not in described:
            raise UsageError(
                f"--chart {self.chart} is no chart of {CHART}: it makes no ConfigMap {release}-run."
            )
        return described

    def run(self, release: str, base: str, values: str, keep: Path, description: str) -> None:
        """Run what `upgrade` gives for `keep`, with `values` as its content, whatever is in that file now."""
        self._upgraded(release, base, values, keep, "--description", description)

    def _upgraded(self, release: str, base: str, values: str, keep: Path, *more: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            private = Path(folder) / keep.name
            private.write_text(values, "utf-8")
            try:
                return self._run([*self.upgrade(release, private)[1:], *more], base)
            except CliError as error:
                text = str(error).replace(str(private), str(keep))
                if any(words in text for words in _AT_WORK):
                    at = f"{release} -n {self.namespace}"
                    raise _AtWorkError(
                        "another helm changes this release (`pulumi up`, or one by hand), or one was killed "
                        f"while it did. Fix: run this again once `helm history {at}` shows no pending "
                        f"revision; if one stays pending: helm rollback {at} (if it is the only one: helm "
                        f"uninstall {at}). {text}"
                    ) from error
                error.args = (text,)
                raise

    def history(self, release: str) -> list[dict[str, Any]]:
        """The release's revisions, the newest first: `revision`, `updated`, `status`, `description`."""
        words = ["history", release, "-n", self.namespace, *self._where(), "-o", "json"]
        return list(reversed(json.loads(self._run(words))))

    def claim(self, release: str, revision: int) -> str:
        """The claim of that revision; empty when it is not one of this chart's."""
        words = ["get", "manifest", release, "--revision", str(revision), "-n", self.namespace]
        return str(_described(release, self._run([*words, *self._where()])).get("claim") or "")

    def uninstall(self, release: str) -> None:
        """Removes a release; what lies on the storage stays."""
        self._run(["uninstall", release, "-n", self.namespace, *self._where()])

    def _where(self) -> list[str]:
        where = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        return [*where, "--kube-context", self.context] if self.context else where

    def _run(self, words: Sequence[str], given: str = "") -> str:
        program = shutil.which("helm")
        if program is None:
            raise UsageError(
                "there is no helm on PATH, by which a training is started. Install helm 3.14 or newer "
                "(https://helm.sh/docs/intro/install); a clone's own is on PATH after "
                'eval "$(make -s env)".'
            )
        try:
            ended = subprocess.run(
                [program, *words], input=given, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise CliError(f"helm {words[0]} did not end within {SECONDS:.0f} s") from error
        if ended.returncode:
            raise CliError(f"{shlex.join(['helm', *words])} failed: {ended.stderr.strip()}")
        return ended.stdout


def _described(release: str, manifest: str) -> dict[str, Any]:
    """`run.json` in a release's manifest; {} when there is none."""
    for thing in yaml.safe_load_all(manifest):
        if thing and (thing["kind"], thing["metadata"]["name"]) == ("ConfigMap", f"{release}-run"):
            return dict(json.loads(thing["data"]["run.json"]))
    return {}


def _meant(refusal: str, defaults: Mapping[str, Any]) -> Iterator[str]:
    """For each misspelt value that helm refuses, what it was meant to be."""
    for place, said in misspelt.AT.findall(refusal):
        known: Any = defaults
        for key in filter(None, place.split("/")):
            known = known.get(key) if isinstance(known, Mapping) else None
        name = misspelt.unknown(said)
        if name is not None and (meant := misspelt.meant(name, known or ())):
            yield f"{name}: {meant}"


def _short(chart: str) -> str:
    """Below the present folder, as a person would type it."""
    path, here = Path(chart), Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else chart
