"""What is wrong with a person's settings, said in one way.

SettingsError (ValueError)
    carries every Problem that was found; its text is the whole message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

P = "paddle-training:"


@dataclass(frozen=True)
class Problem:
    """One mistake: the key, what it holds, what it may hold, why, and what to do."""

    key: str
    value: object
    limit: str
    reason: str
    mend: str

    def __str__(self) -> str:
        shown = "(not set)" if self.value is None else repr(self.value)
        parts = ("limit: ", self.limit), ("reason:", self.reason), ("mend:  ", self.mend)
        return "\n".join([f"{self.key} = {shown}", *(f"    {name} {text}" for name, text in parts)])


def wrong(key: str, value: object, said: str) -> Problem:
    """A Problem from one sentence of each kind: `limit: reason. Mend`; `key` without the project's name."""
    limit, _, rest = said.partition(": ")
    reason, _, mend = rest.partition(". ")
    return Problem(f"{P}{key}", value, limit, reason, mend)


class SettingsError(ValueError):
    """The settings cannot be used. Raised before any resource is registered."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "one setting is" if len(self.problems) == 1 else f"{len(self.problems)} settings are"
        listing = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{count} wrong; nothing was made or changed.\n{listing}")
