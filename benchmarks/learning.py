"""Compare what three pods learn with one machine: both example programs on real data.

`python -m benchmarks.learning` prints, for three pservers and three trainers on loopback with the environment
that the launcher sets and the examples' settings:

- `quick_start_test_error`: our test error and that of scikit-learn's LogisticRegression (C=1) on the same
  split and the same bag of words. Limit of ours: theirs + 0.01.
- `recommendation_rmse`: our RMSE on the held-out tenth and that of the same network in one process without
  servers after as many passes. Limits of ours: 0.96, and theirs + 0.02.

`ours` is always the score of the exported model, computed without any server: the median of the trainings with
SEEDS, because the order in which the servers apply the gradients differs from run to run. Data and settings are
those of the chart's examples; the launcher's own data preparation splits the data.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from benchmarks._result_lines import print_ratio
from launcher.dataprep.csv_records import split_fields
from launcher.program import Job
from local import try_example
from local.paths import CLONE
from testkit.gang_without_launchers import PROGRAMS, TrainerProcesses

EXAMPLES = {"quick_start": "error", "recommendation": "rmse"}
"""Example program → the score that is compared."""
SEEDS = (1, 2, 3)


def prepare_example(name: str, root: Path) -> list[Path]:
    """Prepare the example's data as its data Job does; return one staged folder per rank."""
    env = try_example.prepare_example(name, root)
    job = Path(env["OUT_DIR"])
    (job / "tables").mkdir(exist_ok=True)
    folders = [job / str(rank) / "data" for rank in range(int(env["SPLIT_COUNT"]))]
    for folder in folders:
        for shared in ("tables", "test.txt"):
            (folder / shared).symlink_to(job / shared)
    return folders


def join_shards(data: list[Path], root: Path) -> Path:
    """Return a folder with all shards in one, for the single process."""
    one = root / "one"
    one.mkdir()
    (one / "train.txt").write_bytes(b"".join((folder / "train.txt").read_bytes() for folder in data))
    for name in ("test.txt", "tables"):
        (one / name).symlink_to(data[0] / name)
    return one


def train_gang(name: str, root: Path, data: list[Path], seed: int) -> dict[str, float]:
    """Train example `name` on loopback, a trainer and a pserver per folder of `data`; return the model's score."""
    example = try_example.example_values(name)["training"]
    training = {key: example[key] for key in ("passes", "batchSize")}
    training["args"] = [*example["args"], f"--seed={seed}"]
    gang = TrainerProcesses(root / f"gang-{seed}", data, PROGRAMS / name, values={"training": training})
    gang.root.mkdir()
    began = time.monotonic()
    gang.finish(seconds=300)
    print(f"# {name}: {len(data)}+{len(data)} processes took {time.monotonic() - began:.1f} s", flush=True)
    return dict(json.loads((gang.output.model / "score.json").read_text()))


def train_one_process(name: str, one: Path) -> dict[str, float]:
    """Train the same network for as many passes in one process without servers; return its score."""
    training = try_example.example_values(name)["training"]
    command = [sys.executable, "-m", "launcher", "try", name, "-o", "json", "--to", str(one / "model")]
    command += ["--data", str(one / "train.txt"), "--test", str(one / "test.txt")]
    command += ["--passes", str(training["passes"]), "--set", f"training.batchSize={training['batchSize']}"]
    for table in sorted((one / "tables").iterdir()):
        command += ["--table", str(table)]
    done = subprocess.run(command, cwd=CLONE, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout)["score"])


def train_regression(one: Path) -> float:
    """Train scikit-learn's LogisticRegression on the texts of quick_start in `one`; return its test error."""
    sys.path.insert(0, str(PROGRAMS / "quick_start"))
    import texts  # type: ignore[import-not-found]  # noqa: PLC0415 (a program's folder is no package)

    buckets, length = 65536, 48  # trainer_config.py's OPTIONS
    job = Job(options={"buckets": buckets, "words": length})

    def read(path: Path) -> tuple[csr_matrix, NDArray[np.float64]]:
        with path.open(encoding="utf-8", newline="\n") as file:
            rows = [
                texts.parse(dict(zip(texts.COLUMNS, split_fields(line), strict=True)), job) for line in file
            ]
        rows = [row for row in rows if row is not None]
        words = [row["words"][:length] for row in rows]
        row_of = np.repeat(np.arange(len(rows)), [len(w) for w in words])
        ones = np.ones(len(row_of))
        matrix = csr_matrix((ones, (row_of, np.concatenate(words).astype(int))), shape=(len(rows), buckets))
        return matrix, np.array([row["label"] for row in rows])

    model = LogisticRegression(C=1.0, max_iter=1000).fit(*read(one / "train.txt"))
    return 1 - float(model.score(*read(one / "test.txt")))


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    kept = []
    for name, score in EXAMPLES.items():
        with tempfile.TemporaryDirectory(prefix="learning-") as folder:
            root = Path(folder)
            data = prepare_example(name, root)
            one = join_shards(data, root)
            scores = [train_gang(name, root, data, seed)[score] for seed in SEEDS]
            print(f"# {name}: {score} with seeds {SEEDS}: {scores}", flush=True)
            if name == "quick_start":
                label, theirs = "quick_start_test_error", train_regression(one)
                limit = theirs + 0.01
            else:
                label, theirs = "recommendation_rmse", train_one_process(name, one)[score]
                limit = min(theirs + 0.02, 0.96)
            kept.append(print_ratio(label, statistics.median(scores), theirs, "", limit=limit, digits=4))
    return kept.count(False)


if __name__ == "__main__":
    sys.exit(main())
