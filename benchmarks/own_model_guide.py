"""Run docs/how-to/own-model.md on the local cluster; compare its commands and minutes with the 2017 tutorial.

`python -m benchmarks.own_model_guide` runs tests/e2e/test_own_model_guide.py, which follows the page, and prints
for each section

- `walk_commands_<section>`: command lines, compared with those that the tutorial needs for the same
  (COMMANDS, from the text of its versions; files to write are counted on neither side);
- `walk_minutes_<section>`: minutes, compared with those in the tutorial: 7 for its data Job and 20 for its
  training. The tutorial states no minutes for its other steps, and has no steps that compare, serve or sweep models.

"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._result_lines import print_ratio

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
    """Run the test, print the lines and return pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        argv = [sys.executable, "-m", "pytest", "-q", "tests/e2e/test_own_model_guide.py"]
        ended = subprocess.run(argv, cwd=REPO, env={**os.environ, "WALK_TIMES": str(times)}, check=False)
        if ended.returncode:
            return ended.returncode
        for title, result in json.loads(times.read_text()).items():
            name = re.sub(r"\W+", "_", title.lower())
            if COMMANDS[title]:
                print_ratio(f"walk_commands_{name}", result["commands"], len(COMMANDS[title]), "")
            if title in MINUTES:
                print_ratio(f"walk_minutes_{name}", result["seconds"] / 60, MINUTES[title], "min")
            else:
                print(f"# {title}: {result['commands']} commands, {result['seconds'] / 60:.1f} min")
    return 0


if __name__ == "__main__":
    sys.exit(main())
