"""The first example of the README: its command line and values file reach a repository's script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (
    "import json, os, own, sys; json.dump([sys.argv, os.getcwd(), sys.path[:1]], open('seen.json', 'w'))\n"
)


@pytest.mark.slow
def test_the_values_of_the_readme_start_a_script_in_a_folder_of_a_repository(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    [tried] = [line for line in readme.splitlines() if line.startswith("python -m launcher try")]
    (tmp_path / "seg.yaml").write_text(readme.split("```yaml\n")[1].split("```")[0])
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text(SCRIPT)
    (tmp_path / "own.py").write_text("")  # at the root, which PYTHONPATH of the values names
    (tmp_path / "setup.py").write_text("raise SystemExit('not the script')\n")
    words = tried.partition("#")[0].split()
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    argv, folder, search = json.loads((tmp_path / "seen.json").read_text())
    assert (folder, search) == (str(tmp_path), [str(tmp_path / "tools")])
    assert argv[:3] == ["tools/train.py", "--config", "configs/toy.yml"]
    assert re.fullmatch(r"/.*/output/checkpoints", argv[-1])
