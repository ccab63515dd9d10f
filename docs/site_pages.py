"""MkDocs hooks: include pages from outside docs/ in the site, and translate links between the files.

Pages link to each other by relative paths of the repository, so that the links work on the repository's web pages. In
the site, a link to a page becomes a link to this page in the site. A link to a file that is not in the site is replaced
by the text of the link and the path of the file. A link to a missing file fails the build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
INCLUDED = {
    "charts/paddle-training/README.md": "reference/chart-training.md",
    "charts/paddle-serving/README.md": "reference/chart-serving.md",
    "launcher/programs/README.md": "reference/programs.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages outside docs/: path in the repository -> path in the site."""

IN_SITE = (".md", ".png", ".svg", ".json")
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`(?!\]))", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.site_pages")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of `INCLUDED` to the site's files."""
    for path, place in INCLUDED.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Return a page's Markdown with its links translated."""
    place = page.file.src_uri
    path = next((outside for outside, inside in INCLUDED.items() if inside == place), f"docs/{place}")
    parts = CODE.split(markdown)  # every second part is code, which has no links
    parts[::2] = [translate_links(part, path, place) for part in parts[::2]]
    return "".join(parts)


def translate_links(text: str, path: str, place: str) -> str:
    """Return the Markdown text `text` with its links changed for the site.

    `path` is the page's path in the repository, and `place` is its path in the site. A link to a missing file is logged
    as a warning; with the option `strict` of MkDocs, a warning fails the build.
    """

    def translate(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        name, mark, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if not (ROOT / file).exists():
            log.warning("%s: the link target %s does not exist. Fix: correct the link", path, target)
        inside = INCLUDED.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)
        if inside is None or not inside.endswith(IN_SITE):
            return label if file in label else f"{label} (`{file}`)"
        return f"{image}[{label}]({posixpath.relpath(inside, posixpath.dirname(place))}{mark}{anchor})"

    return LINK.sub(translate, text)
