"""Tests on file systems that cannot map files, as some FUSE file systems: files are read instead."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from launcher.errors import StorageFailedError
from launcher.paths import Position
from launcher.trainer.record_files import Records, write_record_file

from .test_server_rules import training

FAILS = """
import errno, mmap, os
def fails(*_, **__):
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
mmap.mmap = fails
"""


@pytest.mark.paddle
def test_a_run_trains_resumes_and_exports_without_mapped_files(tmp_path: Path) -> None:
    """The program lets each mapping in its processes fail as the kernel does."""
    changes = {
        "import numpy as np\n": FAILS + "import numpy as np\n",
        'fc(numbers, 3, name="hidden")': 'fc(numbers, 3) + job.embedding(ids, 3, "words", pool="sum")',
        "def optimizer(job)": "def check_labels(labels):\n    assert len(labels)\n\ndef optimizer(job)",
    }
    gang = training(tmp_path, changes).finish()
    assert (gang.output.model / "score.json").is_file()
    resumed = gang.next_attempt(Position(1), PASSES="2").finish()
    assert "the servers' values are verified" in resumed.log()


def fail_with(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mmap, "mmap", fails)


def test_records_are_read_and_other_errors_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = np.dtype([("label", np.float32, (1,)), ("ids", np.int64, (2,))])
    rows = np.zeros(5, dtype)
    rows["label"][:, 0] = range(5)
    written = (write_record_file(tmp_path, "00000", rows),)
    for code in (errno.ENODEV, errno.EIO):
        fail_with(monkeypatch, code)
        records = Records(tmp_path, dtype, written, 0)
        if code == errno.ENODEV:
            [batch] = records.blocks(8)
            assert batch["label"][:, 0].tolist() == [0, 1, 2, 3, 4]
        else:
            with pytest.raises(StorageFailedError):
                list(records.blocks(8))
