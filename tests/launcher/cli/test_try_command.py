"""`try`: one process trains a program, writes its model and predicts."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testkit.written_files import write_files

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "launcher" / "programs" / "README.md").read_text()
pytestmark = [
    pytest.mark.paddle,
    pytest.mark.usefixtures("here"),
    # Paddle warns of its own expressions, and here it runs in the tests' process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def block(language: str) -> str:
    """Return the first code block of a language on the page about programs."""
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Create the program of the page's example."""
    return write_files(tmp_path / "shop", {"trainer_config.py": block("python")})


def visits(rows: int) -> list[list[str]]:
    """Return rows in which visits that search for shoes buy."""
    rng = random.Random(1)  # noqa: S311
    found = []
    for _ in range(rows):
        bought = rng.random() < 0.5
        words = [rng.choice(["red", "blue", "cheap"]), "shoes" if bought else "weather"]
        found.append([str(int(bought)), str(rng.randint(0, 20)), " ".join(words)])
    return found


def lines(rows: list[list[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def test_the_first_example_of_the_guide_runs_unchanged(cli, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "visits.txt").write_text(block("text") + lines(visits(6000)))
    command = re.search(r"python -m launcher (try .*?)  +#", block("sh"))[1]
    code, out, err = cli(*command.split())
    assert (code, err) == (0, "")
    assert re.search(r"[\d,]+ rows to train on, \d+ to test on", out)
    assert "pass 3: " in out
    assert "error=0.0" in out, "shoes are learnt"
    assert "model written to tried-model (word: 5 ids)" in out, "red, blue, cheap, shoes, weather"
    assert re.search(r"prediction of the first row: buys with a chance of (9\d|100|\d)%", out)


def test_the_model_scores_like_the_training_and_unknown_ids_are_zeros(
    cli, shop: Path, tmp_path: Path
) -> None:
    from launcher.serving.paddle_served import Model

    (tmp_path / "train.txt").write_text(lines(visits(800)))
    (tmp_path / "test.txt").write_text(lines(visits(300)))
    options = ["--data", "train.txt", "--test", "test.txt", "--to", "model", "-o", "json"]
    code, out, _ = cli("try", shop, *options, "--set", "width=4")
    done = json.loads(out)
    assert code == 0
    assert done["passes"][-1]["samples"] == 800
    assert done["score"]["error"] == pytest.approx(done["passes"][-1]["error"])
    assert done["score"] == json.loads(Path("model/score.json").read_text())
    model = Model("model")
    assert model.tables["word"].width == 4
    assert np.allclose(model.predict([done["row"]])[0], done["prediction"])
    assert model.answer([{"visits": "3", "words": "umbrella"}]).unknown == {"word": 1}


def test_a_compressed_csv_with_header_is_read_and_a_model_is_replaced(
    cli, shop: Path, tmp_path: Path
) -> None:
    records = "who,words,visits,bought\n" + "".join(f"x,{w},{v},{b}\n" for b, v, w in visits(400))
    (tmp_path / "csv.yaml").write_text("data: {format: lines, columns: [bought, visits, words]}")
    (tmp_path / "visits.csv.gz").write_bytes(gzip.compress(records.encode()))
    options = ["--data", "visits.csv.gz", "-f", "csv.yaml", "--set", "data.format=csv", "--passes", "1"]
    for _ in range(2):
        code, out, err = cli("try", shop, *options)
        assert (code, err) == (0, "")
    assert "pass 1: " in out


def test_rows_limits_both_files_and_progress_is_shown(cli, shop: Path, tmp_path: Path, monkeypatch) -> None:
    from launcher.trainer import training_log

    monkeypatch.setattr(training_log, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(training_log, "REPORT_SECONDS", 0.0)
    (tmp_path / "visits.txt.gz").write_bytes(
        gzip.compress(lines([*visits(400), ["many", "1", "x"]]).encode())
    )
    options = ["--data", "visits.txt.gz", "--test", "visits.txt.gz", "--rows", "300", "--passes", "1"]
    code, out, err = cli("try", shop, *options, "--set", "training.batchSize=100")
    assert (code, err) == (0, ""), "row 401, which cannot be parsed, is not read"
    shown = ("loading Paddle", "visits.txt.gz: 150 rows parsed", "300 rows to train")
    assert sorted(shown, key=out.index) == [*shown]
    assert re.search(r"visits.txt.gz: 300 rows parsed, 100%, [\d,]+ rows/s", out)
    assert "300 rows to train on, 300 to test on" in out
    assert re.search(r"pass 1: 2 of 3 batches, [\d,]+ samples/s, loss=0\.\d+", out)


def test_a_network_that_cannot_be_trained_is_found_before_all_rows_are_parsed(
    cli, shop: Path, tmp_path: Path
) -> None:
    page = (shop / "trainer_config.py").read_text()
    (shop / "trainer_config.py").write_text(page.replace("sigmoid(score), loss", "sigmoid(loss), loss"))
    (tmp_path / "visits.txt").write_text(lines([*visits(1000), ["many", "1", "x"]]))
    cli.fail(64, "a prediction of shape []", "try", shop, "--data", "visits.txt")


@pytest.mark.parametrize("rate", ["1e15", "1e20"])
def test_a_diverging_loss_is_one_message_without_warnings(cli, shop: Path, tmp_path: Path, rate: str) -> None:
    page = (shop / "trainer_config.py").read_text()
    (shop / "trainer_config.py").write_text(
        page.replace("with_logits(score, data", "with_logits(score * score, data")
    )
    (tmp_path / "visits.txt").write_text(lines(visits(2000)))
    code, out, err = cli("try", shop, "--data", "visits.txt", "--set", f"learning_rate={rate}")
    assert code == 65
    assert re.fullmatch(
        r"error: the loss is (nan|inf) at pass 1, batch \d: training diverged. Fix: lower .*\n", err
    )
    assert "Warning" not in out + err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("nowhere", "--data", "good.txt"),
            "program nowhere does not exist.*ctr, quick_start, recommendation",
        ),
        (("PaddleSegg", "--script", "tools/train.py"), "program PaddleSegg does not exist"),
        (("fails.py", "--data", "good.txt"), "exited with code 3"),
        (("fails.py", "--data", "images", "--table", "good.txt"), "--data is a folder"),
        (("shop", "--data", "absent.txt"), "there is no file absent.txt"),
        (("shop", "--data", "bad.txt"), "bad.txt, row 61: column visits is '-1', but must be a whole number"),
        (("shop", "--data", "cut.txt.gz"), "cut.txt.gz is damaged or incomplete"),
        (("shop", "--data", "good.txt", "--set", "depth=3"), "'--depth=3', but .* has only"),
        (("shop", "--data", "good.txt", "--to", "shop"), "--to shop contains files, but no model.json"),
        (
            ("shop", "--data", "good.txt", "--set", "data.format=CSV"),
            "data.format is 'CSV', but must be one of lines, csv",
        ),
    ],
)
def test_invalid_input_is_one_message_and_leaves_no_files(
    cli, shop: Path, tmp_path: Path, argv: tuple[str, ...], message: str
) -> None:
    rows = visits(60)
    (tmp_path / "images").mkdir()
    bad, cut = lines([*rows, ["1", "-1", "x"]]), gzip.compress(lines(rows).encode())[:-20]
    files = {
        "good.txt": lines(rows),
        "bad.txt": bad,
        "cut.txt.gz": cut,
        "fails.py": "import sys; sys.exit(3)",
    }
    write_files(tmp_path, files)
    code, out, err = cli("try", *argv)
    assert code != 0
    assert re.search(message, err), err
    assert "Traceback" not in out + err
    assert not Path("tried-model").exists()


def test_the_regression_of_the_guide_accepts_rows_with_empty_cells(cli, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "own-data.md").read_text().partition("## A number to predict")[2]
    write_files(tmp_path, {"rents/trainer_config.py": re.search(r"```python\n(.*?)```", page, re.S)[1]})
    rng, rows = random.Random(1), re.search(r"```text\n(.*?)```", page, re.S)[1]  # noqa: S311
    for _ in range(3000):
        area, year = rng.randint(20, 150), rng.randint(1900, 2020)
        cells = [f"{8 * area}", f"{area}", f"{year}", rng.choice(["north", "south"])]
        rows += ",".join(cell if rng.random() < 0.9 else "" for cell in cells) + "\n"
    (tmp_path / "rents.csv").write_text(rows)
    code, out, err = cli(*re.search(r"python -m launcher (try rents .*)", page)[1].split())
    assert (code, err) == (0, "")
    assert re.search(r"\([23]\d\d skipped\)", out), "a tenth of the rows has no rent"
    assert float(re.findall(r"mae=([\d.]+)", out)[-1]) < 120, "a guess of the mean is off by 260"
    assert "prediction of the first row: a rent of " in out


SCRIPT = """
import argparse, json, os
from launcher.program import ScriptRun
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=1)
width = parser.parse_args().width
run = ScriptRun()
rows, tests = (path.read_text().splitlines() for path in (run.train_file, run.test_file))
print("on stderr, next to the answer on stdout")
table = (run.tables / "t.csv").read_text()
assert os.environ["WORLD_SIZE"] == "1"
for epoch in range(run.epochs):
    run.report(epoch, 1, 1, loss=0.5, samples=len(rows))
    run.end_epoch(epoch, accuracy=0.75)
with run.save_model() as folder:
    (folder / "rows.json").write_text(json.dumps([width, table, len(rows), len(tests), sorted(rows + tests)[-1]]))
"""


@pytest.mark.parametrize("file", ["train.py", "only.py"])
def test_a_script_trains_in_one_process_and_its_model_is_copied(cli, tmp_path: Path, file) -> None:
    rows = "a,b\n" + "".join(f"{n},x\n" for n in range(100, 400))
    write_files(tmp_path, {f"mine/{file}": SCRIPT, "rows.csv": rows, "t.csv": "1 item"})
    options = ["--data", "rows.csv", "--set", "data.format=csv", "--table", "t.csv"]
    options += ["--set", "width=4", "--passes", "2", "-o", "json"]
    for _ in range(2):  # the second time the model is replaced
        code, out, _ = cli("try", "mine", *options)
        assert code == 0
    done = json.loads(out)
    assert [row["test_accuracy"] for row in done["passes"]] == [0.75, 0.75]
    assert (done["score"], done["model"]) == ({"accuracy": 0.75}, "tried-model")
    width, table, train, test, last = json.loads(Path("tried-model/rows.json").read_text())
    assert (width, table, train + test, last) == (4, "1 item", 300, "399\tx")
    assert 10 < test < 60, "about a tenth is held out"


def test_a_folder_named_model_that_a_script_writes_itself_is_output_like_others(cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import os, pathlib, sys
for name in ("model/best.pdparams", "log/a.txt"):
    file = pathlib.Path(sys.argv[1], name)
    file.parent.mkdir()
    file.write_text("")
""")
    for _ in range(2):  # the second time they are replaced
        out = cli.succeed("try", "mine.py", "-o", "json", "--", "{output_dir}")
    assert json.loads(out)["model"] is None
    for name in ("model/best.pdparams", "log/a.txt"):
        assert (tmp_path / "tried-model" / "script-output" / name).is_file()


def test_a_script_may_stop_its_parameter_server_before_its_trainer_ends(cli, tmp_path: Path) -> None:
    script = """
import os, pathlib, sys, time
if os.environ["TRAINING_ROLE"] == "TRAINER":
    time.sleep(0.5)
    pathlib.Path(sys.argv[1], "exported").write_text("")
elif SERVER_CODE:
    sys.exit(SERVER_CODE)
def serve(fleet):
    fleet.run_server()
"""
    (tmp_path / "mine.py").write_text(script.replace("SERVER_CODE", "0"))
    code, _, err = cli("try", "mine.py", "--", "{output_dir}")
    assert code == 0, err
    assert (tmp_path / "tried-model" / "script-output" / "exported").is_file()
    (tmp_path / "mine.py").write_text(script.replace("SERVER_CODE", "3").replace("0.5", "600"))
    code, _, err = cli("try", "mine.py", "--", "{output_dir}")
    assert code != 0 and "the parameter server exited with code 3 before the trainer" in err
    assert "mine.py" in err and "exited with code 3" in err


def test_a_script_gets_a_folder_of_files_directly(cli, tmp_path: Path) -> None:
    write_files(tmp_path, {"images/1.png": "1"})
    code = "import os, sys; v = os.environ['PADDLE_LAUNCHER_DATA_DIR']; assert sys.argv[1] == f'--at={v}', sys.argv"
    (tmp_path / "mine.py").write_text(
        f"{code}; assert os.listdir(v) == ['1.png'] and not os.environ['PADDLE_LAUNCHER_TRAIN_FILE']"
    )
    cli.succeed("try", "mine.py", "--data", "images", "--", "--at={data_dir}")


def test_the_script_of_the_page_about_files_reads_its_folder_and_the_others_are_python(
    cli, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "how-to" / "data-as-files.md").read_text()
    own, *others = re.findall(r"```python\n(.*?)```", page, re.S)
    assert [compile(code, "page", "exec") is not None for code in others] == [True, True]
    for name in ("cat/1.npy", "dog/2.npy"):
        (tmp_path / "arrays" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "arrays" / name, np.zeros(2))
    (tmp_path / "train.py").write_text(own + "assert len(arrays) == 2 and arrays[1][1] == 1, arrays.files\n")
    cli.succeed("try", "train.py", "--data", "arrays")


TYPED = """
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
TYPED = True
def parse(row, job):
    return {"words": row["words"], "visits": np.log1p(row["visits"]), "bought": row["bought"]}
def parse_columns(columns, job):
    keep = columns["visits"] >= 0
    words = [ids for ids, kept in zip(columns["words"], keep) if kept]
    return {"words": words, "visits": np.log1p(columns["visits"][keep]), "bought": columns["bought"][keep]}
"""


def write_visits(path: Path, *, ids: bool) -> None:
    """Write rows to a Parquet file with other columns, too; `ids`: the words are lists of ids."""
    rows = visits(500)
    words = [[len(word) for word in row[2].split()] if ids else row[2] for row in rows]
    numbers = {name: [int(row[at]) for row in rows] for at, name in enumerate(("bought", "visits"))}
    pq.write_table(pa.table({"day": [0.5] * 500, "words": words, **numbers}), path, row_group_size=70)


@pytest.mark.parametrize("typed", [False, True])
def test_a_program_trains_on_a_parquet_file_and_predicts_one(cli, shop: Path, tmp_path: Path, typed) -> None:
    write_visits(tmp_path / "visits.parquet", ids=typed)
    if typed:
        file = shop / "trainer_config.py"
        file.write_text(file.read_text() + TYPED)
    code, out, err = cli("try", shop, "--data", "visits.parquet", "--set", "data.format=parquet")
    assert (code, err) == (0, "")
    assert re.search(r"\n4\d\d rows to train on, [3-7]\d to test on \(0 skipped\)", out), out
    code, out, err = cli("predict", "tried-model", "--rows", "visits.parquet")
    assert (code, err) == (0, "") and out.count("buys with a chance of") == 500


def test_a_parse_columns_that_differs_from_parse_is_an_error(cli, shop: Path, tmp_path: Path) -> None:
    write_visits(tmp_path / "visits.parquet", ids=True)
    file = shop / "trainer_config.py"
    options = ["--data", "visits.parquet", "--set", "data.format=parquet"]
    file.write_text(
        file.read_text() + TYPED.replace('np.log1p(columns["visits"][keep])', 'columns["visits"][keep]')
    )
    code, _, err = cli("try", shop, *options)
    assert code != 0 and "for input visits of usable row 1, but parse() returned" in err, err


def test_a_script_reads_a_folder_of_parquet_files_without_the_marks_of_spark(cli, tmp_path: Path) -> None:
    write_files(tmp_path / "rows", {"_SUCCESS": "x", ".part-0.parquet.crc": "x", "_metadata": "x"})
    for name in ("part-0.parquet", "part-1.parquet"):
        write_visits(tmp_path / "rows" / name, ids=True)
    (tmp_path / "mine.py").write_text("""
import json, os
import paddle  # before a library that decompresses (launcher/script_main.py)
import pyarrow.parquet as pq
files = [os.environ[f"PADDLE_LAUNCHER_{name}_FILE"] for name in ("TRAIN", "TEST")]
tables = [pq.read_table(file) for file in files]
found = [[table.num_rows for table in tables], str(tables[0].schema.field("words").type), tables[0].column_names]
json.dump(found, open(os.environ["PADDLE_LAUNCHER_OUTPUT_DIR"] + "/found.json", "w"))
""")
    chosen = ["--set", "data.format=parquet", "--set", "data.columns=[words,bought]"]
    for rows, most in ([], 1000), (["--rows", "200"], 200):
        cli.succeed("try", "mine.py", "--data", "rows", *chosen, *rows)
        counts, words, columns = json.loads(Path("tried-model/script-output/found.json").read_text())
        assert sum(counts) == most and most / 40 < counts[1] < most / 5
        assert (words, columns) == ("list<element: int64>", ["words", "bought"])
