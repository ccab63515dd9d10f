"""`make try`: a real training by launchers on loopback, and what it leaves behind."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from local import example_data, try_example
from local.external_commands import LocalError
from local.launcher_gang import LauncherGang, find_processes, job_environment


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the data of `make try` by 60 lines and one pass; return the folder in which it trains."""
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    sources = tmp_path / "cache" / "try" / "sources"
    sources.mkdir(parents=True)
    rows = "".join(
        f"{'positive' if i % 2 else 'negative'},word{i} {'good' if i % 2 else 'bad'}\n" for i in range(60)
    )
    (sources / "rows.csv").write_text("sentiment,text\n" + rows)
    monkeypatch.setattr(example_data, "ensure_wheels", lambda folder: None)
    values = {
        "jobName": "small",
        "trainers": 2,
        "portsNum": 1,
        "portsNumSparse": 1,
        "training": {"config": "quick_start/trainer_config.py", "passes": 1, "batchSize": 8},
        "data": {"source": "file://rows.csv", "format": "csv", "columns": ["sentiment", "text"]},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr(try_example.local_stack, "EXAMPLES", tmp_path)
    monkeypatch.setattr(try_example.local_stack, "check_example_exists", lambda name: None)
    return tmp_path / "cache" / "try" / "small"


@pytest.mark.slow
def test_launchers_train_without_a_cluster_and_leave_a_model_but_no_process(
    example: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try_example.run("small")
    output = example / "shared" / "small" / "output"
    assert (output / "model" / "score.json").exists()
    assert (output / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "complete" in (output / "report.html").read_text("utf-8"), (
        "created after run.json recorded the end"
    )
    assert [path.parent.name for path in sorted(output.glob("node_*/train.log"))] == ["node_0", "node_1"]
    printed = capfd.readouterr().out
    assert "score on the test set: error" in printed
    assert re.search(
        r'served: POST /predict {"text": "word\d+ .*\n.*answer: (posi|nega)tive with a chance', printed
    )
    assert find_processes(example) == []
    check_files_against_schemas(example)


def check_files_against_schemas(folder: Path) -> None:
    """Validate each JSON file of a finished run that has a schema in docs/reference/schemas."""
    seen = set()
    for path in (Path(__file__).parents[2] / "docs" / "reference" / "schemas").glob("*.schema.json"):
        schema = json.loads(path.read_text())
        for file in folder.rglob(schema["title"]):
            jsonschema.validate(json.loads(file.read_text()), schema)
            seen.add(file.name)
    assert seen == {
        *("manifest.json", "run.json", "status.json", "progress.json", "contents.json", "model.json")
    }


@pytest.mark.slow
def test_failed_training_raises_its_cause_and_leaves_no_process(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = try_example.example_values("small")
    values["training"]["config"] = "nowhere/trainer_config.py"
    monkeypatch.setattr(try_example, "example_values", lambda _: values)
    with pytest.raises(LocalError, match="there is neither"):
        try_example.run("small")
    assert find_processes(example) == []


def test_the_message_of_a_killed_launcher_has_its_exit_code_and_the_folder_of_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_example, "CAUSE_SECONDS", 0.1)
    waiting = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(try_example, "_start_command", lambda *_: waiting)
    gang = LauncherGang(tmp_path, job_environment(tmp_path, {"trainers": 1}))
    gang.processes[0] = subprocess.Popen(["sleep", "600"])
    gang.processes[0].kill()
    with pytest.raises(LocalError, match=rf"launcher of rank 0 exited with -9\..*Fix: .*{tmp_path}"):
        try_example._follow(tmp_path, gang)
    assert waiting.poll() is not None
