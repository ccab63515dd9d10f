"""Draw the Mermaid diagrams of the pages as SVG while the site is built (mkdocs.yml).

Because of this, the pages of the site need no script that draws diagrams. The repository's web pages draw the same
Mermaid blocks without this module.
"""

from __future__ import annotations

from typing import Any

import mermaidx


def draw(source: str, *_: Any, **__: Any) -> str:
    """Return HTML with the SVG of one `mermaid` block of a page. Raise an error for invalid Mermaid text.

    The Markdown extension pymdownx.superfences calls this function. `source` is the text of the block.
    """
    svg = mermaidx.Diagram(source).svg()
    return f'<div class="diagram">{svg}</div>'
