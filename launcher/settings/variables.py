"""Dataclass fields that are read from environment variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.errors import SettingsError, setting_message
from launcher.settings.parsers import BadValueError, Parser

REQUIRED = object()
"""Stands for the default of a variable that must be set."""
_VARIABLE = "variable"  # key of the Variable in the metadata of a field


@dataclass(frozen=True)
class Variable:
    """The environment variable from which a dataclass field is read; `variable` describes the attributes."""

    name: str
    prefix: str
    parse: Parser
    default: Any
    value: str
    secret: bool

    def read(self, environ: Mapping[str, str]) -> tuple[Any, str]:
        """Return (value of the field, empty text), or (None, message) for a missing or invalid variable."""
        raw = environ.get(self.name, "")
        key = f"{self.value} ({self.name})" if self.value else self.name
        fix = f"Set {self.value or self.name} to such a value"
        if not raw and self.default is REQUIRED:
            return None, setting_message(
                key, raw, "set", "it has no default", f"Set {self.value or self.name}"
            )
        try:
            return (self.parse(raw) if raw else self.default), ""
        except BadValueError as error:
            shown = "(not shown)" if self.secret else raw
            return None, setting_message(key, shown, error.limit, error.reason, error.fix or fix)


def variable(
    parse: Parser,
    default: Any = REQUIRED,
    value: str = "",
    *,
    name: str = "",
    prefix: str = "PADDLE_LAUNCHER_",
    secret: bool = False,
) -> Any:
    """Return a dataclass field that is read from an environment variable.

    Args:
        parse: converts the variable's text to the field's value.
        default: the field's value, unparsed, when the variable is absent or empty.
        value: the chart's value that sets the variable, for messages.
        name: the variable's name; empty: `prefix` and the field's name in upper case.
        prefix: the start of the variable's name.
        secret: whether the value is hidden in messages, and the variable kept from child processes.
    """
    return dataclasses.field(
        repr=not secret, metadata={_VARIABLE: Variable(name, prefix, parse, default, value, secret)}
    )


def read_variables(settings: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a dataclass's fields by name.

    Raises:
        SettingsError: variables are missing or invalid; the message has a line for each.
    """
    read = {field: one.read(environ) for field, one in _variables(settings).items()}
    if faults := [fault for _, fault in read.values() if fault]:
        raise SettingsError("\n".join(faults))
    return {field: value for field, (value, _) in read.items()}


def secret_names(settings: type) -> set[str]:
    """Return the names of a dataclass's secret variables."""
    return {one.name for one in _variables(settings).values() if one.secret}


def _variables(settings: type) -> dict[str, Variable]:
    """Return the variables of a dataclass's fields by the fields' names."""
    fields = [(one.name, one.metadata[_VARIABLE]) for one in dataclasses.fields(settings) if one.metadata]
    return {
        field: dataclasses.replace(one, name=one.name or f"{one.prefix}{field.upper()}")
        for field, one in fields
    }
