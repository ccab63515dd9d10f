"""Test of a real training on loopback: a launcher receives SIGTERM, and all ranks save a checkpoint first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.paths import OutputPaths, Position, position
from local.launcher_gang import LauncherGang, job_environment
from local.trainer_processes import PROGRAMS
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import write_data
from tests.launcher.trainer.conftest import find_free_ports, texts

pytestmark = [pytest.mark.paddle, pytest.mark.timeout(600)]

PACED = Path(__file__).parents[2] / "faults" / "paced"
ROWS, BATCH = 12_000, 2  # 6000 batches of at least 10 ms in the only pass


def write_job(job: Path, ranks: int) -> None:
    """Write the data and the paced program of a job with so many shards."""
    manifest = write_data(job, ranks, "loopback")
    entries = [
        (job / str(shard["index"]) / "data" / "train.txt", shard, ROWS) for shard in manifest["shards"]
    ]
    for seed, (file, entry, rows) in enumerate([*entries, (job / "test.txt", manifest["test"], 100)]):
        file.write_text("".join(f"{line}\n" for line in texts(rows, seed)))
        content = file.read_bytes()
        entry |= {"lines": rows, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (job / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(PACED, job / "paced")
    shutil.copy(PROGRAMS / "quick_start" / "trainer_config.py", job / "paced" / "plain.py")
    shutil.copy(PROGRAMS / "quick_start" / "texts.py", job / "paced")


class Gang(LauncherGang):
    """Two launchers that train the paced program."""

    def __init__(self, folder: Path) -> None:
        environ = {
            **os.environ,
            **job_environment(folder / "shared", "job", 2),
            "TRAIN_CONFIG_DIR": "paced",
            "CONF_PADDLE_PORT": str(find_free_ports()),
            "CONF_PADDLE_PORTS_NUM": "1",
            "CONF_PADDLE_PORTS_NUM_SPARSE": "1",
            "PADDLE_LAUNCHER_BATCH_SIZE": str(BATCH),
            "PADDLE_LAUNCHER_PASSES": "1",
            "PADDLE_LAUNCHER_RESTARTS": "0",
            "PADDLE_LAUNCHER_GRACE_SECONDS": "110",
        }
        write_job(folder / "shared" / "job", 2)
        super().__init__(folder, environ)
        self.output = OutputPaths(folder / "shared" / "job" / "output")

    def progress(self, rank: int) -> dict[str, Any]:
        """Return a rank's progress.json; {} before the trainer has written it."""
        try:
            return dict(json.loads((self.work_dir(rank) / "progress.json").read_text()))
        except (OSError, ValueError):
            return {}

    def batch(self) -> int:
        """Return the batch of the slowest rank."""
        return min(int(self.progress(rank).get("batch", 0)) for rank in range(2))

    def checkpoints(self) -> list[Position]:
        """Return the positions of all finished checkpoints, in their order."""
        found = [position(path.parent.name) for path in self.output.root.glob("pass-*/done")]
        return sorted(at for at in found if at is not None)

    def until(self, seen: Any, what: str) -> None:
        """Wait until `seen()` is true; fail with the logs of both launchers."""
        until(
            lambda: self.failed() or seen(),
            what,
            120,
            words=lambda: "\n".join(self.pod_log(rank)[-3000:] for rank in range(2)),
        )
        assert not self.failed(), "\n".join(map(self.pod_log, self.failed()))

    def run_record(self) -> dict[str, Any]:
        """Return run.json."""
        return dict(json.loads(self.output.run_json.read_text()))


def test_a_launcher_that_receives_sigterm_exits_after_a_checkpoint_and_no_batch_before_it_is_lost(
    tmp_path: Path,
) -> None:
    with Gang(tmp_path) as gang:
        gang.start()
        gang.until(lambda: gang.batch() > 50, "the training")
        gang.output.checkpoint_request.write_text("measure a save")
        gang.until(gang.checkpoints, "the requested checkpoint")
        # A checkpoint that is not yet older than the time between two questions is as good as a new one.
        [first] = gang.checkpoints()
        gang.until(lambda: gang.batch() > first.batches + 1300, "13 s of training after it")
        at = gang.batch()
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.processes[1].wait(100) == 143, gang.pod_log(1)
        saved = gang.checkpoints()[-1]
        assert saved.batches >= at, "nothing that was trained before SIGTERM is lost"
        assert f"received SIGTERM; saved a checkpoint at {saved}" in gang.termination(1)
        assert "SIGTERM: checkpoint requested, " in gang.pod_log(0)
        gang.start(1)
        gang.until(lambda: gang.run_record()["resume"], "the next attempt")
        gang.until(lambda: gang.batch() > saved.batches, "its first batches")
        record = gang.run_record()
        assert record["resume"] == [saved.passes, saved.batches]
        [restart] = record["restarts"]
        assert f"SIGTERM: saved a checkpoint at {saved}" in restart["cause"]
        assert record["countedRestarts"] == 0, "training.restarts is 0 here"
