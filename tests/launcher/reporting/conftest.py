"""Fixtures for the tests of plots and report: the text of a metrics.csv, and the folder of a complete run."""

import json
from pathlib import Path

import pytest

from tests.launcher.cli.conftest import METRICS


@pytest.fixture
def metrics_text() -> str:
    """Return a metrics.csv: two passes of two ranks, the second trained twice by rank 0, and an incomplete line."""
    return METRICS + "2,0,1,10"


@pytest.fixture
def job_folder(tmp_path: Path) -> Path:
    """Create the folder <JOB_PATH>/quick-start of a complete run."""
    output = tmp_path / "quick-start" / "output"
    output.mkdir(parents=True)
    (output.parent / "manifest.json").write_text(
        json.dumps({"dataDigest": "d" * 64, "lines": 21000, "shards": []})
    )
    (output / "run.json").write_text(json.dumps({"runId": "quick-start-1a2b3c4d", "state": "complete"}))
    (output / "metrics.csv").write_text(METRICS)
    return output.parent
