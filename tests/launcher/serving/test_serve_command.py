"""Tests of `python -m launcher serve --model s3://…`, which downloads the model first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.serving import serve


def test_an_exported_model_is_downloaded_to_the_work_folder_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(serve, "download_model", lambda *given: asked.append(given) or tmp_path / "here")
    monkeypatch.setattr(serve, "serve", lambda *given: asked.append(given))
    url = "s3://bucket/models/job/run-1"
    (tmp_path / "served" / "model" / "table-of-an-earlier-model").mkdir(parents=True)
    (tmp_path / "served" / "mine").touch()
    given = ["--model", url, "--work", str(tmp_path), "--host", "0.0.0.0", "--workers", "3"]  # noqa: S104
    assert serve.main(given) == 0
    assert [path.name for path in (tmp_path / "served").iterdir()] == ["mine"]
    assert asked == [(url, tmp_path / "served", "--model"), (tmp_path / "here", "0.0.0.0", 8080, 3)]  # noqa: S104


@pytest.mark.parametrize(("size", "expected"), [("10Gi", 10 << 30), ("1.5k", 1500), ("7", 7)])
def test_sizes_are_kubernetes_quantities(
    size: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def follower(*arguments: object) -> SimpleNamespace:
        given.extend(arguments)
        return SimpleNamespace(open_first=lambda: tmp_path, follow=None, newer="")

    monkeypatch.setattr(serve, "ModelFollower", follower)
    monkeypatch.setattr(serve, "serve", lambda *_: None)
    assert serve.main(["--model", "x", "--work", str(tmp_path), "--follow", "60", "--work-limit", size]) == 0
    assert given == ["x", tmp_path / "served", 60.0, expected]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--work-limit", "1K", "argument --work-limit: "),
        ("--work-limit", "2GB", "argument --work-limit: "),
        ("--follow", "0", "--follow is 0, but must be more than 0 seconds"),
        *((option, value, f"argument {option}: it is '{value}'. Fix: set an integer from {limits}")
          for option, value, limits in (("--workers", "0", "1 to 1024"), ("--workers", "-1", "1 to 1024"),
                                        ("--port", "65536", "0 to 65535"))),
    ],
)  # fmt: skip
def test_an_option_out_of_range_is_rejected(
    capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    with pytest.raises(SystemExit):
        serve.main(["--model", "x", f"{option}={value}"])
    assert message in capsys.readouterr().err
