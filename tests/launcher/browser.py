"""A real browser for tests of pages: Debian's chromium, without a window and without access to the internet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="`make tools` installs Debian's chromium"
)


def open_in_browser(address: str, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page; return what the browser prints: the page's elements on stdout, messages on stderr."""
    argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    argv += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    argv += [f"--user-data-dir={profile}", "--hide-scrollbars", *options, "--dump-dom", address]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
