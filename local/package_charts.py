"""Package the charts reproducibly: `python local/package_charts.py FOLDER` (`make package`).

Helm 3 writes the current time into an archive. Here every entry has the time `SOURCE_DATE_EPOCH` (default 0,
1970), so that everybody who packages one commit gets the same bytes.
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


def package_chart(chart: Path, to: Path) -> Path:
    """Run `helm package` on the chart folder `chart` and return the archive, written to the folder `to`.

    Raises:
        FileNotFoundError: helm is not on PATH.
        subprocess.CalledProcessError: helm rejected the chart; its message is on standard error.
    """
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["helm", "package", chart, "-d", folder], check=True, stdout=subprocess.DEVNULL)
        (package,) = Path(folder).iterdir()
        archive = to / package.name
        with (
            tarfile.open(package) as old,
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
        sys.stdout.write(f"{package_chart(CHARTS / name, Path(sys.argv[1]))}\n")
