"""Draw the two pictures of the README from a job's folder: `python docs/status_picture.py FOLDER`.

`docs/images/status.svg` shows what the command `status --path FOLDER` prints, and `docs/images/curve.png` is the
training curve of the run. After `make try`, use the folder
`~/.cache/paddle-training/try/quick_start/shared/quick-start`.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from launcher.cli.job_sessions import FolderSession
from launcher.cli.run_display import status_screen

IMAGES = Path(__file__).resolve().parent / "images"
FORMAT = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code", "ui-monospace, Menlo, Consolas"
)
"""Rich's template for SVG without the fonts that a browser would load from another host."""


def main() -> None:
    """Write both pictures. The job's folder is the only argument of the command line."""
    folder = Path(sys.argv[1]).resolve()
    view = replace(FolderSession(folder).read_view(), where=folder.name)  # no path of this machine
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True)
    console.print(status_screen(view))
    title = f"python -m launcher status --path {folder.name}"
    picture = console.export_svg(title=title, code_format=FORMAT)
    (IMAGES / "status.svg").write_text(picture, "utf-8")
    shutil.copyfile(folder / "output" / "curve.png", IMAGES / "curve.png")


if __name__ == "__main__":
    main()
