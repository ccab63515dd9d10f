"""Let a Python process import the program's packages (`training.packages`).

Packages of the image precede the program's packages. If the variable PADDLE_LAUNCHER_PACKAGES_FIRST is set, the
program's packages come first. The command `try` sets this variable, because there the program runs in a Python that
also has the packages of the command line.

When Python starts, it imports a module with the name `sitecustomize` (documentation of the module `site`). PYTHONPATH
contains the folder of this module. It does not contain the folder of the program's packages, because folders in
PYTHONPATH precede the standard library and the image's packages.
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
# This module hides a sitecustomize of the image, so run that one here.
_other = PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if Path(path) != Path(__file__).parent]
)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
