"""Tests of report.html: its content, and its layout in a real browser (light and dark, wide and narrow)."""

from __future__ import annotations

import json
import re
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from launcher import metrics
from launcher.reporting import html_report
from launcher.reporting.saved_runs import SavedRun
from launcher.schema import RunFile, read_fields
from tests.launcher.browser import needs_browser, open_in_browser
from tests.launcher.cli.conftest import update_json

HOSTILE = "<script>document.title='x'</script> & \"more\""
MEASURE = """<script>
const box = (e) => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
const found = {
  curves: [...document.querySelectorAll("svg")].map(box),
  wide: document.documentElement.scrollWidth > innerWidth,
  page: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  title: document.title,
  loaded: performance.getEntriesByType("resource").length,
};
document.body.innerHTML = `<pre>${JSON.stringify(found)}</pre>`;
</script></body>"""


@pytest.fixture
def output(job_folder: Path) -> Path:
    """Create the output folder of a complete run with one restart, and an earlier run; return the folder."""
    folder = job_folder / "output"
    run = {
        "runId": "quick-start-1a2b3c4d",
        "release": "r",
        "namespace": "n",
        "state": "complete",
        "started": 1795230000.0,
        "finished": 1795230600.0,
        "score": {"error": 0.2012},
        "restarts": [{"attempt": 0, "cause": f"rank 1 was lost; {HOSTILE}\nlast line", "at": 1795230300.0}],
    }
    same = {"trainers": 2, "program": "a" * 64, "dataDigest": "d" * 64}
    (folder / "run.json").write_text(json.dumps({**run, "fingerprint": {**same, "args": ["--rate=0.1"]}}))
    earlier = job_folder / "runs" / "quick-start-older"
    earlier.mkdir(parents=True)
    record = {**run, "fingerprint": {**same, "args": ["--rate=0.3"]}, "score": {"error": 0.3}}
    for path in (earlier, earlier.with_name(".quick-start-removed.0123.old")):  # `clean` is removing that one
        path.mkdir(exist_ok=True)
        (path / "run.json").write_text(json.dumps(record))
    (folder / "metrics.csv").write_text(
        "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_error\n"
        "0,0,0,100,2.0,50,0.6,0.30\n0,1,0,300,3.0,100,0.2,\n1,0,1,100,2.0,50,nan,0.25\n1,1,1,100,2.0,50,0.2,\n"
        "2,0,1,100,2.0,50,0.3,0.2012\n2,1,1,100,2.0,50,0.2,\n"
    )
    return folder


class Page(HTMLParser):
    """A page, parsed: the cell texts of all tables, and the tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def write_page(output: Path, **changes: Any) -> Page:
    """Change keys of run.json, and write the page; return it."""
    update_json(output / "run.json", **changes)
    assert html_report.write_report(output) == output / "report.html"
    return Page((output / "report.html").read_text("utf-8"))


def test_page_contains_passes_settings_data_restarts_and_earlier_runs(output: Path) -> None:
    page = write_page(output)
    assert ["3", "200", "2.0", "100", "0.2500", "0.2012"] in page.rows, "passes count from 1"
    columns = ["run", "state", "started", "duration", "pod hours", "passes", "restarts", "score"]
    assert [*columns, "--rate"] in page.rows, "only what differs"
    times = ["2026-11-21 03:00:00Z", "10 min 00 s", "0.33"]
    earlier = ["quick-start-older", "complete", *times, "0", "1", "error 0.3000", "0.3"]
    assert earlier in page.rows
    assert "quick-start-removed" not in page.text
    assert ["training rows", "21,000"] in page.rows
    assert any(row[-1].startswith("rank 1 was lost; <script>") for row in page.rows if row)
    assert "script" not in page.tags
    assert page.text.count("<title>") == 1, "a title in the SVG is a tooltip over all plots"
    assert (output / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not list(output.glob(".*")), "no temporary file is left"
    loads = r"(?<!xlink:)(src|href)=|href=\"[^#]|url\([^#]|@import"
    assert not re.search(loads, page.text), "the page loads nothing else"


def test_ticks_of_an_axis_have_different_labels(tmp_path: Path) -> None:
    rows = [metrics.MetricsRow(n, 0, 0, 10, 1.0, 10.0, 0.1301 + n / 10_000) for n in range(8)]
    _, svg = html_report.draw(rows, {}, tmp_path)
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert len(labels) == len(set(labels)) > 8


def test_a_run_of_a_script_has_no_settings_of_parameter_servers() -> None:
    fingerprint = {"runtime": "collective", "mode": "async", "portsNum": 2, "trainers": 2}
    shown = saved_run(fingerprint=fingerprint).settings
    assert shown["trainers"] == 2
    assert not shown.keys() & {"mode", "portsNum"}
    assert saved_run(fingerprint={**fingerprint, "runtime": "v1"}).settings["portsNum"] == 2


def test_page_of_damaged_run_records_is_written_from_their_copies(output: Path) -> None:
    page = write_page(output)
    for folder in (output, output.parent / "runs" / "quick-start-older"):
        (folder / "run.json").rename(folder / "run.copy.json")
    (output / "run.json").write_text("{")
    html_report.write_report(output)
    assert (output / "report.html").read_text("utf-8") == page.text


def test_page_contains_the_program_all_options_and_the_best_pass(output: Path) -> None:
    options = {"rate": "0.1", "width": "16"}
    (output / "program.json").write_text(json.dumps({"options": options, "files": {}}))
    about = {"config": "own/net.py", "keepBest": "error", "patience": 1, "passes": 9, "modelPass": 1}
    page = write_page(output, **about)
    for row in (["program", f"own/net.py, sha256 {'a' * 12}"], ["--width", "16"], ["keepBest", "error"]):
        assert row in page.rows
    assert '<span class="soft">best error, stopped early</span><b>pass 2</b>' in page.text
    assert "Test error, best 0.2500 after pass 2" in page.text, "the curves mark it"
    assert '<tr class="here"><td class="n">2</td>' in page.text


def saved_run(passes: Any = (), **record: Any) -> SavedRun:
    """Return a run whose folder has the name HOSTILE, with these keys of run.json."""
    return SavedRun(HOSTILE, read_fields(RunFile, record), passes)


def render_hostile_page(module: Any) -> str:
    """Return a page on which every text that comes from a file is HOSTILE, or has it at its end."""
    state = {"state": HOSTILE, "started": 1.0, "finished": 2.0}
    first = {"attempt": 0, "cause": f"{HOSTILE}\n{HOSTILE}", "at": 1.0}
    fingerprint = {"trainers": 2, HOSTILE: HOSTILE, "program": HOSTILE}
    texts = ("runId", "release", "namespace", "cause", "warning", "keepBest", "config")
    record = {**dict.fromkeys(texts, HOSTILE), **state, "fingerprint": fingerprint}
    record |= {"score": {HOSTILE: HOSTILE}, "options": {HOSTILE: HOSTILE}}
    record |= {"restarts": [first, {"attempt": 1, "cause": HOSTILE}]}
    rows = [metrics.MetricsRow(0, 0, 0, 10, 1.0, 10.0, 0.5, {HOSTILE: 0.5})]
    run = saved_run(metrics.pass_table(rows), **record)
    shard = {"index": 0, "lines": 1, "bytes": 1, "sha256": HOSTILE[:16]}
    manifest = dict.fromkeys(("source", "sha256", "member", "format", "testSource", "seed"), HOSTILE)
    return str(
        module.render_page(
            HOSTILE,
            run,
            manifest={**manifest, "shards": [shard]},
            earlier=[saved_run(**state, score={HOSTILE: 1}, options={"other": HOSTILE})],
            curves="<svg></svg>",
            damage=[HOSTILE],
        )
    )


def test_no_text_of_a_file_becomes_a_part_of_the_page() -> None:
    page = Page(render_hostile_page(html_report))
    assert "<script" not in page.text
    assert "script" not in page.tags
    assert page.text.count("&lt;script&gt;") > 20


def test_data_of_files_has_their_number_and_no_rows() -> None:
    manifest = {"format": "files", "shards": [], "files": {"count": 1200, "bytes": 9, "list": {"bytes": 1}}}
    page = html_report.render_page("a", saved_run(), manifest=manifest, earlier=[], curves="", damage=[])
    assert "1,200 files, 9 bytes" in page
    assert "training rows" not in page


SOURCE = Path(html_report.__file__).read_text("utf-8")
ESCAPES = [match.start() for match in re.finditer(r"(?<!\w)escape\(", SOURCE)]


@pytest.mark.parametrize("at", ESCAPES, ids=[f"line-{SOURCE.count(chr(10), 0, at) + 1}" for at in ESCAPES])
def test_the_page_without_one_escape_contains_a_text_of_a_file(at: int) -> None:
    """Each escape of the module is needed, and the test above would find its absence."""
    module = types.ModuleType("html_report_without_an_escape")
    module.__file__ = html_report.__file__
    changed = SOURCE[:at] + "str(" + SOURCE[at + len("escape(") :]
    exec(compile(changed, html_report.__file__, "exec"), module.__dict__)  # noqa: S102
    assert "<script" in render_hostile_page(module)


def test_page_of_a_failed_run_contains_the_cause(output: Path) -> None:
    cause = "rank 1's trainer exited with 1; its log:\n<b>no space</b>"
    (output / "metrics.csv").unlink()  # before the first pass was complete
    page = write_page(output, state="failed", score={}, cause=cause).text
    assert "<h2>Cause of the failure</h2><pre>rank 1" in page
    assert "&lt;b&gt;no space" in page
    assert re.search("<title>.*: failed</title>", page)
    assert not (output / "curve.png").exists()


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("scheme", "width", "dark"), [(1, 1200, False), (0, 420, True)])
def test_page_in_a_browser_has_curves_the_colour_scheme_and_no_horizontal_scrolling(
    output: Path, tmp_path: Path, scheme: int, width: int, dark: bool
) -> None:
    page = tmp_path / "page.html"
    page.write_text(write_page(output).text.replace("</body>", MEASURE), "utf-8")
    options = (f"--window-size={width},900", f"--blink-settings=preferredColorScheme={scheme}")
    shown = open_in_browser(page.as_uri(), tmp_path / "profile", *options).stdout
    found = json.loads(re.search(r"<pre>(.*?)</pre>", shown)[1])  # type: ignore[index]
    ((curves_width, curves_height),) = found["curves"]
    assert curves_width > 300 and curves_height > 80
    assert not found["wide"], "the page is as wide as the window"
    assert found["loaded"] == 0
    assert found["title"] == "quick-start: error 0.2012"
    page_light, ink_light = (sum(map(int, re.findall(r"\d+", found[key])[:3])) for key in ("page", "ink"))
    assert (page_light < ink_light) == dark
