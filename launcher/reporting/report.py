"""`report.html` of a run: one file without anything beside it, from what the run left on the storage.

`python -m launcher.reporting.report OUTPUT_DIR` makes the page of one output folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from launcher import best, record
from launcher.files import UnreadableError, parse_object, write_whole
from launcher.layout import Output
from launcher.reporting import curve, drawing, figures

PAGE = Path(__file__).with_name("report.html")
EARLIER = 20  # runs beside this one, the newest
RANKS = 16  # thin lines of more would be one grey
SHARDS = 64  # rows of a table
Values = Mapping[str, Any]


def make(root: Path) -> Path | None:
    """Writes the page of an output folder; None when it has no run.json yet.

    Raises StorageError when the folder cannot be written.
    """
    output = Output(root)
    run = _run(output)
    if not run:
        return None
    run = figures.with_options(run, _json(output.program_json))
    rows = curve.read_metrics(output.metrics_csv)
    aside = (root.parent / "runs").glob("[!.]*/run.*json") if root.name == "output" else ()
    others = [Output(folder) for folder in sorted({path.parent for path in aside})]
    earlier = [(one.root.name, figures.with_options(_run(one), _json(one.program_json))) for one in others]
    page = html(root.resolve().parent.name, run, rows, _json(root.parent / "manifest.json"), earlier)
    write_whole(output.report_html, page.encode())
    return output.report_html


def _run(output: Output) -> dict[str, Any]:
    """Return the run record; {} when there is no intact one."""
    return record.intact((path, _bytes(path)) for path in (output.run_json, output.run_copy))[0] or {}


def _json(path: Path) -> dict[str, Any]:
    """What the file says; {} when it is absent or damaged, which the page simply leaves out."""
    try:
        return parse_object(path, _bytes(path) or b"")
    except UnreadableError:
        return {}


def _bytes(path: Path) -> bytes | None:
    """Return a file's content; None when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def html(
    job: str,
    run: Values,
    rows: Sequence[curve.Row],
    manifest: Values,
    earlier: Sequence[tuple[str, Values]],
) -> str:
    """The page. `run` and `manifest` as their files have them, `earlier` by name, `rows` of metrics.csv."""
    passes = curve.pass_table(rows)
    found = best.of_run(run, passes)
    sections = [
        _section("Why it failed", f"<pre>{escape(str(run['cause']))}</pre>" if run.get("cause") else ""),
        _section("Passes", _passes(passes, found)),
        _section("Beside earlier runs", _runs(run, earlier) if earlier else ""),
        _section("Settings", _pairs(figures.settings(run, len(passes)))),
        _section("Data", _data(manifest)),
        _section("Restarts", _restarts(run.get("restarts") or [])),
        _section("Timings", _pairs(_timings(run, passes))),
    ]
    return Template(PAGE.read_text("utf-8")).substitute(
        title=escape(f"{job}: {run.get('state') if run.get('cause') else _scores(run)}"),
        job=escape(job),
        run=escape(f"{run.get('runId')} · {_at(run.get('finished'))}"),
        state=escape(str(run.get("state"))),
        tiles=_tiles(run, passes),
        curves=_curves(rows, passes, found),
        sections="".join(sections),
        footer=escape(
            f"Release {run.get('release')} in namespace {run.get('namespace')}. Passes count from 1, "
            "attempts from 0; times are in UTC."
        ),
    )


def _section(title: str, content: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{content}</section>' if content else ""


def _tiles(run: Values, passes: Sequence[Values]) -> str:
    tiles = [
        (name, f"{value:.4f}" if isinstance(value, float) else str(value))
        for name, value in (run.get("score") or {}).items()
    ]
    trainers = (run.get("fingerprint") or {}).get("trainers", "?")
    speed = max((row["samples_per_second"] for row in passes), default=0.0)
    tiles += [
        ("passes", str(len(passes))),
        *_best_tile(best.of_run(run, passes)),
        ("trainers", str(trainers)),
        ("samples/s", f"{speed:,.0f}"),
        ("in all", figures.duration(_seconds(run))),
        ("restarts", str(len(run.get("restarts") or []))),
    ]
    return "".join(
        f'<div class="card tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in tiles
    )


def _best_tile(found: Values) -> list[tuple[str, str]]:
    early = ", ended early" if found.get("endedEarly") else ""
    return [(f"best {found['metric']}{early}", f"pass {found['pass'] + 1}")] if found else []


def _curves(rows: Sequence[curve.Row], passes: Sequence[Values], found: Values) -> str:
    numbers = sorted({row.rank for row in rows})
    ranks = [
        [(row.number + 1.0, row.train_loss) for row in rows if row.rank == rank]
        for rank in (numbers if 1 < len(numbers) <= RANKS else ())
    ]
    marks = curve.restart_marks(rows)
    names = sorted({key for row in passes for key in row if key.startswith(curve.TEST)})
    cards = []
    for name in ["train_loss", *names]:
        points = [(row["pass"] + 1.0, float(row[name])) for row in passes if name in row]
        if points:
            title = "Training loss" if name == "train_loss" else f"Test {name.removeprefix(curve.TEST)}"
            at = found["pass"] + 1.0 if name == f"{curve.TEST}{found.get('metric')}" else None
            drawn = drawing.curve(points, ranks if name == "train_loss" else (), marks, at)
            told = f'{escape(title)} <span class="soft">{points[-1][1]:.4g} at the end</span>'
            cards.append(f'<figure class="card" style="margin:0"><h2>{told}</h2>{drawn}</figure>')
    return "".join(cards)


def _passes(passes: Sequence[Values], found: Values) -> str:
    names = sorted({key for row in passes for key in row if key.startswith(curve.TEST)})
    heads = [">pass", ">samples", ">seconds", ">samples/s", ">training loss"]
    lines = [
        [
            str(row["pass"] + 1),
            f"{row['samples']:,}",
            f"{row['seconds']:.1f}",
            f"{row['samples_per_second']:,.0f}",
            figures.number(row["train_loss"]),
            *(figures.number(row.get(name)) for name in names),
        ]
        for row in passes
    ]
    here = next((n for n, row in enumerate(passes) if row["pass"] == found.get("pass")), None)
    return _table([*heads, *(f">test {name.removeprefix(curve.TEST)}" for name in names)], lines, here)


def _runs(run: Values, earlier: Sequence[tuple[str, Values]]) -> str:
    """This run and those that were moved aside; settings only where they differ."""
    aside = sorted(earlier, key=lambda entry: entry[1].get("started") or 0, reverse=True)[:EARLIER]
    shown = [
        (name, told, {key: str(value) for key, value in figures.settings(told, None).items()})
        for name, told in [("this run", run), *aside]
    ]
    every = dict.fromkeys(key for _, _, settings in shown for key in settings)
    keys = [key for key in every if len({settings.get(key) for _, _, settings in shown}) > 1]
    lines = [
        [
            name,
            str(told.get("state")),
            _at(told.get("finished")),
            figures.duration(_seconds(told)),
            _scores(told),
            *(settings.get(key, "-") for key in keys),
        ]
        for name, told, settings in shown
    ]
    return _table(["run", "state", "ended", "took", "score", *keys], lines, here=0)


def _data(manifest: Values) -> str:
    if not manifest:
        return ""
    test, shards = manifest.get("test") or {}, manifest.get("shards") or []
    told = {
        "source": manifest.get("source"),
        "sha256": manifest.get("sha256"),
        "member": manifest.get("member"),
        "format": manifest.get("format"),
        "rows to train with": f"{manifest.get('lines', 0):,}",
        "rows to test with": f"{test.get('lines', 0):,}",
        "test set": manifest.get("testSource") or f"{manifest.get('testFraction')} of the rows",
        "seed": manifest.get("seed"),
    }
    pairs = _pairs({key: str(value) for key, value in told.items() if value not in (None, "")})
    lines = [
        [f"{shard['index']}", f"{shard['lines']:,}", f"{shard['bytes']:,}", shard["sha256"][:16]]
        for shard in shards[:SHARDS]
    ]
    more = f", the first {SHARDS}" if len(shards) > SHARDS else ""
    table = _table([">shard", ">rows", ">bytes", "sha256"], lines)
    return f"{pairs}<details><summary>{len(shards)} shards{more}</summary>{table}</details>"


def _restarts(restarts: Sequence[Values]) -> str:
    lines = []
    for restart in restarts:
        first, _, rest = str(restart.get("cause") or "no cause was told").strip().partition("\n")
        cause = escape(first)
        if rest:
            cause = f"<details><summary>{cause}</summary><pre>{escape(rest)}</pre></details>"
        lines.append(f'<tr><td>{_at(restart.get("at"))}</td><td class="n">{escape(str(restart["attempt"]))}')
        lines.append(f'</td><td class="wide">{cause}</td></tr>')
    head = '<tr><th>when</th><th class="n">attempt</th><th>why it ended</th></tr>'
    return f"<table>{head}{''.join(lines)}</table>" if lines else ""


def _timings(run: Values, passes: Sequence[Values]) -> dict[str, str]:
    trained = sum(float(row["seconds"]) for row in passes)
    whole = _seconds(run)
    trainers = int((run.get("fingerprint") or {}).get("trainers") or 0)
    told = {
        "began": _at(run.get("started")),
        "ended": _at(run.get("finished")),
        "passes, the slowest rank's": figures.duration(trained),
    }
    if whole is not None:
        told["start, saves, tests and restarts"] = figures.duration(max(0.0, whole - trained))
        told["hours of training pods"] = f"{trainers * whole / 3600:.2f}"
    return told


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], here: int | None = None) -> str:
    """A heading that begins with `>` is of numbers; `here` is the line that stands out."""
    right = [' class="n"' if head.startswith(">") else "" for head in heads]
    top = "".join(
        f"<th{side}>{escape(head.lstrip('>'))}</th>" for head, side in zip(heads, right, strict=True)
    )
    body = "".join(
        ('<tr class="here">' if number == here else "<tr>")
        + "".join(f"<td{side}>{escape(cell)}</td>" for cell, side in zip(line, right, strict=True))
        + "</tr>"
        for number, line in enumerate(lines)
    )
    return f"<table><tr>{top}</tr>{body}</table>" if lines else ""


def _pairs(told: Mapping[str, object]) -> str:
    lines = (
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(str(value))}</td></tr>'
        for key, value in told.items()
    )
    return f"<table>{''.join(lines)}</table>" if told else ""


def _scores(run: Values) -> str:
    return figures.scores(run.get("score") or {}) or "-"


def _seconds(run: Values) -> float | None:
    began, ended = run.get("started"), run.get("finished")
    return float(ended) - float(began) if began and ended else None


def _at(seconds: float | None) -> str:
    return figures.at_time(seconds or None)


def main(arguments: Iterable[str]) -> int:
    """Makes the page of the one folder that is named; 1 when it has no run."""
    made = make(Path(*arguments))
    print(made or "no run.json there yet")  # noqa: T201 - this is its channel
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:2]))
