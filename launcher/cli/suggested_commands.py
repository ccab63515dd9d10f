"""The text of commands that messages suggest, as users can type them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

INSTALLED = "paddle-training"  # the name of the command after `pip install`


def program_name() -> str:
    """Return how this command line was started: `paddle-training` or `python -m launcher`."""
    return INSTALLED if Path(sys.argv[0]).stem == INSTALLED else "python -m launcher"


def command_text(*arguments: str) -> str:
    """Return a command of this command line with these arguments, quoted for a shell."""
    return f"{program_name()} {shlex.join(arguments)}"
