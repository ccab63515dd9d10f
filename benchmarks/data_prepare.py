"""Prepare 0.5 GB of text (5 million lines) into 8 shards, compared with coreutils and the tutorial of 2017.

`python -m benchmarks.data_prepare` prints, after alternating runs on this machine:

- `data_prepare_wall_coreutils`: our wall time over that of `sha256sum`, `split -n r/8` and `sha256sum` of the
  parts, one after the other: the same work, a checksum of the source and of every shard. Limit 0.8.
- `data_prepare_wall_tutorial`: over that of the tutorial's way, which verifies nothing: split by bytes, copy
  everything into every shard's folder, rename. Limit 1.3.
- `data_prepare_bytes_written`: bytes of the files that we write, over the input. Limit 1.05.
- `data_prepare_memory_mb_<size>`: peak resident memory (VmHWM) in MB for a tenth of the rows and for all,
  compared with the limit of 150.

Every run ends with an fsync of all files that it wrote, as NFS makes a client do when it closes a file: without
it, the tutorial's way only fills the page cache. Before each run, pending writes are synced. The ratios are
between medians.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._result_lines import print_ratio
from local.launcher_gang import job_environment
from local.paths import CLONE

SHARDS = 8
LINES = 5_000_000
LINE_BYTES = 100  # on average, with the newline
TEST_FRACTION = 0.01
LIMITS = {"wall_coreutils": 0.8, "wall_tutorial": 1.3, "bytes_written": 1.05, "memory_mb": 150.0}


def make_text(path: Path, lines: int) -> None:
    """Write `lines` lines of 51 to 149 bytes, a label and words, always the same ones."""
    rng = random.Random(1)
    words = [f"w{number}" for number in range(50_000)]
    block = []
    for number in range(100_000):
        text = f"{number % 2}\t{' '.join(rng.choices(words, k=24))}"
        block.append(text[: rng.randrange(LINE_BYTES - 50, LINE_BYTES + 49)].rstrip())
    text = "\n".join(block) + "\n"
    with path.open("w") as file:
        for _ in range(lines // len(block)):
            file.write(text)


def run_prepare(storage: Path) -> tuple[float, int]:
    """Return wall seconds and peak memory in KB of one `prepare` of `sources/in.txt`."""
    log = storage / "log"
    data = {"source": "file://in.txt", "testFraction": TEST_FRACTION}
    environ = {
        **job_environment(storage, {"jobName": "bench", "trainers": SHARDS, "data": data}),
        "PATH": os.environ["PATH"],
        "PADDLE_LAUNCHER_TERMINATION_LOG": str(storage / "termination"),
    }
    code = (
        "import runpy, sys; sys.argv = ['launcher', 'prepare']\n"
        "try: runpy.run_module('launcher', run_name='__main__')\n"
        "finally: print(open('/proc/self/status').read())\n"
    )
    with log.open("w") as file:
        begin = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", code], cwd=CLONE, env=environ, stdout=file, stderr=file, check=True
        )
        seconds = time.monotonic() - begin
    peak = re.search(r"VmHWM:\s+(\d+) kB", log.read_text())
    assert peak is not None
    return seconds, int(peak[1])


def run_coreutils(source: Path, folder: Path) -> float:
    """Run sha256sum, a round-robin `split` and sha256sum of its parts; return the wall seconds."""
    folder.mkdir()
    begin = time.monotonic()
    subprocess.run(["sha256sum", source], stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["split", "-n", f"r/{SHARDS}", source, folder / "x"], check=True)
    subprocess.run(["sha256sum", *sorted(folder.iterdir())], stdout=subprocess.DEVNULL, check=True)
    sync_files(folder)
    return time.monotonic() - begin


def run_tutorial(source: Path, folder: Path) -> float:
    """Split as the tutorial of 2017 does (a copy of everything in every shard's folder); return the wall seconds."""
    first = folder / "0" / "data"
    first.mkdir(parents=True)
    begin = time.monotonic()
    subprocess.run(["split", "-d", f"--number=l/{SHARDS}", "-a", "5", source, first / "train."], check=True)
    for index in range(1, SHARDS):
        target = folder / str(index) / "data"
        target.mkdir(parents=True)
        subprocess.run(["cp", "-r", f"{first}/.", target], check=True)
    for index in range(SHARDS):
        data = folder / str(index) / "data"
        (data / f"train.{index:05d}").rename(data / "train.txt")
    sync_files(folder)
    return time.monotonic() - begin


def sync_files(folder: Path) -> None:
    """Call fsync on every file in a folder."""
    subprocess.run(["sync", *(path for path in folder.rglob("*") if path.is_file())], check=True)


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description="preparing data, side by side")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--lines", type=int, default=LINES)
    options = parser.parse_args()
    needed = options.lines * LINE_BYTES * 11
    with tempfile.TemporaryDirectory(prefix="data-prepare-") as name:
        folder = Path(name)
        free = shutil.disk_usage(folder).free
        if free < needed:
            sys.exit(
                f"{folder} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed. Fix: set TMPDIR to a "
                "larger volume"
            )
        return measure(options, folder)


def measure(options: argparse.Namespace, folder: Path) -> int:
    """Measure everything in `folder`; return 1 if a limit is exceeded."""
    storage = folder / "storage"
    source = storage / "sources" / "in.txt"
    source.parent.mkdir(parents=True)
    peaks = {}
    make_text(source, options.lines // 10)
    _, peaks["tenth"] = run_prepare(storage)
    shutil.rmtree(storage / ".data")
    make_text(source, options.lines)
    seconds: dict[str, list[float]] = {"ours": [], "coreutils": [], "tutorial": []}
    written = {}
    for _ in range(options.runs):
        os.sync()
        wall, peaks["all"] = run_prepare(storage)
        seconds["ours"].append(wall)
        written["ours"] = size_of(storage / ".data")
        shutil.rmtree(storage / ".data")
        for name, run in {"coreutils": run_coreutils, "tutorial": run_tutorial}.items():
            target = folder / name
            os.sync()
            seconds[name].append(run(source, target))
            # `split` wrote the input once, then each further folder is a copy of all of it.
            written[name] = size_of(target)
            shutil.rmtree(target)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    kept = [
        print_ratio(f"data_prepare_wall_{way}", median["ours"], median[way], most=LIMITS[f"wall_{way}"])
        for way in ("coreutils", "tutorial")
    ]
    size = source.stat().st_size
    most = LIMITS["bytes_written"]
    kept.append(print_ratio("data_prepare_bytes_written", written["ours"], size, " bytes", most=most))
    print(f"# the tutorial's way writes {written['tutorial'] / size:.2f} times the input", flush=True)
    for name, peak in peaks.items():
        most = LIMITS["memory_mb"]
        kept.append(print_ratio(f"data_prepare_memory_mb_{name}", peak * 1024 / 1e6, most, "MB", most=1.0))
    print(f"# wall seconds of each run: {seconds}", flush=True)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
