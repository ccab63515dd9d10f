"""Writes docs/settings.md, the table of a stack's settings, from `infra/settings.py`.

The chart's values have their table in the chart's own README, by helm-docs. `make docs` makes both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from infra import reading, settings  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
HEAD = """# A stack's settings

<!-- made by docs/tables.py from infra/settings.py -->

Keys of `Pulumi.<stack>.yaml`, each after `paddle-training:`. Of an object, give only the keys that differ
from the default. Whatever is wrong is refused by the preview, before anything is made. What the training
itself does is said by chart values, in the files of `valuesFiles`: their table is on
[the chart's page](../charts/paddle-training/README.md#values).

| setting | what it does | default |
| --- | --- | --- |
"""


def cell(text: str) -> str:
    """Text of a Markdown table's cell: one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def default(value: Any) -> str:
    """A default as a person would type it; an object by its keys."""
    if isinstance(value, dict) and value:
        return ", ".join(f"`{name}` {default(item)}" for name, item in value.items())
    return f"`{cell(json.dumps(value, ensure_ascii=False))}`" if value != "" else "empty"


def page() -> str:
    """The whole page."""
    rows = reading.described(settings.Settings)
    return HEAD + "".join(f"| `{key}` | {cell(text)} | {default(value)} |\n" for key, text, value in rows)


if __name__ == "__main__":
    PAGE.write_text(page())
