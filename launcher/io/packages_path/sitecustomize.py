"""Lets a Python process import the program's packages (`training.packages`), after those of the image.

With PADDLE_LAUNCHER_PACKAGES_FIRST they come before the others: `try` sets it, whose Python also has the packages of
the command line.

Python imports a module with this name when it starts (documentation of the module `site`). PYTHONPATH has this
module's folder, and not the packages' own one: its folders precede the standard library and the image's packages.
"""

import importlib.util
import os
import site
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_before = list(sys.path)
site.addsitedir(os.environ["PADDLE_LAUNCHER_PACKAGES"])
if os.environ.get("PADDLE_LAUNCHER_PACKAGES_FIRST"):
    _others = (at for at, path in enumerate(_before) if Path(path).name in ("site-packages", "dist-packages"))
    _at = next(_others, len(_before))
    sys.path[:] = [*_before[:_at], *sys.path[len(_before) :], *_before[_at:]]
# This module hides the one that the image may have.
_other = PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if Path(path) != Path(__file__).parent]
)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
