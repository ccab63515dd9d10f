"""The pages: generated tables equal their sources, and every link leads to a page."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher import errors
from launcher.__main__ import POD_COMMANDS
from launcher.cli import errors as cli_errors
from launcher.cli.errors import EXIT_CODES
from launcher.cli.main import typer_app

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = (".py", ".json", ".mk", ".md", ".yaml")
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").glob("*/README.md")])


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "tables.py"))


def test_generated_reference_pages_equal_their_sources(tables: dict[str, Any]) -> None:
    stale = [path.name for path, page in tables["PAGES"].items() if path.read_text() != page()]
    assert stale == [], "out of date. Fix: make docs"


def test_the_list_of_pages_has_every_page() -> None:
    """Regression: docs/README.md, the start page, did not have a page of the site's menu."""
    docs = ROOT / "docs"
    text = (docs / "README.md").read_text()
    linked = {
        (docs / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target
    }
    pages = [page for page in PAGES if page.is_relative_to(docs) and page != docs / "README.md"]
    missing = [str(page.relative_to(ROOT)) for page in pages if page not in linked]
    assert missing == [], "add them to docs/README.md"


def schema_keys(schema: dict[str, Any]) -> set[str]:
    """Return all keys of objects in a JSON Schema."""
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return set(schema.get("properties", ())).union(*map(schema_keys, inner))


@pytest.mark.parametrize("path", sorted((REFERENCE / "schemas").glob("*.json")), ids=lambda path: path.name)
def test_every_field_of_a_file_is_on_the_page_of_file_formats(path: Path) -> None:
    page = (REFERENCE / "files.md").read_text()
    keys = schema_keys(json.loads(path.read_text()))
    assert sorted(key for key in keys if f"`{key}`" not in page and f'"{key}"' not in page) == []


def test_commands_page_has_every_command_and_every_pod_command(tables: dict[str, Any]) -> None:
    page = (REFERENCE / "commands.md").read_text()
    listed = set(re.findall(r"^│ ([a-z]+) ", CliRunner().invoke(typer_app, ["--help"]).output, re.MULTILINE))
    assert len(listed) > 15
    assert set(re.findall(r"^## ([a-z]+)$", page, re.MULTILINE)) == listed
    pods = set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Common options")[0], re.MULTILINE))
    assert pods | {"serve"} == set(POD_COMMANDS)


def test_exit_codes_page_has_the_codes_of_commands_and_pods() -> None:
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (\d+) \|([^|]*)\|([^|]*)\|", page, re.MULTILINE)
    assert {int(code): typed.strip() for code, typed, _ in rows if typed.strip()} == EXIT_CODES
    typed = {value for name, value in vars(cli_errors).items() if re.fullmatch(r"EXIT_(?!CODES).*", name)}
    assert typed == set(EXIT_CODES)
    of_pods = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code, _, pods in rows if pods.strip()} == of_pods
    printed = " ".join(CliRunner().invoke(typer_app, ["--help"]).output.split()).replace("│", "")
    assert "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) in printed


def anchors(page: Path) -> set[str]:
    """Return the anchors (`#…`) of a page's headings, as GitHub computes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_repository_paths_on_a_page_exist(page: Path) -> None:
    """A path in code style such as `launcher/paths.py` or `infra/`; the changelog also names removed files."""
    parts = "infra|aws|charts|launcher|local|tests|testkit|benchmarks|docs|requirements"
    paths = re.findall(rf"`((?:{parts})/[\w./-]*)(?:::\w+|: \w+)?`", page.read_text())
    allowed = set(paths) if page.name == "CHANGELOG.md" else set()
    assert sorted(path for path in set(paths) - allowed if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_modules_on_a_page_exist(page: Path) -> None:
    """A module such as `launcher.program` or in `python -m benchmarks.ctr`."""
    names = set(re.findall(r"\b(?:launcher|benchmarks|local|infra|aws)(?:\.[a-z_]\w*)+\b", page.read_text()))
    modules = {name.replace(".", "/") for name in names if not name.endswith(ENDINGS)}
    gone = modules if page.name == "CHANGELOG.md" else set()
    found = {name for name in modules if (ROOT / f"{name}.py").is_file() or (ROOT / name).is_dir()}
    assert sorted(modules - found - gone) == []


def test_every_message_on_the_troubleshooting_page_is_in_the_sources() -> None:
    """A quoted text of the first column is in the sources, or belongs to helm or Kubernetes."""
    others = {"values don't meet the specifications of the schema", "Insufficient cpu", "Insufficient memory"}
    others |= {"ErrImageNeverPull", "ImagePullBackOff", "Terminating", "helm upgrade", "runs/"}
    others |= {"conflict occurred while applying object"}
    sources = "".join(
        path.read_text()
        for folder in ("launcher", "infra", "aws", "charts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".tpl")
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)  # texts continued in the next line
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    quoted = {text for row in rows for text in re.findall(r"`([^`]+)`", row)} - others
    assert len(quoted) > 25
    assert sorted(text for text in quoted if text not in joined) == []
