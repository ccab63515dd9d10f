"""The round of docs/own-model.md on the local cluster: commands and minutes, beside the tutorial of 2017.

`python -m benchmarks.walk` runs tests/e2e/test_walk.py, which does what the page says, and prints for each of
its sections

- `walk_commands_<section>`: lines that are typed, beside those that the tutorial needs for the same
  (COMMANDS, from the text of its versions; files to write are not counted on either side);
- `walk_minutes_<section>`: minutes, beside those that the tutorial itself names: 7 of its data Job, 20 of its
  training. It names none for the rest, and has nothing to compare, to serve or to sweep with.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._lines import say

REPO = Path(__file__).resolve().parents[1]
BUILD = ("docker build -t IMAGE .", "docker push IMAGE")
JOBS = (
    "kubectl create -f paddle-data-job.yaml",
    "kubectl get jobs",
    "kubectl create -f paddle-cluster-job.yaml",
    "kubectl get pods",
    "kubectl log -f POD_NAME",
    "kubectl describe job paddle-cluster-job",
)
REMOVE = ("kubectl delete job paddle-data", "kubectl delete job paddle-cluster-job")
COMMANDS: dict[str, tuple[str, ...]] = {
    "The data": BUILD,  # the download and the split are in the data Job's image
    "The program": (),  # a file in that image
    "Train it": JOBS,
    "Change it, and again": (*BUILD, *REMOVE, *JOBS),
    "Use it": ("chmod 400 key-name.pem", "ssh core@IP", "mkdir efs", "sudo mount -t nfs4 …", "scp …"),
    "Try settings": 2 * (*BUILD, *REMOVE, *JOBS),
    "Clean up": REMOVE,
}
MINUTES = {"Train it": 7 + 20, "Change it, and again": 7 + 20, "Try settings": 2 * (7 + 20)}


def main() -> int:
    """Returns pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        argv = [sys.executable, "-m", "pytest", "-q", "tests/e2e/test_walk.py"]
        ended = subprocess.run(argv, cwd=REPO, env={**os.environ, "WALK_TIMES": str(times)}, check=False)
        if ended.returncode:
            return ended.returncode
        for title, told in json.loads(times.read_text()).items():
            name = re.sub(r"\W+", "_", title.lower())
            if COMMANDS[title]:
                say(f"walk_commands_{name}", told["commands"], len(COMMANDS[title]), "")
            if title in MINUTES:
                say(f"walk_minutes_{name}", told["seconds"] / 60, MINUTES[title], "min")
            else:
                print(f"# {title}: {told['commands']} commands, {told['seconds'] / 60:.1f} min")
    return 0


if __name__ == "__main__":
    sys.exit(main())
