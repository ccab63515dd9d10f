"""`run` before anything is sent: the computed values, and what is rejected."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from launcher.cli import launch_training
from launcher.cli.errors import UsageError
from launcher.dataprep import data_job
from launcher.paths import JobPaths
from launcher.settings import DataSettings
from testkit.pod_settings import pod_environ
from testkit.written_files import write_files

from .conftest import Cli

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import paddle
from launcher.program import Real, real_number
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
    """Change to a folder with a program and its rows."""
    monkeypatch.chdir(tmp_path)
    return write_files(tmp_path, {"My Line/trainer_config.py": PROGRAM, "rows.txt": "1\t2\n3\t4\n"})


def plan(**more: object) -> launch_training.TrainingPlan:
    given = {"program": Path("My Line"), "data": "rows.txt", "values": [], "settings": []}
    given |= {"trainers": None, "passes": None, "check": False, **more}
    (made,) = launch_training.plan_trainings(launch_training.LaunchOptions(**given))
    return made


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("training.batchSize=128", ("training", "batchSize"), 128),
        ("data.columns=[a, b]", ("data", "columns"), ["a", "b"]),
        ("runId=2", ("runId",), "2"),  # a text of the chart stays one
        ("data.delimiter=,", ("data", "delimiter"), ","),
        ("learning_rate=1e-3", ("training", "args"), ["--width=4", "--learning_rate=1e-3"]),
        ("width=8", ("training", "args"), ["--width=8"]),
    ],
)
def test_a_setting_is_a_value_of_the_chart_or_an_option_of_the_program(
    setting: str, path: tuple[str, ...], value: object
) -> None:
    found: object = launch_training.apply_settings({"training": {"args": ["--width=4"]}}, [setting])
    for key in path:
        assert isinstance(found, dict)
        found = found[key]
    assert found == value


@pytest.mark.parametrize(
    ("folder", "job"),
    [
        ("My_Line", "my-line"),
        ("3D-UNet", "run-3d-unet"),
        ("a" * 60 + "-b", "a" * launch_training.JOB_NAME_LENGTH),
    ],
)
def test_a_job_has_the_name_of_the_programs_folder(folder: str, job: str) -> None:
    assert launch_training.make_job_name(folder) == job


@pytest.mark.slow
def test_a_plan_has_the_values_of_files_and_options_together(here: Path) -> None:
    (here / "mine.yaml").write_text("training: {passes: 9, batchSize: 8}\ndata: {format: lines, seed: 3}\n")
    settings = ["rate=0.5", "data.seed=4"]
    made = plan(values=[here / "mine.yaml"], settings=settings, trainers=2, passes=1)
    assert made.values["jobName"] == "my-line"
    training = made.values["training"]
    assert (training["passes"], training["batchSize"], training["args"]) == (1, 8, ["--rate=0.5"])
    assert training["config"] == "My-Line/trainer_config.py"
    assert made.values["data"]["seed"] == 4
    assert made.values["data"]["source"] == "file://rows.txt"
    assert made.values["trainers"] == 2
    (here / "My Line" / "trainer_config.py").write_text(PROGRAM + "# edited\n")
    assert plan().values["training"]["programSha256"] != training["programSha256"], "an edit trains again"


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ("training: {config: My-Line/other.py}", []),
        ("training: {config: elsewhere/other.py}", []),
        ("training: {config: My-Line/trainer_config.py}", ["training.config=other.py"]),
        ("{}", ["training.config=My-Line/other.py"]),
    ],
)
def test_the_file_of_training_config_is_trained(here: Path, values: str, settings: list[str]) -> None:
    (here / "mine.yaml").write_text(values)
    (here / "My Line" / "other.py").write_text(PROGRAM)
    options = {"values": [here / "mine.yaml"], "settings": settings}
    assert plan(**options).values["training"]["config"] == "My-Line/other.py"
    (here / "My Line" / "other.py").unlink()
    with pytest.raises(UsageError, match=r"My Line has no file other\.py .*candidates: trainer_config\.py"):
        plan(**options)


@pytest.mark.slow
@paddle_is_here
@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("1\t2\n1\tmany\n", (), "rows.txt, row 2: column x is 'many'"),
        ("1,2\n", (), "rows.txt, row 1"),
        ("y;x\n1;many\n", ("--set", "data.format=csv", "--set", "data.delimiter=;"), "column x is 'many'"),
        ("1\t2\n", ("--set", "depth=3"), "'--depth=3', but .* has only"),
    ],
)
def test_an_invalid_program_or_row_is_reported_before_the_cluster_is_contacted(
    cli: Cli, here: Path, rows: str, options: tuple[str, ...], message: str
) -> None:
    (here / "rows.txt").write_text(rows)
    nowhere = ("--kubeconfig", "not-there")
    code, _, err = cli("run", "My Line", "--data", "rows.txt", *nowhere, *options)
    assert code == 65 or "has only" in err
    assert re.search(message, err), err
    assert not list(here.glob("*.values.yaml"))


@pytest.mark.slow
@paddle_is_here
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Paddle warns of its own expressions
def test_rows_in_an_archive_are_checked_with_its_tables(cli: Cli, here: Path) -> None:
    program = (
        PROGRAM + 'TABLES = ("side.csv",)\ndef prepare(job): assert job.tables["side.csv"].read_text()\n'
    )
    (here / "My Line" / "trainer_config.py").write_text(program)
    write_files(here, {"in/side.csv": "1"})
    shutil.copy("rows.txt", "in/rows.txt")
    shutil.make_archive("packed", "zip", here / "in")
    options = ("--set", "data.member=rows.txt", "--set", "data.tables=[side.csv]")
    _, _, err = cli("run", "My Line", "--data", "packed.zip", *options, "--kubeconfig", "not-there")
    assert "parses the first 2 rows (0 skipped)" in err
    assert "the kubeconfig not-there cannot be used: no such file" in err


@pytest.mark.slow
@paddle_is_here
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Paddle warns of its own expressions
def test_a_sweep_by_an_unknown_score_is_rejected_before_anything_is_sent(cli: Cli, here: Path) -> None:
    text = (ROOT / "launcher" / "programs" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    write_files(here, {"shop/trainer_config.py": text, "rows.txt": "1\t12\tred shoes\n0\t1\tweather\n"})
    for data in ("rows.txt", "s3://elsewhere/rows"):
        given = (
            "shop",
            "--data",
            data,
            "--search",
            "width=4..80",
            "--by",
            "mae",
            "--kubeconfig",
            "not-there",
        )
        cli.fail(
            64,
            "--by mae: the program has no such score; nothing was sent. Fix: choose one of: error",
            "sweep",
            *given,
        )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batchSize", "this is not KEY=VALUE"),
        ("=1", "this is not KEY=VALUE"),
        ("trainin.passes=1", "the chart has no value trainin, "),
        ("trainin.passes=1", "; did you mean training?"),
        ("data.columns=[a", "the value is not YAML"),
        ("data=rows.txt", "data is 'rows.txt', but must be an object"),
        ("training=5", "training is 5, but must be an object"),
        ("training.batchSize=many", "training.batchSize is 'many', but must be an integer"),
        ("training.args=5", "training.args is 5, but must be an array of texts"),
        ("data.columns=a", "data.columns is 'a', but must be an array of column names"),
        ("data.delimiter=;;", "data.delimiter is ';;', but must be one character"),
        ("data.quoting=all", "data.quoting is 'all', but must be one of minimal, none"),
        ("data.encoding=utf-9", "data.encoding is 'utf-9', but must be a text encoding"),
        ("data.header=2", "data.header is 2, but must be true or false"),
        ("data=", "data is null, but must be an object"),
        ("training.batchSize=null", "training.batchSize is null, but must be an integer"),
        ("data.colums=[a]", "the chart has no value data.colums; did you mean columns?"),
    ],
)
def test_a_setting_without_value_of_another_type_or_unknown_is_rejected_before_it_is_used(
    here: Path, setting: str, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        plan(settings=[setting])


def test_a_file_that_cannot_be_read_is_an_error_with_its_option(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^gone\.txt: no such file"):
        plan(data="gone.txt")
    (here / "my.yaml").write_bytes(b"jobName: \xff\n")
    with pytest.raises(UsageError, match=r"^-f my\.yaml is not a file with chart values: .*in UTF-8"):
        plan(values=[Path("my.yaml")])


def test_only_the_deadline_of_the_training_may_be_null(here: Path) -> None:
    assert plan(settings=["training.deadlineSeconds=null"]).values["training"]["deadlineSeconds"] is None


def test_a_folder_is_the_data_of_a_script_as_files_and_no_data_of_a_program(here: Path) -> None:
    write_files(here, {"images/1.png": "1"})
    with pytest.raises(UsageError, match=r"data.format is files, but .* is a program, which reads rows"):
        plan(data="images")
    write_files(here, {"mine/train.py": "print(1)\n"})
    made = plan(program=Path("mine"), data="images", arguments=["{data_dir}"])
    data = made.values["data"]
    assert (data["source"], data["format"], len(data["sha256"])) == ("file://images", "files", 64)
    assert [upload.folder for upload in made.uploads] == ["", "sources"]


def test_a_folder_of_rows_has_the_sha256_that_the_data_job_computes(here: Path) -> None:
    write_files(here / "days", {"b/1.csv": "0\n", "a.csv": "1\n", "_SUCCESS": "x", ".crc": "x"})
    write_files(here, {"mine/train.py": "print(1)\n"})
    made = plan(program=Path("mine"), data="days", settings=["data.format=lines"])
    data = made.values["data"]
    assert (data["format"], data["sha256"]) == ("lines", hashlib.sha256(b"1\n0\n").hexdigest())
    layout = JobPaths(here, "job")
    layout.sources.mkdir()
    (here / "days").rename(layout.sources / "days")
    source = {"source": data["source"], "sha256": data["sha256"], "SPLIT_COUNT": 1, "test_fraction": 0}
    environ = pod_environ(DataSettings, JOB_PATH=here, JOB_NAME="job", **source)
    assert data_job.main(DataSettings.from_environ(environ)) == 0
