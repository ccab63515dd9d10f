"""Inputs and outputs of resource types, read from the source of the installed package `pulumi_aws`.

The package is not imported, because the import of `pulumi_aws.ec2` alone takes over a second. Only the constructor
signatures of the classes that a program uses are parsed.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Type = tuple  # ("str",), ("list", Type), ("map", Type), ("object", "Class"), ("union", Type, …) and the like


class UnknownTypeError(Exception):
    """The SDK has no such resource type."""


@dataclass(frozen=True)
class Field:
    """A property: its name on the wire (camelCase), and whether it is required."""

    name: str
    required: bool
    type: Type
    doc: str


@dataclass(frozen=True)
class Shape:
    """Inputs and state of a resource type, by their names on the wire."""

    token: str
    module: str
    inputs: dict[str, Field]
    state: dict[str, Field]

    @property
    def computed(self) -> list[str]:
        """Return the properties that only the cloud sets."""
        return [name for name in self.state if name not in self.inputs]


def snake_case(name: str) -> str:
    """Return the Python name of a property: `securityGroupRule` → `security_group_rule`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@lru_cache
def _root() -> Path:
    spec = importlib.util.find_spec("pulumi_aws")
    assert spec is not None and spec.origin is not None, "the SDK is a package of requirements/dev.lock"
    return Path(spec.origin).parent


@lru_cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@lru_cache
def _class_source(module: str, name: str, own: str) -> str:
    """Return the source code of the class `name`; empty if the SDK has none.

    The first of these files of pulumi_aws that contains the class is used: `<module>/<own>.py`,
    `<module>/_inputs.py`, `_inputs.py`.
    """
    folder = _root() / module if module != "index" else _root()
    for path in (folder / f"{own}.py", folder / "_inputs.py", _root() / "_inputs.py"):
        text = _source(path)
        start = text.find(f"\nclass {name}:\n")
        if start >= 0:
            end = text.find("\n\n\n", start)
            return text[start + 1 : end if end > 0 else len(text)]
    return ""


def _type(node: ast.expr) -> Type:  # noqa: PLR0911 - one return a form of annotation
    """Return a property's Type, such as `("list", ("str",))`, from its annotation in the SDK."""
    match node:
        case ast.Constant(value=str() as name):
            return ("object", name.rpartition(".")[2])
        case ast.Constant(value=None):
            return ("none",)
        case ast.Attribute(attr=name):
            known = {"str": "str", "int": "int", "float": "float", "bool": "bool", "Any": "any"}
            return (known.get(name, "asset" if name in ("Asset", "Archive") else "any"),)
        case ast.Name(id=name):
            return {"str": ("str",), "Any": ("any",)}.get(name, ("any",))
        case ast.Subscript(value=outer, slice=inner):
            head = outer.attr if isinstance(outer, ast.Attribute) else getattr(outer, "id", "")
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if head in ("Input", "Optional"):
                return _type(parts[0])
            if head == "Sequence":
                return ("list", _type(parts[0]))
            if head == "Mapping":
                return ("map", _type(parts[1]))
            if head == "Union":
                return ("union", *[_type(part) for part in parts])
    return ("any",)


@lru_cache
def read_fields(module: str, name: str, own: str = "_inputs") -> dict[str, Field] | None:
    """Return wire name → field of an args or state class of the SDK; None if the SDK has no such class."""
    text = _class_source(module, name, own)
    match = re.search(r"def __init__\(__self__(?:, \*,)?(.*?)\):\n", text, re.DOTALL)
    if not match:
        return None
    signature = ast.parse(
        f"def f(*, {match.group(1).strip()}): ..." if match.group(1).strip() else "def f(): ..."
    )
    arguments = signature.body[0].args  # type: ignore[attr-defined]
    wire = dict(re.findall(r'@pulumi\.getter\(name="(\w+)"\)\s+def (\w+)\(self', text))
    names = {python: name_ for name_, python in wire.items()}
    docs = dict(re.findall(r"\n        :param [^\n]*?\] (\w+): ([^\n]*)", text))
    result = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        wire_name = names.get(argument.arg, argument.arg)
        result[wire_name] = Field(
            wire_name, default is None, _type(argument.annotation), docs.get(argument.arg, "")
        )
    return result


@lru_cache
def read_shape(token: str) -> Shape:
    """Return the shape of `aws:<module>/<file>:<Class>`.

    Raises:
        UnknownTypeError: the installed SDK has no such resource.
    """
    module, stem, name = token.removeprefix("aws:").replace("/", ":").split(":")
    own = snake_case(stem)
    # A resource whose args class would have the name of a nested input type has `…InitArgs` instead.
    inputs = read_fields(module, f"{name}InitArgs", own) or read_fields(module, f"{name}Args", own)
    if inputs is None:
        raise UnknownTypeError(
            f"pulumi_aws has no class {name}Args in {module}/{own}.py, so {token} cannot be made"
        )
    return Shape(token, module, inputs, read_fields(module, f"_{name}State", own) or {})
