"""The pages of `dashboard`: their content, who may read them, how often they read the cluster, and a real browser."""

import contextlib
import re
import socket
import threading
import time
import types
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path

import pytest

from launcher.cli.cluster_api import UnreachableError
from launcher.cli.commands import dashboard
from launcher.cli.commands.dashboard import DashboardServer
from launcher.cli.job_sessions import ClusterSession, FolderSession
from launcher.cli.live_page import pages, readings
from launcher.cli.live_page.readings import Readings, Seen, SharedReading
from launcher.cli.run_view import JobView, RankView, RunProgress, RunView
from launcher.reporting.saved_runs import SavedRun
from launcher.schema import RestartRecord, RunFile, read_fields
from testkit.waiting import until
from tests.launcher.browser import needs_browser, open_in_browser

from .conftest import DONE, FAILED, K8S_JOB, make_job, make_pod, make_restarts, update_json, write_status
from .fake_cluster import FakeCluster

RUN, RUNS = "/run?release=paddle-training", "/runs?release=paddle-training"
MEASURE = """
document.querySelectorAll("details").forEach((details) => { details.open = true; });
setInterval(() => { document.body.dataset.wide = document.body.scrollWidth > innerWidth; }, 500);
"""
HOSTILE = "<script>document.title='x'</script> & \"more\""


@pytest.fixture
def serve(monkeypatch):
    """Return a function that serves a session until the test ends, and returns the server."""
    monkeypatch.setattr(dashboard, "VIEW_SECONDS", 0.0)
    with contextlib.ExitStack() as stack:

        def start(session):
            server = stack.enter_context(DashboardServer(Readings(session), 0))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
            return server

        yield start


def get(server, path, method="GET", **headers):
    """Request a page; return (status, text, headers)."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


@pytest.fixture
def cluster(job, monkeypatch):
    """Return a cluster with a release that trains, and one that has failed."""
    fake = FakeCluster(job.parent)
    fake.add_release()
    fake.add_release("other", k8sJob="other-00000000", jobName="other")
    fake.jobs = [make_job(K8S_JOB), make_job("other-00000000", FAILED)]
    running = [{"name": "training", "state": {"running": {}}}]
    fake.pods = [make_pod("p0", rank=0, containerStatuses=running)]
    lines = b"first line\n\x1b[1m<b>last line"
    monkeypatch.setattr(fake, "stream_log", lambda *_, **__: [lines], raising=False)
    write_status(job, restarts=make_restarts(1))
    return fake


def test_pages_show_all_releases_the_view_of_each_and_two_runs(serve, cluster, monkeypatch):
    monkeypatch.setattr(dashboard, "OVERVIEW_SECONDS", 0.0)
    server = serve(ClusterSession(cluster, "unused"))
    get(server, RUN)
    get(server, "/run?release=other")
    overview = get(server, "/")[1]
    assert re.findall('<a href="/run.release=(.*?)">', overview) == ["other", "paddle-training"]
    assert overview.count(K8S_JOB) == 1, "the run, on its card"
    assert ">failed</span>" in overview and "exit code 70" in overview and ">training</span>" in overview
    page = get(server, RUN)[1]
    log = "first line\n\\u001b[1m&lt;b&gt;last line"
    for part in ("Restarts", "trainer exited with SIGKILL, time 0", log, "p0"):
        assert part in page
    assert page.count("<circle") == 4, "two passes of training loss and test error"
    compared = get(server, f"{RUNS}&a=quick-start-aaaa&b=quick-start-cc")[1]
    assert "<td>batchSize</td>" not in compared
    assert "error 0.1300" in compared and "error 0.1500" in compared
    assert compared.count("<polyline") == 4
    assert "is not a run of this job" in get(server, f"{RUNS}&a=nonsense")[1]


def test_a_folder_has_the_same_pages(serve, job):
    server = serve(FolderSession(job))
    assert "trainer 0" in get(server, "/run?release=quick-start")[1]
    assert "quick-start-bbbb" in get(server, "/runs?release=quick-start")[1]
    assert 'href="/run?release=quick-start"' in get(server, "/")[1]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        ("/", {"Host": "localhost:9000"}, 200),
        ("/", {"Host": "evil.example:80"}, 403),
        (RUN, {"Sec_Fetch_Site": "cross-site"}, 403),
        (RUN, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Dest": "script"}, 403),
        (RUN, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "document"}, 200),
        ("/", {"method": "POST"}, 501),
        ("/run?release=../quick-start", {}, 404),
        ("/../page.css", {}, 404),
        ("//[", {}, 404),
    ],
)
def test_only_this_machine_reads_only_its_pages(serve, cluster, path, headers, status):
    server = serve(ClusterSession(cluster, "unused"))
    answer = get(server, path, **headers)
    assert answer[0] == status
    if status != 501:
        assert "default-src 'none'" in answer[2]["Content-Security-Policy"]


def test_requests_share_one_read_and_a_hanging_cluster_leaves_the_last_value(monkeypatch):
    monkeypatch.setattr(readings, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(readings, "SLOW_SECONDS", 0.0)
    reads, gate = [], threading.Event()
    gate.set()

    def read():
        reads.append(gate.wait(60))
        if len(reads) == 3:
            raise UnreachableError("cannot list jobs: refused")
        return len(reads)

    shared = SharedReading(read)
    threads = [threading.Thread(target=shared.get, args=(3600.0,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.get(3600.0).value == len(reads) == 1
    gate.clear()
    seen = [shared.get(0.0) for _ in range(3)]
    assert len(reads) == 1, "the second read waits"
    assert {one.value for one in seen} == {1}
    assert "no answer for" in seen[-1].problem
    gate.set()
    shared.wait_until_idle(time.monotonic() + 60)
    assert shared.get(3600.0).value == 2
    shared.get(0.0)
    shared.wait_until_idle(time.monotonic() + 60)
    failed = shared.get(3600.0)
    assert (failed.value, failed.problem) == (2, "cannot list jobs: refused")
    assert "This is the state of 42 s ago" in pages.render_run("r", Seen(RunView("w", "r", "training"), 42.0))


def test_a_finished_run_is_read_once_by_a_reader_pod_when_its_page_is_opened(serve, cluster, job):
    cluster.jobs, cluster.pods = [make_job(K8S_JOB, DONE)], []
    update_json(job / "output" / "status.json", state="complete")
    server = serve(ClusterSession(cluster, "unused"))
    get(server, "/")
    get(server, "/")
    assert not cluster.created
    until(lambda: "0.2012" in get(server, RUN)[1])  # a busy machine may take longer than a request waits
    assert ["0.2012" in get(server, RUN)[1] for _ in range(2)] == [True] * 2
    assert len(cluster.created) == 1
    until(lambda: "quick-start-aaaa" in get(server, RUNS)[1])
    assert ["quick-start-aaaa" in get(server, RUNS)[1] for _ in range(2)] == [True] * 2
    assert len(cluster.created) == 2
    assert sorted(cluster.created) == sorted(cluster.deleted)


def make_hostile(cls, **others):
    """Return an object of a dataclass whose texts are all HOSTILE."""
    texts = [one.name for one in fields(cls) if one.type in ("str", "str | None")]
    return cls(**{**dict.fromkeys(texts, HOSTILE), **others})


def render_hostile_pages(module):
    """Return all pages; every text of a cluster, a file or an address is HOSTILE on them."""
    texts, speed = {HOSTILE: HOSTILE}, dict.fromkeys(("samples", "seconds", "samples_per_second"), 1)
    passes = [{"pass": 0, "train_loss": 0.5, f"test_{HOSTILE}": 0.5, **speed}]
    parts = {"data": make_hostile(JobView), "ranks": (make_hostile(RankView),), "notes": (HOSTILE,)}
    parts["progress"] = make_hostile(RunProgress, restarts=(make_hostile(RestartRecord),))
    view = make_hostile(RunView, **parts, score=texts, passes=passes, log=[HOSTILE], damage=texts)
    runs = []
    for number in range(2):
        settings = {"fingerprint": {"program": HOSTILE[number:], HOSTILE: number}}
        record = read_fields(RunFile, {"state": HOSTILE, "score": texts, **settings})
        program = {HOSTILE: f"{HOSTILE}{number}"}
        runs.append(SavedRun(f"runs/{HOSTILE}{number}", record, passes, program=program, damage=texts))
    seen, absent = Seen(view, problem=HOSTILE), Seen(None, problem=HOSTILE)
    return [
        module.render_overview(HOSTILE, Seen({}, problem=HOSTILE), {HOSTILE: seen, "new": absent}),
        module.render_run(HOSTILE, seen),
        module.render_runs(HOSTILE, Seen(runs), None, None),
        module.render_runs(HOSTILE, Seen(runs), HOSTILE[::-1], None),
        module.render_absent(HOSTILE),
    ]


def test_no_text_of_others_becomes_a_part_of_a_page():
    shown = render_hostile_pages(pages)
    assert not [page for page in shown if "<script>" in page]
    assert [page.count("&lt;script&gt;") > 3 for page in shown] == [True, True, True, True, False]


SOURCE = Path(pages.__file__).read_text("utf-8")
ESCAPES = [match.start() for match in re.finditer(r"(?<!\w)escape\(", SOURCE)]


@pytest.mark.parametrize("at", ESCAPES)
def test_a_page_without_one_escape_contains_a_text_of_others(at):
    """Each escape is needed, and the test above would find its absence."""
    changed = types.ModuleType("without_an_escape")
    changed.__file__ = pages.__file__
    code = compile(SOURCE[:at] + "str(" + SOURCE[at + len("escape(") :], pages.__file__, "exec")
    exec(code, changed.__dict__)  # noqa: S102
    assert "<script>" in "".join(render_hostile_pages(changed))


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("path", ["run", "runs", ""])
def test_a_narrow_browser_shows_the_page_and_keeps_it_up_to_date(serve, job, tmp_path, monkeypatch, path):
    """A pass is finished after the first request; the table of passes, which the user has opened, stays open."""
    rendered = []
    write_status(job)

    def count_pages(_):
        rendered.append(path)
        with (job / "output" / "metrics.csv").open("a") as metrics:
            metrics.write("2,0,1,100,2.0,50,0.3,0.19\n" if len(rendered) == 1 else "")
        return f"page {len(rendered)}"

    monkeypatch.setattr(pages, "utc_time", count_pages)
    script = tmp_path / "page.js"
    script.write_text(Path(pages.__file__).with_name("page.js").read_text("utf-8") + MEASURE)
    monkeypatch.setitem(dashboard._FILES, "/page.js", ("text/javascript", (script,)))
    server = serve(FolderSession(job))
    address = f"http://127.0.0.1:{server.server_port}/{path}?release=quick-start"
    options = ("--window-size=420,900", "--virtual-time-budget=12000", "--enable-logging=stderr")
    shown = open_in_browser(address, tmp_path / "profile", *options)
    assert "State of page 1." not in shown.stdout and "State of page" in shown.stdout
    assert path != "run" or re.search('<details open=""><summary>3 finished', shown.stdout)
    assert 'data-wide="false"' in shown.stdout
    assert re.search('id="offline".* hidden', shown.stdout)
    assert "Content Security Policy" not in shown.stderr
    assert "Uncaught" not in shown.stderr


def test_the_command_prints_its_address_and_rejects_a_port_that_is_taken(cli, job, monkeypatch):
    monkeypatch.setattr(DashboardServer, "serve_forever", lambda _: None)
    code, out, _ = cli("dashboard", "--path", job)
    assert code == 0
    assert re.fullmatch(rf"{job}: http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)\n", out)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = cli("dashboard", "--path", job, "--port", taken.getsockname()[1])
    assert code == 64
    assert "Fix: choose another port" in err
