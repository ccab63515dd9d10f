"""How far a build of Go programs is: packages begun of all, and about how long the rest takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn

from local import say

LINE_SECONDS = 30.0  # without a terminal: a line now and then, so that nobody takes a long compile for a hang
LISTING = '{{if .Stale}}{{.ImportPath}}\t{{.Dir}}\t{{join .GoFiles "\t"}}{{end}}'
"""The format in which `go list -deps` tells `weights` the packages that are not compiled yet."""


def weights(listed: str) -> dict[str, int]:
    """Go package → bytes of its sources, which its compilation takes about as long as."""
    found = {}
    for line in filter(None, listed.splitlines()):
        package, folder, *files = line.split("\t")
        if files != [""]:
            found[package] = sum((Path(folder) / file).stat().st_size for file in files)
    return found


class Counter:
    """Counts the packages that `go build -v` names.

    weights: what each of all packages weighs. clock: seconds, from anywhere.
    """

    def __init__(self, weights: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = dict(weights)
        self._all = max(1, sum(weights.values()))
        self.total = len(weights)
        self._clock = clock
        self._began = clock()

    def count(self, line: str) -> None:
        """One line of the build's output; what names no package (a download, an error) is passed over."""
        self._left.pop(line.strip(), None)

    @property
    def fraction(self) -> float:
        """0 to 1, by weight."""
        return 1 - sum(self._left.values()) / self._all

    def __str__(self) -> str:
        done = self.total - len(self._left)
        spent = self._clock() - self._began
        if self.fraction < 0.02:  # too early to say how long
            return f"{done:,} of {self.total:,} packages"
        seconds = spent * (1 - self.fraction) / self.fraction
        left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
        return f"{done:,} of {self.total:,} packages, about {left} left"


@contextlib.contextmanager
def shown(counter: Counter) -> Iterator[Callable[[str], None]]:
    """Yield what takes the build's lines; shows a bar on a terminal, else a line now and then."""
    if say.console.is_terminal:
        columns = (TextColumn("  tools"), BarColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=say.console, transient=True) as bar:
            task = bar.add_task(str(counter), total=1.0)

            def take(line: str) -> None:
                counter.count(line)
                bar.update(task, completed=counter.fraction, description=str(counter))

            yield take
        return
    said = time.monotonic()

    def tell(line: str) -> None:
        nonlocal said
        counter.count(line)
        if time.monotonic() - said > LINE_SECONDS:
            said = time.monotonic()
            say.note(f"tools: {counter}")

    yield tell
