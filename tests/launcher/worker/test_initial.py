"""`training.initFrom`: a new run begins with what an earlier one learnt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from launcher import files, s3
from launcher.errors import DataError, SettingsError
from launcher.layout import Position
from launcher.worker import initial, outputs

from .conftest import needs_paddle
from .loopback import PROGRAMS, Loopback

Staged = Callable[..., list[Path]]
FIRST = {
    "PADDLE_LAUNCHER_PASSES": "2",
    "PADDLE_LAUNCHER_BATCH_SIZE": "64",
    "PADDLE_LAUNCHER_EXTRA_ARGS": '["--learning_rate=0.05"]',
}
STILL = {
    "PADDLE_LAUNCHER_PASSES": "1",
    "PADDLE_LAUNCHER_INIT_FROM": "earlier/output",
    "PADDLE_LAUNCHER_EXTRA_ARGS": '["--learning_rate=0.0000001"]',
}
"""A run that learns next to nothing: what it knows it was given."""


def score(gang: Loopback) -> float:
    return float(json.loads((gang.output.model / "score.json").read_text())["rmse"])


def run(gang: Loopback) -> Loopback:
    codes = gang.run()
    assert set(codes.values()) == {0}, f"{codes}\n{gang.log()[-3000:]}\n{gang.server_log()[-2000:]}"
    return gang


@needs_paddle
def test_a_new_run_begins_with_a_model_or_a_save_in_every_mode(
    tmp_path: Path, staged: Staged, port: int
) -> None:
    data = staged("ratings", 2)
    place = {"CONF_PADDLE_PORT": str(port)}
    program = PROGRAMS / "recommendation"
    first = run(Loopback(tmp_path / "first", data, program, values=FIRST | place))
    learnt = score(first)
    fresh = run(
        Loopback(tmp_path / "fresh", data, program, values=STILL | place | {"PADDLE_LAUNCHER_INIT_FROM": ""})
    )
    assert abs(score(fresh) - learnt) > 0.05
    assert not fresh.output.before_json.exists()
    for mode, whole in (("async", True), ("sync", False), ("geo", False)):
        root = tmp_path / mode
        source = root / "earlier" / "output"
        shutil.copytree(first.output.root, source)
        if not whole:
            shutil.rmtree(source / "model")
        values = STILL | place | {"PADDLE_LAUNCHER_MODE": mode}
        gang = run(Loopback(root, data, program, values=values))
        assert score(gang) == pytest.approx(learnt, abs=2e-3), mode
        assert "began with the parameters of earlier/output" in gang.log(1)
        before = json.loads(gang.output.before_json.read_text())
        assert before["score"]["rmse"] == pytest.approx(learnt, abs=2e-3), "tested before it trained"
        assert gang.log().index("before training, with the parameters of") < gang.log().index("Pass=1 ")
        assert not list(gang.output.root.glob(".init*"))
    gang = run(replace(gang, resume=Position(1), attempt=1, values=values | {"PADDLE_LAUNCHER_PASSES": "2"}))
    assert "began with" not in gang.log(), "a run that has saves goes on from them"


@needs_paddle
def test_another_network_is_one_clear_error_of_the_settings(
    tmp_path: Path, staged: Staged, port: int
) -> None:
    place = {"CONF_PADDLE_PORT": str(port)}
    first = run(Loopback(tmp_path / "first", staged(), PROGRAMS / "quick_start", values=FIRST | place))
    root = tmp_path / "second"
    shutil.copytree(first.output.root, root / "earlier" / "output")
    again = Loopback(root, first.data, PROGRAMS / "quick_start", "trainer_config.emb.py", STILL | place)
    assert again.run()["0/trainer"] == 64
    told = [line for line in again.log().splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    says = "word_weight is a table of width 1 there and absent here"
    for part in ("training.initFrom", "another network", says):
        assert part in told[0]


def settings(tmp_path: Path, init_from: str) -> SimpleNamespace:
    return SimpleNamespace(job_path=tmp_path, init_from=init_from, work_dir=tmp_path / "work")


@pytest.mark.parametrize("given", ["/somewhere", "../other/output", "nothing/output"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError, match=r"training\.initFrom .* is '.*', but must be an earlier run"):
        initial.Initial.find(settings(tmp_path, given))


class Bucket:
    """S3 in a dict."""

    objects: dict[str, bytes] = {}  # noqa: RUF012 (each test sets its own)

    def __init__(self, name: str) -> None:
        self.name = name

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def page(self, prefix: str, size: int) -> tuple[list[s3.Found], str]:
        found = sorted(key for key in self.objects if key.startswith(prefix))[:size]
        return [s3.Found(key, len(self.objects[key]), "") for key in found], ""

    def read(self, key: str) -> bytes:
        return self.objects[key]

    def call(self, doing: str, Key: str, Filename: str) -> None:  # noqa: N803 (boto3's names)
        assert doing == "download_file"
        Path(Filename).write_bytes(self.objects[Key])


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    content = {"model/network.pdmodel": b"network", "model/tables/x": b"table", "metrics.csv": b"pass"}
    objects = {f"models/job/run-1/{name}": value for name, value in content.items()}
    path = tmp_path / "one"
    listed = []
    for name, value in content.items():
        path.write_bytes(value)
        listed.append({"name": name, "bytes": len(value), "sha256": files.sha256_file(path)})
    objects["models/job/run-1/_SUCCESS.json"] = json.dumps({"files": listed}).encode()
    objects["models/job/latest.json"] = json.dumps({"to": "s3://bucket/models/job/run-1/"}).encode()
    monkeypatch.setattr(s3, "Bucket", Bucket)
    monkeypatch.setattr(Bucket, "objects", objects)
    monkeypatch.setattr(
        initial, "_model", lambda folder: ({"w": np.array([len(outputs.files.folder_files(folder))])}, {})
    )
    return objects


@pytest.mark.parametrize("url", ["s3://bucket/models/job/run-1/", "s3://bucket/models/job"])
def test_the_model_of_an_export_is_fetched_once_and_leaves_nothing(
    tmp_path: Path, exported: dict[str, bytes], url: str
) -> None:
    found = initial.Initial.find(settings(tmp_path, url))
    assert found.values["w"] == [2], "the model's files and no others"
    assert not (tmp_path / "work" / "init").exists()


def test_an_export_that_is_not_whole_or_other_than_listed_is_refused(
    tmp_path: Path, exported: dict[str, bytes]
) -> None:
    exported["models/job/run-1/model/tables/x"] = b"other"
    with pytest.raises(DataError, match=r"model/tables/x has another sha256"):
        initial.Initial.find(settings(tmp_path, "s3://bucket/models/job/run-1"))
    del exported["models/job/run-1/_SUCCESS.json"]
    with pytest.raises(SettingsError, match=r"no _SUCCESS\.json of a whole export"):
        initial.Initial.find(settings(tmp_path, "s3://bucket/models/job/run-1"))
