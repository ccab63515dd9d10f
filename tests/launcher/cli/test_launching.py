"""`run` up to the moment in which something is sent: what is asked for, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher.cli import launching, recipe
from launcher.cli.helm import Helm
from launcher.cli.problems import UsageError

ROOT = Path(__file__).resolve().parents[3]
CHART = str(ROOT / "charts" / "paddle-training")
DEFAULTS = yaml.safe_load((ROOT / "charts" / "paddle-training" / "values.yaml").read_text())
Cli = Callable[..., tuple[int, str, str]]

PROGRAM = """
import paddle
from launcher.worker.interface import Real, real_number
COLUMNS, LABEL, OPTIONS = ("y", "x"), "y", {"rate": 0.1}
def inputs(job): return {"x": Real(), "y": Real()}
def parse(row, job): return {name: real_number(row, name, -10, 10) for name in COLUMNS}
def network(data, job):
    line = paddle.static.nn.fc(data["x"], 1, name="line")
    return line, paddle.mean(paddle.square(line - data["y"]))
def metrics(prediction, label): return {"error": float(abs(prediction - label).mean())}
def optimizer(job): return paddle.optimizer.SGD(job.options["rate"])
"""
paddle_is_here = pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="no paddlepaddle here")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program and its rows."""
    (tmp_path / "My Line").mkdir()
    (tmp_path / "My Line" / "trainer_config.py").write_text(PROGRAM)
    (tmp_path / "rows.txt").write_text("1\t2\n3\t4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(**more: object) -> launching.Request:
    given = {"program": Path("My Line"), "data": "rows.txt", "values": [], "settings": []}
    return launching.Request(
        **{**given, "trainers": None, "passes": None, "check": False, "keep": Path("kept.yaml"), **more}
    )


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("training.batchSize=128", ("training", "batchSize"), 128),
        ("data.columns=[a, b]", ("data", "columns"), ["a", "b"]),
        ("runId=2", ("runId",), "2"),  # a text of the chart stays one
        ("data.delimiter=,", ("data", "delimiter"), ","),
        ("learning_rate=1e-3", ("training", "extraArgs"), ["--width=4", "--learning_rate=1e-3"]),
        ("width=8", ("training", "extraArgs"), ["--width=8"]),
    ],
)
def test_a_setting_is_a_value_of_the_chart_or_an_option_of_the_program(
    setting: str, path: tuple[str, ...], value: object
) -> None:
    found: object = recipe.apply({"training": {"extraArgs": ["--width=4"]}}, [setting], DEFAULTS)
    for key in path:
        assert isinstance(found, dict)
        found = found[key]
    assert found == value


@pytest.mark.parametrize("setting", ["batchSize", "=1", "trainin.passes=1", "data.columns=[a"])
def test_a_setting_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(UsageError):
        recipe.apply({}, [setting], DEFAULTS)


def test_a_misspelt_value_or_option_is_told_with_the_one_that_is_like_it(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("run", "My Line", "--data", "rows.txt", "--set")
    code, _, err = cli(*given, "trainig.passes=3")
    assert code == 64
    assert "the chart has no value trainig" in err
    assert "did you mean training?" in err
    code, _, err = cli("sweep", "My Line", "--data", "rows.txt", "--grid", "dta.seed=1,2")
    assert code == 64
    assert "did you mean data?" in err
    # What lies deeper, helm knows: a stand-in for it on a cluster, with the real one's words.
    text = "- at '/training': additional properties 'passs' not allowed"
    fake = here / "bin" / "helm"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ $1 = show ] && exec cat {CHART}/values.yaml\necho "{text}" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match=r"'passs' not allowed\npasss: did you mean passes\?$"):
        Helm(CHART, "paddle").check("paddle-training", "", "", here / "mine.yaml")


def test_a_training_is_one_whole_file_of_what_was_asked_for(here: Path) -> None:
    (here / "mine.yaml").write_text("training: {passes: 9, batchSize: 8}\ndata: {format: lines, seed: 3}\n")
    (made,) = launching.prepare(
        asked(values=[here / "mine.yaml"], settings=["rate=0.5", "data.seed=4"], trainers=2, passes=1),
        Helm(CHART, "paddle"),
        print,
    )
    assert made.values["jobName"] == "my-line"
    training = made.values["training"]
    assert (training["passes"], training["batchSize"], training["extraArgs"]) == (1, 8, ["--rate=0.5"])
    assert training["config"] == "My-Line/trainer_config.py"
    assert made.values["data"]["seed"] == 4
    assert made.values["data"]["source"] == "file://rows.txt"
    assert made.values["trainers"] == 2
    (here / "My Line" / "trainer_config.py").write_text(PROGRAM + "# edited\n")
    (again,) = launching.prepare(asked(), Helm(CHART, "paddle"), print)
    assert again.values["training"]["programSha256"] != training["programSha256"], "an edit trains again"


@paddle_is_here
@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ("1\t2\n1\tmany\n", (), "rows.txt, row 2: column x is 'many'"),
        ("1,2\n", (), "rows.txt, row 1"),
        ("y;x\n1;many\n", ("--set", "data.format=csv", "--set", "data.delimiter=;"), "column x is 'many'"),
        ("1\t2\n", ("--set", "depth=3"), "'--depth=3', but .* knows only"),
    ],
)
def test_what_is_wrong_with_program_or_rows_is_told_before_any_cluster_is_asked(
    cli: Cli, here: Path, rows: str, options: tuple[str, ...], told: str
) -> None:
    (here / "rows.txt").write_text(rows)
    nowhere = ("--kubeconfig", "not-there")
    code, _, err = cli("run", "My Line", "--data", "rows.txt", *nowhere, *options)
    assert code == 65 or "knows only" in err
    assert re.search(told, err), err
    assert not list(here.glob("*.values.yaml"))


@paddle_is_here
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Paddle warns of its own expressions
def test_rows_in_an_archive_are_tried_with_its_tables(cli: Cli, here: Path) -> None:
    program = (
        PROGRAM + 'TABLES = ("side.csv",)\ndef prepare(job): assert job.tables["side.csv"].read_text()\n'
    )
    (here / "My Line" / "trainer_config.py").write_text(program)
    (here / "in").mkdir()
    (here / "in" / "side.csv").write_text("1")
    shutil.copy("rows.txt", "in/rows.txt")
    shutil.make_archive("packed", "zip", here / "in")
    options = ("--set", "data.member=rows.txt", "--set", "data.tables=[side.csv]")
    _, _, err = cli("run", "My Line", "--data", "packed.zip", *options, "--kubeconfig", "not-there")
    assert "parses the first 2 rows (0 skipped)" in err
    assert "--kubeconfig not-there is not there" in err


def test_without_helm_or_chart_it_says_what_is_missing(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = cli("run", "My Line", "--data", "rows.txt", "--chart", "nowhere")
    assert code == 64
    assert "--chart nowhere is no chart" in err
    monkeypatch.setenv("PATH", str(here))
    code, _, err = cli("run", "My Line", "--data", "rows.txt")
    assert code == 64
    assert "there is no helm on PATH" in err


def test_run_names_its_own_options(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^--data gone\.txt is no file"):
        launching.prepare(asked(data="gone.txt"), Helm(CHART, "paddle"), print)
    (here / "My Line").rename(here / "output")
    with pytest.raises(UsageError, match=r"^output is the name of a folder .* Rename it\.$"):
        launching.prepare(asked(program=Path("output")), Helm(CHART, "paddle"), print)


@paddle_is_here
def test_a_sweep_by_a_score_that_the_program_lacks_is_refused_before_anything_is_sent(
    cli: Cli, here: Path
) -> None:
    program = here / "shop" / "trainer_config.py"
    program.parent.mkdir()
    text = (ROOT / "launcher" / "programs" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    program.write_text(text)
    (here / "rows.txt").write_text("1\t12\tred shoes\n0\t1\tweather\n")
    for data in ("rows.txt", "s3://elsewhere/rows"):
        given = ("shop", "--data", data, "--grid", "width=4,8", "--by", "mae", "--kubeconfig", "not-there")
        code, _, err = cli("sweep", *given)
        assert (code, "--by mae: the program has no such score, but error. Nothing was sent." in err) == (
            64,
            True,
        )
