"""The documentation site: it builds strictly, shows every diagram and loads nothing from other hosts."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs import site_pages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly; a warning, such as a broken link, fails here."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that build it
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.syspath_prepend(ROOT)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.mark.slow
def test_strict_build_renders_every_page_and_the_search_index(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    places = [str(page) for page in pages] + list(site_pages.INCLUDED.values())
    for place in places:
        html = re.sub(r"README\.md$", "index.html", place).replace(".md", ".html")
        assert (site / html).is_file(), place
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


@pytest.mark.slow
def test_site_loads_no_script_style_or_font_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(https?:[^\"]*)"
        assert re.findall(loaded, page.read_text()) == [], page.name


@pytest.mark.slow
def test_every_mermaid_block_becomes_a_picture(site: Path) -> None:
    sources = [page for page in (ROOT / "docs").rglob("*.md") if "```mermaid" in page.read_text()]
    for source in sources:
        html = (site / source.relative_to(ROOT / "docs")).with_suffix(".html")
        assert html.read_text().count('<div class="diagram"><svg') == source.read_text().count("```mermaid")


def test_link_to_a_missing_file_fails_the_build(caplog: pytest.LogCaptureFixture) -> None:
    site_pages.translate_links("[gone](no-such-page.md)", "docs/README.md", "README.md")
    assert "no-such-page.md does not exist" in caplog.text


@pytest.mark.parametrize(
    ("link", "translated"),
    [
        ("[a](../charts/paddle-training/README.md#values)", "[a](reference/chart-training.md#values)"),
        ("[licence](../LICENSE)", "licence (`LICENSE`)"),
        ("[there](https://example.com)", "[there](https://example.com)"),
    ],
)
def test_links_to_repository_files_are_translated_for_the_site(link: str, translated: str) -> None:
    assert site_pages.translate_links(link, "docs/README.md", "README.md") == translated
