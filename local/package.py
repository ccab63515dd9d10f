"""`python local/package.py DIR`: the charts as archives whose bytes depend on the charts alone.

Helm 3 writes the time of the day into an archive. Here all entries are of 1970 (or `SOURCE_DATE_EPOCH`), so
that one commit has one digest, whoever packages it.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CHARTS = Path(__file__).resolve().parent.parent / "charts"
NAMES = ("paddle-training", "paddle-serving")


def package(chart: Path, to: Path) -> Path:
    """`helm package` of a chart's folder into the folder `to`; returns the archive.

    Raises:
        FileNotFoundError: helm is not on PATH.
        subprocess.CalledProcessError: helm refuses the chart; it has said why.
    """
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["helm", "package", chart, "-d", folder], check=True, stdout=subprocess.DEVNULL)
        (made,) = Path(folder).iterdir()
        archive = to / made.name
        with (
            tarfile.open(made) as old,
            archive.open("wb") as raw,
            gzip.GzipFile("", "wb", mtime=when, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w") as new,
        ):
            for member in sorted(old, key=lambda one: one.name):
                member.mtime = when
                new.addfile(member, old.extractfile(member))
    return archive


if __name__ == "__main__":
    for name in NAMES:
        sys.stdout.write(f"{package(CHARTS / name, Path(sys.argv[1]))}\n")
