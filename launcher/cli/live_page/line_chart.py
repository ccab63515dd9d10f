"""Charts of a metric over the passes, as SVG elements that follow the colours of their page.

The command line has no matplotlib, which draws the curves of report.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24  # the margins of the plot
DOTS = 100
"""A line with more points than this has no dots, which show their values under the mouse."""
LARGEST = 1e300
"""Values of a damaged file must not overflow."""
Points = Sequence[tuple[int, float]]
"""(pass counted from 1, value below LARGEST) of each pass."""


def draw_chart(title: str, lines: Mapping[str, Points]) -> str:
    """Return a figure with a line for each entry of `lines`, by its name; empty if no line has a point."""
    xs, ys = ([point[axis] for line in lines.values() for point in line] for axis in (0, 1))
    if not xs:
        return ""
    first, last, low, high = min(xs), max(xs), min(ys), max(ys)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin

    def place(number: float, value: float) -> str:
        share = (number - first) / (last - first) if last > first else 0.5
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f},{TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"

    drawn = []
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(factor for factor in (5, 2, 1) if factor * step <= (high - low) / 2)
    for count in range(math.ceil(low / step), math.floor(high / step) + 1):
        value = count * step
        y = place(first, value).partition(",")[2]
        drawn.append(f'<path class="grid" d="M{LEFT},{y}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text class="y" x="{LEFT - 8}" y="{y}" dy="4">{value:.4g}</text>')
    for number in sorted({first, (first + last) // 2, last}):
        x = place(number, low).partition(",")[0]
        drawn.append(f'<text class="x" x="{x}" y="{HEIGHT - 6}">{number}</text>')
    keys = []
    for style, (name, line) in enumerate(lines.items()):
        drawn.append(f'<polyline class="line line-{style}" points="{" ".join(place(*at) for at in line)}"/>')
        for number, value in line if len(line) <= DOTS else line[-1:]:
            x, y = place(number, value).split(",")
            tip = escape(f"{name} pass {number}: {value:.4f}".strip())
            drawn.append(
                f'<circle class="dot line-{style}" cx="{x}" cy="{y}" r="3"><title>{tip}</title></circle>'
            )
        newest = f"{line[-1][1]:.4f}" if line else "-"
        keys.append(f'<span class="key line-{style}">{escape(name)} <b>{newest}</b></span>')
    return (
        f"<figure><figcaption>{escape(title)} {''.join(keys)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} over the passes">'
        f"{''.join(drawn)}</svg></figure>"
    )


def points_of(passes: Sequence[Mapping[str, float]], key: str) -> list[tuple[int, float]]:
    """Return the points of a column of a pass table (`launcher.metrics.pass_table`), without NaN and infinity."""
    return [(int(row["pass"]) + 1, row[key]) for row in passes if abs(row.get(key, math.nan)) < LARGEST]
