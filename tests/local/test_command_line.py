"""Test the command line of `local`: what an interrupted command says."""

import pytest

from local import __main__ as command_line
from local import example_data


def test_ctrl_c_in_a_command_says_how_to_continue_and_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(example_data, "ensure_wheels", interrupted)
    monkeypatch.setattr("sys.argv", ["local", "sources"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 130
    assert "`make demo` continues from here" in "".join(capfd.readouterr())
