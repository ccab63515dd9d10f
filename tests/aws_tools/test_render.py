"""Test `python -m aws render` on a machine without helm."""

import pytest

from aws import __main__ as commands


@pytest.mark.slow
def test_render_without_helm_on_path_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", ["aws", "render", "--stack", "dev"])
    assert commands.main() == 1
    assert "helm, which renders the chart, is not on PATH. Fix: " in capsys.readouterr().err
