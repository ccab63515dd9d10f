"""`Problem` and `SettingsError`: how mistakes in a stack's settings are reported to users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PROJECT = "paddle-training"


@dataclass(frozen=True)
class Problem:
    """One mistake: the key and its value, what is allowed and why, and how to fix it."""

    key: str
    value: object
    limit: str
    reason: str
    fix: str

    def __str__(self) -> str:
        shown = "(not set)" if self.value is None else repr(self.value)
        parts = ("allowed:", self.limit), ("reason: ", self.reason), ("Fix:    ", self.fix)
        return "\n".join([f"{self.key} = {shown}", *(f"    {name} {text}" for name, text in parts)])


def setting_problem(key: str, value: object, limit: str, reason: str, fix: str) -> Problem:
    """Return a Problem of the setting `key`, such as `nodes.min`, with its full key `paddle-training:…`."""
    return Problem(f"{PROJECT}:{key}", value, limit, reason, fix)


class SettingsError(ValueError):
    """The settings are invalid; the text lists every problem. Raised before any resource is registered."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 setting is" if len(self.problems) == 1 else f"{len(self.problems)} settings are"
        listing = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{count} invalid; no resource was created or changed.\n{listing}")
