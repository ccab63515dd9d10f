"""A curve as inline SVG: no script, no file beside it, and the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 420.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 12.0, 40.0
X_TICKS = 8  # at most


def curve(
    mean: Sequence[Point],
    ranks: Sequence[Sequence[Point]] = (),
    marks: Sequence[tuple[float, str]] = (),
    best: float | None = None,
) -> str:
    """A line over the passes, thin ones of the ranks behind it, and upright ones at `marks` (place, label).

    The point of pass `best` is larger.

    Points are (pass from 1, value); those without a finite value are left out.
    """
    mean, *others = [[p for p in line if math.isfinite(p[1])] for line in (mean, *ranks)]
    everything = [point for line in (mean, *others) for point in line]
    if not everything:
        return '<svg viewBox="0 0 420 40"><text x="4" y="24">no finite value</text></svg>'
    first, last = min(x for x, _ in everything), max(x for x, _ in everything)
    steps = ticks(min(y for _, y in everything), max(y for _, y in everything))
    low, high = steps[0], steps[-1]

    def place(point: Point) -> tuple[float, float]:
        share = (point[0] - first) / (last - first) if last > first else 0.5
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        return x, TOP + (high - point[1]) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in steps:
        y = place((first, value))[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    every = max(1, math.ceil((last - first + 1) / X_TICKS))
    for number in range(round(first), round(last) + 1, every):
        x = place((number, low))[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 20}" text-anchor="middle">{number}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 2}" text-anchor="middle">pass</text>')
    for at, label in marks:
        x = place((at, low))[0]
        line = f'<line class="restart" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        parts.append(f"{line}<title>{escape(label)}</title></line>")
    parts += [f'<polyline class="rank" points="{_points(map(place, line))}"/>' for line in others]
    parts.append(f'<polyline class="mean" points="{_points(map(place, mean))}"/>')
    for point in mean:
        x, y = place(point)
        title = f"<title>{'best: ' if point[0] == best else ''}pass {point[0]:.0f}: {point[1]:.6g}</title>"
        size = 'r="5" class="best"' if point[0] == best else 'r="2.6"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" {size}>{title}</circle>')
    return f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img">{"".join(parts)}</svg>'


def _points(places: object) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)  # type: ignore[attr-defined]


def ticks(low: float, high: float) -> list[float]:
    """Round values from at most `low` to at least `high`, some three to six of them."""
    spread = high - low or abs(high) or 1.0
    rough = spread / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(begin, max(end, begin + 1) + 1)]
