"""Both languages of the tutorial have the same commands, and only commands and settings that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.settings import describe_settings
from launcher.cli.main import typer_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "tutorial.zh-CN.md"]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_both_languages_have_the_same_commands_in_the_same_order() -> None:
    english, chinese = map(commands, PAGES)
    assert len(english) > 25
    assert english == chinese


def test_both_languages_have_the_same_sections_and_rows() -> None:
    shape = [re.findall(r"^(#+|\||\*\*)", page.read_text(), re.MULTILINE) for page in PAGES]
    assert shape[0] == shape[1]


def test_chinese_readme_has_the_commands_pictures_and_figures_of_the_english_one() -> None:
    first = (ROOT / "README.md").read_text().partition("Then plain `pulumi`")[0]
    chinese = (ROOT / "README.zh-CN.md").read_text()
    for pattern in (r"^make \w+", r"\]\((docs/images/\S+)\)", r"^- ", r"\d+(?:\.\d+)*"):
        found = re.findall(pattern, first, re.MULTILINE)
        assert found
        assert re.findall(pattern, chinese, re.MULTILINE) == found


def test_every_make_target_of_the_tutorial_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= set(re.findall(r"^([a-z-]+):", (ROOT / "aws.mk").read_text(), re.MULTILINE))
    named = {word for page in PAGES for word in re.findall(r"make (?:-s )?([a-z][a-z-]+)", page.read_text())}
    assert named
    assert named <= targets


def test_make_help_prints_targets_as_users_type_them() -> None:
    printed = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert 'eval "$(make -s env)"' in printed
    assert "$$" not in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_setting_of_the_tutorial_exists(page: Path) -> None:
    text = page.read_text()
    words = set(re.findall(r"python -m launcher (\w+)", text))
    assert words
    for word in words:
        assert CliRunner().invoke(typer_app, [word, "--help"]).exit_code == 0, word
    settings = set(re.findall(r"\b(nodes|storage|dns|kms|bastion|cluster)\.(\w+)", text))
    assert settings
    known = {name: default for name, _, default, _ in describe_settings()}
    for section, key in settings:
        assert key in known[section], f"{section}.{key}"
