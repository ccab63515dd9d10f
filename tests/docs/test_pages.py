"""The pages: tables are what their sources give, and what a page links to is there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher import errors
from launcher.cli import problems
from launcher.cli.main import typer_app
from launcher.cli.problems import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").glob("*/README.md")]
)


def test_the_table_of_settings_is_that_of_its_source() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "tables.py"))["page"]()
    assert (ROOT / "docs" / "settings.md").read_text() == made, "run `make docs`"


def test_the_table_of_exit_codes_has_those_of_the_commands() -> None:
    page = (ROOT / "docs" / "contracts.md").read_text()
    section = page.partition("## Exit codes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|([^|]*)\|([^|]*)\|", section, re.MULTILINE)
    assert {int(code): typed.strip() for code, typed, _ in rows if typed.strip()} == EXIT_CODES
    typed = {value for name, value in vars(problems).items() if re.fullmatch(r"EXIT_(?!CODES).*", name)}
    assert typed == set(EXIT_CODES)
    of_pods = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code, _, pods in rows if pods.strip()} == of_pods
    told = " ".join(CliRunner().invoke(typer_app, ["--help"]).output.split())
    assert "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) in told.replace("│", "")


def test_help_lists_each_command_of_the_contract() -> None:
    page = (ROOT / "docs" / "contracts.md").read_text()
    listed = set(re.findall(r"^\| `([a-z -]+)` \| (?:a person's machine|a pod of)", page, re.MULTILINE))
    commands = {command for names in listed for command in names.split()}
    told = CliRunner().invoke(typer_app, ["--help"]).output
    assert set(re.findall(r"^│ ([a-z]+) ", told, re.MULTILINE)) == commands


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_message_of_the_troubleshooting_page_is_one_that_the_project_prints() -> None:
    """A quoted text of its first column stands in the sources, or belongs to helm or Kubernetes."""
    others = {"values don't meet the specifications of the schema", "Insufficient cpu", "Insufficient memory"}
    others |= {"ErrImageNeverPull", "ImagePullBackOff", "Terminating", "helm upgrade", "runs/"}
    sources = "".join(
        path.read_text()
        for folder in ("launcher", "infra", "aws", "charts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".tpl")
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)  # texts that go on in the next line
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = {text for row in rows for text in re.findall(r"`([^`]+)`", row)} - others
    assert len(quoted) > 25
    assert sorted(text for text in quoted if text not in joined) == []
