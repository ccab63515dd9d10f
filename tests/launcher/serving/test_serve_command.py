"""Tests of `python -m launcher serve --model s3://…`, which downloads the model first."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import DataError
from launcher.serving import download, serve
from launcher.serving.paddle_served import ModelError


def test_an_exported_model_is_downloaded_to_the_work_folder_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(download, "download_model", lambda *given: asked.append(given) or tmp_path / "here")
    monkeypatch.setattr(serve, "serve", lambda *given: asked.append(given))
    url = "s3://bucket/models/job/run-1"
    given = ["--model", url, "--work", str(tmp_path), "--host", "0.0.0.0", "--workers", "3"]  # noqa: S104
    assert serve.main(given) == 0
    assert asked == [(url, tmp_path / "served", "--model"), (tmp_path / "here", "0.0.0.0", 8080, 3)]  # noqa: S104


def test_a_model_that_cannot_be_served_exits_with_the_code_for_invalid_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("no model")

    monkeypatch.setattr(serve, "serve", fail)
    with pytest.raises(DataError, match=r"^no model$"):
        serve.main(["--model", str(tmp_path)])
