"""Progress in the logs of programs that do not report it: lines as the programs print them."""

from pathlib import Path

import pytest
import yaml

from launcher.supervisor.log_progress import TAIL_BYTES, find_log_progress, read_log_progress

LOGS = yaml.safe_load(Path(__file__).with_name("log_progress.yaml").read_text("utf-8"))


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_the_newest_progress_is_found(log: dict[str, str]) -> None:
    assert find_log_progress(log["text"]) == log["progress"]


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert read_log_progress(log) == ""
    log.write_bytes(b"epoch 1/9\n" + b"x" * TAIL_BYTES + b"\nstep 3/4\n\xff")
    assert read_log_progress(log) == "step 3/4"
