"""The script of the README trains."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.paddle
def test_script_of_the_readme_learns_and_saves_a_checkpoint_after_each_epoch(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    script = readme.split("```python\n")[1].split("```")[0]
    (tmp_path / "planes").mkdir()
    (tmp_path / "planes" / "train.py").write_text(script)
    numbers = random.Random(1)  # noqa: S311 - data of a test
    rows = [[numbers.gauss(0, 1) for _ in range(4)] for _ in range(500)]
    lines = [" ".join(f"{value:.4f}" for value in row) + f" {int(sum(row) > 0)}\n" for row in rows]
    (tmp_path / "planes.txt").write_text("".join(lines))
    command = ["try", "planes/train.py", "--data", "planes.txt", "--passes", "5", "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [each["train_loss"] for each in json.loads(done.stdout)["passes"]]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert "saved pass-00004" in done.stderr
