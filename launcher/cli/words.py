"""What people are told to type."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

INSTALLED = "paddle-training"  # as pip installs it


def called() -> str:
    """How this command line was called."""
    return INSTALLED if Path(sys.argv[0]).stem == INSTALLED else "python -m launcher"


def command(*words: str) -> str:
    """A command of this command line, as it can be typed."""
    return f"{called()} {shlex.join(words)}"
