"""Tests of the rules for imports and names; they only parse the sources, so they take about a second."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("infra", "aws", "launcher")
PACKAGES = (*PRODUCT, "local", "benchmarks", "testkit")

LAYERS = (
    {"contracts"},
    {"io"},
    {"script_run"},
    {"script_callbacks"},
    {"program"},
    {"reporting", "dataprep", "serving"},
    {"trainer"},
    {"runtimes"},
    {"supervisor"},
    {"cli"},
    {"__main__"},
)
"""Folders of launcher/, from low to high. `contracts` are the modules directly in launcher/, except `program`, the
interface for users' programs, and `script_run` and `script_callbacks`, its parts for scripts. A module imports from its
own folder and from lower layers only. launcher/programs has its own rule."""

FORBIDDEN = (
    ("launcher", ("infra", "aws", "local", "benchmarks", "testkit", "tests")),
    ("infra", ("launcher", "aws", "local", "benchmarks", "testkit", "tests")),
    ("aws", ("launcher", "local", "benchmarks", "testkit", "tests")),
    ("local", ("benchmarks", "testkit", "tests")),
    ("benchmarks", ("tests",)),
    ("testkit", ("benchmarks", "tests")),
)
"""(package, packages that it must not import)."""

START_PATH = ("launcher.__main__", "launcher.supervisor")
"""What a pod starts: it must be small and start fast, so it imports only the standard library."""
SAME_MODULE_NAME = {
    "__main__": "the entry point of each package",
    "errors": "the exceptions of each package",
    "paths": "the well-known paths of each package",
    "predict": "a command, and the script of the example `text` that does the same for its model",
    "trainer_config": "the file name that users' programs have by default",
}
"""Names of modules that exist in several folders, each with the reason."""

SAME_CLASS_NAME = ("SettingsError", "UnreadableError")
"""Names of classes that are defined in several modules: exceptions of the same meaning."""


@dataclass(frozen=True)
class Import:
    """One imported module; `at_start` is false inside functions and `if TYPE_CHECKING`."""

    module: str
    at_start: bool


@cache
def source_files() -> dict[str, Path]:
    """Return the file of each module of PACKAGES."""
    found = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


@cache
def parse(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(source_files()[module].read_text("utf-8"))


@cache
def imports(module: str) -> frozenset[Import]:
    """Return all imports of a module; `from package import x` counts as an import of package.x if that exists."""
    return frozenset(_walk(parse(module), module, at_start=True))


def _walk(node: ast.AST, module: str, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # an expression contains no import
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, at_start) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, module)
            for alias in child.names:
                below = f"{base}.{alias.name}"
                yield Import(below if _is_module(below) else base, at_start)
        else:
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            only_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from _walk(child, module, at_start and not in_function and not only_for_types)


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """Return the absolute name of the package or module that `from … import` refers to."""
    if not node.level:
        return node.module or ""
    is_package = source_files()[module].name == "__init__.py"
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *filter(None, [node.module])])


@cache
def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


@cache
def edges() -> frozenset[tuple[str, str]]:
    """Return (importing module, imported module) of all imports between modules of this repository."""
    return frozenset(
        (module, one.module)
        for module in source_files()
        for one in imports(module)
        if one.module != module and one.module.split(".")[0] in (*PACKAGES, "tests")
    )


def layer_of(module: str) -> tuple[int, str] | None:
    """Return (height, folder) of a module of launcher/; None for modules without a layer."""
    parts = module.split(".")
    if parts[0] != "launcher" or len(parts) == 1 or parts[1] == "programs":
        return None
    found = [(height, parts[1]) for height, folders in enumerate(LAYERS) if parts[1] in folders]
    return found[0] if found else (0, "contracts")


def test_packages_do_not_import_packages_that_they_must_not_know() -> None:
    found = {
        (module, imported)
        for package, others in FORBIDDEN
        for module, imported in edges()
        if module.split(".")[0] == package and imported.split(".")[0] in others
    }
    assert found == set(), "forbidden import (importing module, imported module)"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in source_files()}
    for module, imported in edges():
        if imported in graph:
            graph[module].add(imported)
    TopologicalSorter(graph).prepare()  # raises CycleError with the modules of a circle


def test_low_layers_of_the_launcher_do_not_import_higher_ones() -> None:
    found = set()
    for module, imported in edges():
        low, high = layer_of(module), layer_of(imported)
        if low and high and (high[0] > low[0] or (high[0] == low[0] and high[1] != low[1])):
            found.add((module, imported))
    assert found == set(), "import of a higher layer (importing module, imported module)"


def test_every_folder_of_the_launcher_has_a_layer() -> None:
    folders = {file.parent.name for file in (ROOT / "launcher").glob("*/__init__.py")}
    known = set().union(*LAYERS) | {"settings", "schema"}  # these packages are contracts
    assert folders <= known, f"add these folders of launcher/ to LAYERS: {sorted(folders - known)}"


def test_the_served_package_imports_nothing_of_the_launcher() -> None:
    inside = "launcher.serving.paddle_served"
    found = [
        (m, i) for m, i in edges() if m.startswith(inside) and i.startswith("launcher") and inside not in i
    ]
    assert found == [], "an exported model must work without the launcher"


def test_programs_import_only_the_public_interface() -> None:
    inside = "launcher.programs"
    found = [
        (module, imported)
        for module, imported in edges()
        if module.startswith(inside) and imported != "launcher.program" and not imported.startswith(inside)
    ]
    assert found == [], "users copy these programs: launcher.program is all that they can rely on"


def test_the_start_path_of_a_pod_imports_only_the_standard_library() -> None:
    todo = [module for module in source_files() if module.startswith(START_PATH)]
    seen: set[str] = set()
    found: set[object] = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        for one in imports(module):
            parts = one.module.split(".")
            if not one.at_start:
                continue
            if parts[0] == "launcher":
                packages = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
                todo += [name for name in packages if name in source_files()]
            elif parts[0] not in sys.stdlib_module_names:
                found.add((module, parts[0]))
    assert found == set(), "import at the start of a pod (module, package)"


def test_no_module_name_is_used_in_two_folders() -> None:
    folders = defaultdict(list)
    for module, file in source_files().items():
        if file.name != "__init__.py":
            folders[file.stem].append(module)
    found = {name for name, modules in folders.items() if len(modules) > 1}
    assert found == set(SAME_MODULE_NAME), "module name in several folders; or remove it from the list"


def test_no_class_name_of_the_product_is_defined_in_two_modules() -> None:
    modules = defaultdict(set)
    for module in source_files():
        if module.split(".")[0] not in (*PRODUCT, "local"):
            continue
        for node in ast.walk(parse(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(module)
    found = {name for name, places in modules.items() if len(places) > 1}
    assert found == set(SAME_CLASS_NAME), "class name in several modules; or remove it from the list"


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("infra.settings", "import json", {Import("json", True)}),
        ("infra.settings", "from . import naming", {Import("infra.naming", True)}),
        ("launcher.io", "from .files import x", {Import("launcher.io.files", True)}),
        ("infra.settings", "def f():\n    from launcher import io", {Import("launcher.io", False)}),
        ("infra.settings", "if TYPE_CHECKING:\n    import boto3", {Import("boto3", False)}),
    ],
)
def test_imports_are_found_at_every_level(module: str, text: str, expected: set[Import]) -> None:
    assert set(_walk(ast.parse(text), module, at_start=True)) == expected
