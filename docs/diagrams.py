"""Draw the Mermaid diagrams of the pages as SVG while the site is built (mkdocs.yml).

So the pages load no script that draws them. The web pages of the repository draw the same blocks without this module.
"""

from __future__ import annotations

from typing import Any

import mermaidx


def draw(source: str, *_: Any, **__: Any) -> str:
    """Return HTML with the SVG of one `mermaid` block of a page.

    The Markdown extension pymdownx.superfences calls this function. It raises for invalid Mermaid text.
    """
    svg = mermaidx.Diagram(source).svg()
    return f'<div class="diagram">{svg}</div>'
