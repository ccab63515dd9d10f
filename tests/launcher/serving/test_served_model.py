"""Tests of loading a model folder, of predictions, and of errors about models and rows."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launcher.serving.paddle_served import Model, ModelError, RowError
from launcher.serving.paddle_served import model as model_of
from tests.launcher.trainer.conftest import parse

from .conftest import HIGH

ROOT = Path(__file__).parents[3]
UNKNOWN = 12345


def test_predictions_are_complete_vectors_with_the_programs_labels(made: SimpleNamespace) -> None:
    answer = Model(made.folder).answer([{"words": "5 77", "size": "0.5"}, {"words": "", "size": -2}])
    assert answer.predictions.shape == (2, 3)
    assert answer.predictions[0] == pytest.approx(made.expected([5, 77], 0.5), rel=1e-5)
    assert answer.predictions[1] == pytest.approx(made.expected([], -2.0), rel=1e-5)
    likely = ["abc"[int(row.argmax())] for row in answer.predictions]
    assert answer.words == [f"most likely {letter}" for letter in likely]


def test_ids_of_all_64_bits_are_found_and_unknown_ones_are_zeros_and_counted(made: SimpleNamespace) -> None:
    model = Model(made.folder)
    rows = [
        {"words": f"{2**63} {HIGH}", "size": 1},
        {"words": f"{UNKNOWN} 5 {UNKNOWN}", "size": 1},
        {"words": "77", "size": 1},
    ]
    answer = model.answer(rows)
    assert answer.predictions[0] == pytest.approx(made.expected([2**63, HIGH], 1.0), rel=1e-5)
    assert answer.predictions[1] == pytest.approx(made.expected([UNKNOWN, 5, UNKNOWN], 1.0), rel=1e-5)
    assert answer.unknown == {"word/vector": 2, "first": 2}, "padding is not unknown"
    assert answer.ids == {"word/vector": 12, "first": 3}


def test_many_rows_are_predicted_in_batches_by_several_threads(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(made.folder)
    rows = [{"words": f"{5 if n % 2 else 77}", "size": n / 10} for n in range(30)]
    expected = np.array([made.expected([5 if n % 2 else 77], n / 10) for n in range(30)])
    monkeypatch.setattr(model_of, "CHUNK", 7)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(model.predict, [rows] * 8):
            assert found == pytest.approx(expected, rel=1e-5)


def test_a_row_is_parsed_to_the_same_values_as_in_the_training(made: SimpleNamespace) -> None:
    words = ["great lovely 5", "77", "", f"{HIGH} x y z"]
    lines = [f"a\t{text}\t{n / 3}" for n, text in enumerate(words)]
    trained = parse(lines, made.program)
    rows = [{"words": text, "size": n / 3} for n, text in enumerate(words)]
    served = Model(made.folder).program.arrays(rows)
    assert set(served) == {"words", "size"}
    for name, array in served.items():
        assert array.dtype == trained[name].dtype
        assert (array == trained[name]).all(), name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": "5"}, r"has no size: it has words, but the model needs words, size\. Fix: add"),
        ({}, "has no words, size: it has no columns, but"),
        ({"size": None}, r": column size is None, but must be a text or a number\. Fix: "),
        ({"size": "x"}, r": could not convert string to float: 'x'\. Fix: correct this row$"),
        ({"size": "nan"}, r": input size is \[nan\], which is not a finite float32 number\. Fix: "),
        ({"size": "1e39"}, r": input size is \[inf\], which is not a finite float32 number\. Fix: "),
        ({"size": "wide"}, r": input size: 2 numbers, but Real\(1\) takes 1 per row\. Fix: "),
        ({"words": "1 2 3 4 5", "size": 1}, r": input words: 5 ids, but Ids\(4\) takes at most 4 per row"),
        ({"words": str(2**64), "size": 1}, ": input words: 18446744073709551616 is not an id"),
        ({"kind": "neutral", "size": 1}, ": the program skips such rows"),
    ],
)
def test_an_invalid_row_is_reported_with_number_and_column(
    made: SimpleNamespace, row: dict, message: str
) -> None:
    given = {"words": "5", **row} if "size" in row else row
    with pytest.raises(RowError, match=f"^row 2 ?{message}"):
        Model(made.folder).predict([{"words": "5", "size": 1}, given])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def version(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))


def other_ids(path: Path) -> None:
    shutil.copy(path.parents[1] / "word%2Fvector" / "ids.npy", path)


IDS, VECTORS = "embeddings/first/ids.npy", "embeddings/word%2Fvector/vectors.npy"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("model.json", Path.unlink, r"is not a model: it has no model\.json"),
        ("model.json", cut, r"model\.json cannot be read: .*Fix: copy the model again"),
        ("model.json", version, "has a model of version 1, but this package reads version 2"),
        (VECTORS, cut, r"vectors\.npy cannot be read .*Fix: copy the model again"),
        (IDS, Path.unlink, r"first/ids\.npy is missing"),
        (IDS, other_ids, r"has uint64 of shape \(4,\), but model.json says .* \(2,\)"),
        ("network.pdiparams", Path.unlink, r"network\.pdiparams is missing: .*Fix: copy it again"),
        ("network.pdiparams", cut, r"network\.pdiparams is \d+ bytes long, but was \d+"),
        ("program/trainer_config.py", Path.unlink, r"trainer_config\.py is missing"),
        ("interface.py", Path.unlink, r"interface\.py is missing"),
        ("program/helper.py", Path.unlink, r"helper\.py is missing"),
    ],
)
def test_an_incomplete_or_mixed_model_is_one_message(
    made: SimpleNamespace, tmp_path: Path, file: str, damage: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(made.folder, folder)
    damage(folder / file)
    with pytest.raises(ModelError, match=message):
        Model(folder)


def test_two_models_in_one_process_use_their_own_files(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "helper")  # the launcher loaded it before
    other = tmp_path / "model"
    shutil.copytree(made.folder, other)
    (other / "program" / "helper.py").write_text('LABELS = ["x", "y", "z"]\n')
    config = other / "program" / "trainer_config.py"
    config.write_text(config.read_text().replace('"kind": "a"', '"kind": "x"'))
    row = [{"words": "5", "size": 1}]
    first, second = Model(made.folder), Model(other)
    words = [model.answer(row).words for model in (first, second, first)]
    assert words[0] == words[2]
    assert words[0] is not None and words[1] is not None
    assert words[0][0][-1] in "abc"
    assert words[1][0][-1] in "xyz"
    assert "helper" not in sys.modules, "a program that the launcher loads later finds its own"


def _install(folder: Path, project: str = "") -> Path:
    """Install a clone, or a folder of it, with `pip install --target`."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("launcher", "charts", "served"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", site, source / project], check=True, capture_output=True)
    return site


@pytest.mark.slow
def test_the_installed_command_contains_the_launcher_and_the_chart(tmp_path: Path) -> None:
    site = _install(tmp_path)
    installed = {path.relative_to(site / "launcher") for path in (site / "launcher").rglob("*.py")}
    installed -= {path for path in installed if path.parts[0] == "charts"}
    assert installed == {path.relative_to(ROOT / "launcher") for path in (ROOT / "launcher").rglob("*.py")}

    def run(*words: str, **env: str) -> str:
        env |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "HOME": str(tmp_path)}
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = str(site / "bin" / "paddle-training")
    typed = {"COMP_WORDS": "paddle-training sw", "COMP_CWORD": "1"}
    assert run(command, **typed, _PADDLE_TRAINING_COMPLETE="complete_bash").split() == ["sweep"]
    found = run(
        sys.executable, "-c", "from launcher.cli import releases as helm; print(helm.find_chart())"
    ).strip()
    assert Path(found) == site / "launcher" / "charts" / "paddle-training"
    assert (site / "launcher" / "reporting" / "report.html").is_file()
    for name in ("values.schema.json", "templates/_helpers.tpl", "templates/NOTES.txt"):
        assert (Path(found) / name).is_file(), name


def _find_requirements(name: str, extra: str = "") -> set[str]:
    """Return the packages that an installed one requires, as they are installed here."""
    found = {name}
    for text in importlib.metadata.requires(name) or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            found |= _find_requirements(canonicalize_name(needed.name), "".join(needed.extras))
    return found


@pytest.mark.slow
def test_the_installed_model_package_does_not_need_the_launcher(
    made: SimpleNamespace, tmp_path: Path
) -> None:
    alone = _install(tmp_path, "served")
    [about] = importlib.metadata.distributions(path=[str(alone)])
    needed = [Requirement(text) for text in about.requires or ()]
    plain = {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
    dependencies = set().union(*(_find_requirements(canonicalize_name(name)) for name in plain))
    assert plain == {"numpy", "paddlepaddle", "protobuf", "setuptools"}
    assert len(dependencies) <= 15, "numpy, Paddle, and what Paddle itself asks for"
    assert not dependencies & {"kubernetes", "typer", "rich", "pyyaml", "fastapi", "uvicorn"}
    script = (
        "import importlib.util, sys\n"
        "from paddle_served import Model\n"
        "assert importlib.util.find_spec('launcher') is None\n"
        f"model, rows = Model({str(made.folder)!r}), [{{'words': '5 77', 'size': 0.5}}]\n"
        "before = model.predict(rows)[0].tolist()\n"
        "assert 'paddle.nn' not in sys.modules, 'half of the start'\n"
        "assert model.program.module.paddle.to_tensor([1.0, 2.0]).sum() == 3, 'for a program that uses it'\n"
        "import paddle.nn\n"
        "assert paddle.nn.functional.relu(paddle.to_tensor([-1.0])).item() == 0\n"
        "assert model.predict(rows)[0].tolist() == before\n"
        "print(before)\n"
        "assert not {m.split('.')[0] for m in sys.modules} & {'fastapi', 'uvicorn', 'prometheus_client'}\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(alone)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(made.expected([5, 77], 0.5), rel=1e-5)
