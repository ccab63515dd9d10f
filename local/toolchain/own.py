"""A person's own pulumi, helm and kubectl on PATH: used when they fit, never changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local import say
from local.paths import cache
from local.toolchain import versions


@dataclass(frozen=True)
class Own:
    """How to ask a tool for its version, and which versions fit."""

    program: str
    ask: tuple[str, ...]
    fits: Callable[[versions.Version], bool]


OWN = (
    Own("pulumi", ("version",), versions.fits_pulumi),
    Own("helm", ("version", "--short"), versions.fits_helm),
    Own("kubectl", ("version", "--client"), versions.fits_kubectl),
)


def outside_path() -> str:
    """PATH without our own cache, so that a tool that we built is never taken for a person's."""
    ours = str(cache())
    return os.pathsep.join(
        p
        for p in os.environ.get("PATH", "").split(os.pathsep)
        if p != ours and not p.startswith(ours + os.sep)
    )


def told() -> dict[str, Path]:
    """As `found`, and says which these are."""
    fitting = found()
    for program, path in sorted(fitting.items()):
        say.note(f"{program}: {path} fits and is used")
    return fitting


def found() -> dict[str, Path]:
    """Tools on PATH in a fitting version, by program."""
    fitting = {}
    for own in OWN:
        there = shutil.which(own.program, path=outside_path())
        if there is None:
            continue
        try:
            said = subprocess.run(
                [there, *own.ask],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = versions.parse(said.stdout) if said.returncode == 0 else None
        if version is not None and own.fits(version):
            fitting[own.program] = Path(there)
    if "pulumi" in fitting and shutil.which("pulumi-language-python", path=outside_path()) is None:
        del fitting["pulumi"]  # stock pulumi comes with its language host; one without it is of no use
    return fitting
