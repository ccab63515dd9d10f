"""Write report.html, one self-contained page about a run, and curve.png from the files in its output folder.

`python -m launcher.reporting.html_report OUTPUT_DIR` writes both into one output folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from launcher import metrics
from launcher.io import run_record
from launcher.io.files import UnreadableError, read_bytes, write_atomically
from launcher.metrics import TEST, MetricsRow
from launcher.paths import OutputPaths
from launcher.reporting import plots, run_settings, text_formats
from launcher.schema import ManifestFile, ProgramFile, RunFile, describe_data

PAGE = Path(__file__).with_name("report.html")
STYLE = Path(__file__).with_name("report.css")
EARLIER_RUNS = 20
"""Largest number of earlier runs that the report compares: the newest ones."""
SHARDS = 64
"""Largest number of shards that the report lists."""
Values = Mapping[str, Any]


def write_report(root: Path) -> Path | None:
    """Write report.html and curve.png into the output folder `root`; return the path of report.html.

    Return None, and write nothing, if there is no run.json yet. Before the first pass is finished, there is no
    curve.png. Other files that are damaged are left out, and the page says so.

    Raises:
        UnreadableError: run.json is damaged, and so is its copy.
        StorageError: the folder cannot be written.
    """
    output = OutputPaths(root)
    damage: list[str] = []
    run = _read_run(output, damage)
    if damage and not run:
        fix = f"Fix: restore it, or {output.run_copy}, from a backup of the storage."
        raise UnreadableError(f"{damage[0]} {fix}")
    if not run:
        return None
    content = read_bytes(output.metrics_csv)
    rows = metrics.parse_metrics((content or b"").decode(errors="replace"))
    if why := content is not None and metrics.find_damage(content):
        damage.append(f"{output.metrics_csv} is damaged: {why}. The other rows are shown.")
    earlier_files = (root.parent / "runs").glob("[!.]*/run.*json") if root.name == "output" else ()
    others = [OutputPaths(folder) for folder in sorted({path.parent for path in earlier_files})]
    earlier = [(one.root.name, _read_run(one, damage)) for one in others]
    png, svg = plots.draw(rows, metrics.best_pass(run, metrics.pass_table(rows)), root)
    page = render_page(
        root.resolve().parent.name,
        run,
        rows,
        manifest=_read_json(damage, ManifestFile, root.parent / "manifest.json"),
        damage=damage,
        earlier=earlier,
        curves=svg,
    )
    write_atomically(output.report_html, page.encode())
    if png:
        write_atomically(output.curve_png, png)
    return output.report_html


def _read_run(output: OutputPaths, damage: list[str]) -> dict[str, Any]:
    """Return the content of run.json (or of its copy), with the options from program.json added; {} if both are lost.

    The description of each damaged file is appended to the list `damage`.
    """
    record = _read_json(damage, RunFile, output.run_json, output.run_copy)
    return record and run_settings.with_options(record, _read_json(damage, ProgramFile, output.program_json))


def _read_json(damage: list[str], shape: Any, *paths: Path) -> dict[str, Any]:
    """Return the JSON object in the first of `paths` that is intact; {} if all files are absent or damaged.

    If no file is intact, the description of the first damaged one is appended to the list `damage`.
    """
    found, error = run_record.first_intact(((path, read_bytes(path)) for path in paths), shape)
    damage += [str(error)] if error and found is None else []
    return found or {}


def render_page(
    job: str,
    run: Values,
    rows: Sequence[MetricsRow],
    *,
    manifest: Values,
    earlier: Sequence[tuple[str, Values]],
    curves: str,
    damage: Sequence[str] = (),
) -> str:
    """Return the HTML page of a run of `job`.

    Args:
        run: content of the run's run.json, with the key `options` from program.json.
        rows: rows of metrics.csv.
        manifest: manifest of the data; {} if there is none.
        earlier: (run id, `run` as above) of each earlier run to compare with.
        curves: the SVG element of `plots.draw`.
        damage: a sentence for each damaged file.
    """
    passes = metrics.pass_table(rows)
    best = metrics.best_pass(run, passes)
    sections = [
        section(
            "Cause of the failure", f"<pre>{escape(str(run['cause']))}</pre>" if run.get("cause") else ""
        ),
        section("Warning", escape(str(run.get("warning") or ""))),
        section("Damaged files", f"<pre>{escape(chr(10).join(damage))}</pre>" if damage else ""),
        section("Passes", _pass_table(passes, best)),
        section("Comparison with earlier runs", _run_table(run, earlier) if earlier else ""),
        section("Settings", key_values(run_settings.settings_of_run(run, len(passes)))),
        section("Data", _data(manifest)),
        section("Restarts", restart_table(run.get("restarts") or [])),
        section("Timings", key_values(_timings(run, passes))),
    ]
    return Template(PAGE.read_text("utf-8")).substitute(
        style=STYLE.read_text("utf-8"),
        title=escape(f"{job}: {run.get('state') if run.get('cause') else _scores(run)}"),
        job=escape(job),
        run=escape(f"{run.get('runId')} · {_time(run.get('finished'))}"),
        state=escape(str(run.get("state"))),
        tiles=_tiles(run, passes, best),
        curves=section("Curves", curves),
        sections="".join(sections),
        footer=escape(
            f"Release {run.get('release')} in namespace {run.get('namespace')}. Passes count from 1, "
            "attempts from 0; times are in UTC."
        ),
    )


def section(title: str, content: str) -> str:
    """Return a section of a page with a heading; empty without content. `content` is HTML, `title` a fixed text."""
    return f'<section class="card"><h2>{title}</h2>{content}</section>' if content else ""


def _tiles(run: Values, passes: Sequence[Values], best: Values) -> str:
    tiles = [
        (name, f"{value:.4f}" if isinstance(value, float) else str(value))
        for name, value in (run.get("score") or {}).items()
    ]
    trainers = (run.get("fingerprint") or {}).get("trainers", "?")
    speed = max((row["samples_per_second"] for row in passes), default=0.0)
    tiles.append(("passes", str(len(passes))))
    if best:
        early = ", stopped early" if best.get("endedEarly") else ""
        tiles.append((f"best {best['metric']}{early}", f"pass {best['pass'] + 1}"))
    tiles += [
        ("trainers", str(trainers)),
        ("samples/s", f"{speed:,.0f}"),
        ("duration", text_formats.duration(_seconds(run))),
        ("restarts", str(len(run.get("restarts") or []))),
    ]
    return join_tiles(tiles)


def join_tiles(tiles: Iterable[tuple[str, str]]) -> str:
    """Return small cards, each with a (name, value)."""
    return "".join(
        f'<div class="card tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in tiles
    )


def _pass_table(passes: Sequence[Values], best: Values) -> str:
    names = plots.test_metrics(passes)
    headings = [">pass", ">samples", ">seconds", ">samples/s", ">training loss"]
    lines = [
        [
            str(row["pass"] + 1),
            f"{row['samples']:,}",
            f"{row['seconds']:.1f}",
            f"{row['samples_per_second']:,.0f}",
            text_formats.number(row["train_loss"]),
            *(text_formats.number(row.get(name)) for name in names),
        ]
        for row in passes
    ]
    line = next((n for n, row in enumerate(passes) if row["pass"] == best.get("pass")), None)
    return table([*headings, *(f">test {name.removeprefix(TEST)}" for name in names)], lines, line)


def _run_table(run: Values, earlier: Sequence[tuple[str, Values]]) -> str:
    """Return an HTML table that compares this run with the earlier ones; of the settings it has those that differ."""
    newest = sorted(earlier, key=lambda entry: entry[1].get("started") or 0, reverse=True)[:EARLIER_RUNS]
    shown = [
        (name, record, {key: str(value) for key, value in run_settings.settings_of_run(record, None).items()})
        for name, record in [("this run", run), *newest]
    ]
    every = dict.fromkeys(key for _, _, settings in shown for key in settings)
    keys = [key for key in every if len({settings.get(key) for _, _, settings in shown}) > 1]
    lines = [
        [
            name,
            str(record.get("state")),
            _time(record.get("finished")),
            text_formats.duration(_seconds(record)),
            _scores(record),
            *(settings.get(key, "-") for key in keys),
        ]
        for name, record, settings in shown
    ]
    return table(["run", "state", "finished", "duration", "score", *keys], lines, marked=0)


def _data(manifest: Values) -> str:
    if not manifest:
        return ""
    test, shards = manifest.get("test") or {}, manifest.get("shards") or []
    values = {
        "source": manifest.get("source"),
        "sha256": manifest.get("sha256"),
        "member": manifest.get("member"),
        "format": manifest.get("format"),
    }
    rows = {
        "training rows": f"{manifest.get('lines', 0):,}",
        "test rows": f"{test.get('lines', 0):,}",
        "test set": manifest.get("testSource") or f"{manifest.get('testFraction')} of the rows",
        "seed": manifest.get("seed"),
    }
    values |= {"content": describe_data(manifest)} if manifest.get("files") else rows
    pairs = key_values({key: str(value) for key, value in values.items() if value not in (None, "")})
    if not shards:
        return pairs
    lines = [
        [
            f"{shard['index']}",
            f"{shard.get('lines', 0):,}",
            f"{shard['bytes']:,}",
            (shard.get("sha256") or "")[:16],
        ]
        for shard in shards[:SHARDS]
    ]
    more = f" (the first {SHARDS} are listed)" if len(shards) > SHARDS else ""
    listed = table([">shard", ">rows", ">bytes", "sha256"], lines)
    return f"{pairs}<details><summary>{len(shards)} shards{more}</summary>{listed}</details>"


def restart_table(restarts: Sequence[Values]) -> str:
    """Return an HTML table of the restarts (as in run.json), each with its cause; empty if there are none."""
    lines = []
    for restart in restarts:
        first, _, rest = str(restart.get("cause") or "unknown cause").strip().partition("\n")
        cause = escape(first)
        if rest:
            cause = f"<details><summary>{cause}</summary><pre>{escape(rest)}</pre></details>"
        lines.append(
            f'<tr><td>{_time(restart.get("at"))}</td><td class="n">{escape(str(restart["attempt"]))}'
        )
        lines.append(f'</td><td class="wide">{cause}</td></tr>')
    head = '<tr><th>time</th><th class="n">attempt</th><th>cause</th></tr>'
    return f"<table>{head}{''.join(lines)}</table>" if lines else ""


def _timings(run: Values, passes: Sequence[Values]) -> dict[str, str]:
    trained = sum(float(row["seconds"]) for row in passes)
    total = _seconds(run)
    trainers = int((run.get("fingerprint") or {}).get("trainers") or 0)
    values = {
        "started": _time(run.get("started")),
        "finished": _time(run.get("finished")),
        "passes (of the slowest rank)": text_formats.duration(trained),
    }
    if total is not None:
        values["start, checkpoints, tests and restarts"] = text_formats.duration(max(0.0, total - trained))
        values["pod hours"] = f"{trainers * total / 3600:.2f}"
    return values


def table(headings: Sequence[str], lines: Sequence[Sequence[str]], marked: int | None = None) -> str:
    """Return an HTML table; an empty text if there are no lines.

    `headings` of columns with numbers start with `>`; `marked` is the index of the highlighted line.
    """
    right = [' class="n"' if heading.startswith(">") else "" for heading in headings]
    top = "".join(
        f"<th{side}>{escape(heading.lstrip('>'))}</th>" for heading, side in zip(headings, right, strict=True)
    )
    body = "".join(
        ('<tr class="here">' if number == marked else "<tr>")
        + "".join(f"<td{side}>{escape(cell)}</td>" for cell, side in zip(line, right, strict=True))
        + "</tr>"
        for number, line in enumerate(lines)
    )
    return f"<table><tr>{top}</tr>{body}</table>" if lines else ""


def key_values(values: Mapping[str, object]) -> str:
    """Return an HTML table with a row for each key and its value; empty without keys."""
    lines = (
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(str(value))}</td></tr>'
        for key, value in values.items()
    )
    return f"<table>{''.join(lines)}</table>" if values else ""


def _scores(run: Values) -> str:
    return text_formats.scores(run.get("score") or {}) or "-"


def _seconds(run: Values) -> float | None:
    started, finished = run.get("started"), run.get("finished")
    return float(finished) - float(started) if started and finished else None


def _time(seconds: float | None) -> str:
    return text_formats.utc_time(seconds or None)


def main(arguments: Iterable[str]) -> int:
    """Write report.html of the output folder in `arguments`; return the exit code: 1 if the folder has no run.json."""
    folder = Path(*arguments)
    try:
        written = write_report(folder)
    except UnreadableError as error:
        print(error)  # noqa: T201
        return error.exit_code
    print(written or f"{folder} has no run.json yet. Fix: give the output folder of a run")  # noqa: T201
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:2]))
