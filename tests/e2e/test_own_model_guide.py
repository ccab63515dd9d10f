"""Follow the guide docs/how-to/own-model.md: create its files and run its commands.

The commands run as a user who cannot read the nodes' folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.reporting import text_formats
from testkit.local_cluster import CHART, ROOT, Cluster, Training, run_checked
from testkit.waiting import PATIENCE, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]

Make = Callable[..., Training]
PAGE = (ROOT / "docs" / "how-to" / "own-model.md").read_text()
SECTIONS = re.findall(r"^## \d+\. (.*?)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
MOODS = ("negative (", "neutral (", "positive (")  # as the page's describe() says them
HIDDEN = 'mount -t tmpfs tmpfs "$SHARED" && exec bash -e -o pipefail step.sh'


DASHBOARD = "python -m launcher dashboard"


def assert_dashboard_shows(job: str, env: dict[str, str]) -> None:
    """Start the dashboard, which never ends by itself, and read its pages about the complete run of `job`."""
    with subprocess.Popen(
        [*DASHBOARD.split(), "--port", "0"], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            [address] = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            until(lambda: job in read_page(address))
            until(lambda: "complete" in read_page(f"{address}/run?release=paddle-training"))
            until(lambda: "error" in read_page(f"{address}/runs?release=paddle-training"))
        finally:
            process.terminate()


def read_page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310
        return str(answer.read().decode())


def commands(text: str) -> list[str]:
    """Return the lines of all shell blocks in a page's section."""
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def files(text: str) -> dict[str, str]:
    """Return the files that a section asks the reader to write, name -> content.

    The page shows them as a name in quotes and a colon, then a block with the content.
    """
    return dict(re.findall(r"`([\w/.]+)`:\n\n```(?:python|yaml)\n(.*?)```", text, re.DOTALL))


def install_stopped_release(train: Make) -> Training:
    """Install a release whose image and storage other trainings use; its own fits on no node and is stopped."""
    nothing = {"data": {"enabled": False}, "resources": {"requests": {"cpu": "999"}}}
    release = train("quick_start", trainers=1, **nothing)
    release.upgrade()
    job = release.described()["k8sJob"]
    release.cluster.objects.patch("jobs", release.namespace, job, {"spec": {"suspend": True}})
    return release


@pytest.fixture
def clean_storage(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove the test's jobs and their folders; its parameter is their names.

    Tests list this fixture before `train`, whose pods must be gone first. They may run at the same time, so that each
    removes no other test's folders. The jobs are still there if an earlier attempt of the test could not remove them.
    """

    def clear() -> None:
        for entry in cluster.get("configmaps", "", "app.kubernetes.io/name=paddle-training"):
            about = json.loads((entry.get("data") or {}).get("run.json", "{}"))
            if (name := about.get("jobName")) in request.param:
                Training(cluster, entry["metadata"]["namespace"], {"jobName": name}).remove()
        for name in request.param:
            shutil.rmtree(cluster.shared / name, ignore_errors=True)
            (cluster.shared / ".sweeps" / f"{name}.journal").unlink(missing_ok=True)

    clear()
    yield
    clear()


@pytest.mark.parametrize("clean_storage", [("moods", "moods-1", "moods-2")], indirect=True, ids=["moods"])
@pytest.mark.seconds(250)
def test_own_model_guide_from_a_new_program_to_a_served_prediction_a_sweep_and_clean(
    clean_storage: None, train: Make, cluster: Cluster, tmp_path: Path
) -> None:
    first = install_stopped_release(train)
    shutil.copytree(cluster.shared / "sources", tmp_path / "sources", ignore=shutil.ignore_patterns("*.txt"))
    env = cluster.env | {"PADDLE_TRAINING_NAMESPACE": first.namespace, "SHARED": str(cluster.shared)}
    output = {}
    for title, text in SECTIONS:
        for name, content in files(text).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        lines = [line for line in commands(text) if not line.startswith(("make ", DASHBOARD))]
        script = "\n".join(lines).replace("-n paddle", f"-n {first.namespace}")
        if title == "Train it":
            script += f"\n{lines[-1]}"  # once more, and nothing has changed
        (tmp_path / "step.sh").write_text(script)
        argv = ["unshare", "--mount", "sh", "-c", HIDDEN]
        done = run_checked(argv, env, cwd=tmp_path, seconds=600, check=False)
        output[title] = done.stdout + done.stderr
        assert done.returncode == 0, f"{title}:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        if DASHBOARD in commands(text):
            assert_dashboard_shows("moods", env)
        if title == "The data":
            keep_every_fourth_row(tmp_path / "moods.csv")
        if title == "Use it":
            assert_copied(tmp_path / "results" / "moods", cluster.shared / "moods" / "output")
    assert "recall_positive" in output["The program"], "try"
    assert "helm upgrade --install paddle-training" in output["Train it"]
    assert output["Train it"].count("nothing new to train") == 1
    assert re.search(r"score .*error 0\.", output["Train it"]), output["Train it"]
    assert "test_recall_neutral of moods-" in output["Change it and train again"], "compare"
    assert [line for line in output["Use it"].splitlines() if line.startswith(MOODS)], output["Use it"]
    assert '"words":["' in output["Use it"].replace(" ", ""), "the server's own words"
    assert "kept: release moods-" in output["Try settings"]
    left = cluster.get("configmaps", first.namespace, "app.kubernetes.io/name=paddle-training")
    names = [entry["metadata"]["name"] for entry in left]
    assert names == ["paddle-training-run"], "the sweep's release is gone, and no other"
    assert not list(cluster.shared.glob("moods-*")), "the sweep's folders are gone"
    assert (cluster.shared / "moods" / "output" / "model").is_dir()


@pytest.mark.parametrize("clean_storage", [("walk-ann", "walk-bob")], indirect=True, ids=["walk"])
@pytest.mark.seconds(60)
def test_concurrent_runs_of_one_release_only_one_trains_and_another_release_is_not_affected(
    clean_storage: None, train: Make, cluster: Cluster, tmp_path: Path
) -> None:
    first = install_stopped_release(train)
    jobs = {name: f"walk-{name}" for name in ("ann", "bob")}

    def start(release: str, *more: str) -> subprocess.Popen[str]:
        values = CHART / "examples" / "quick_start.yaml"
        words = ["run", "quick_start", "-f", str(values), "--trainers", "1", "--passes", "1", "--no-check"]
        where = ["--release", release, "-n", first.namespace, "--set", f"jobName={jobs[release]}"]
        small = ["--set", "resources.requests.cpu=100m"]
        return subprocess.Popen(
            ["python", "-m", "launcher", *words, *where, *small, *more],
            cwd=tmp_path,
            env=cluster.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    batches = (64, 128)
    competing = [start("ann", "--set", f"training.batchSize={batch}") for batch in batches]
    other = start("bob")
    printed = [process.communicate(timeout=300 * PATIENCE)[0] for process in (*competing, other)]
    codes = [process.returncode for process in competing]
    assert other.returncode == 0, printed[2]
    assert codes.count(0) == 1, printed[:2]
    winner = codes.index(0)
    loser = 1 - winner
    assert codes[loser] in (4, 64), printed[loser]  # the lease is held, or its holder trains already
    assert "Fix: " in printed[loser]
    assert "score" not in printed[loser]
    for release, text in (("ann", printed[winner]), ("bob", printed[2])):
        record = json.loads((cluster.shared / jobs[release] / "output" / "run.json").read_text())
        assert f"score {text_formats.scores(record['score'])}" in text
        if release == "ann":
            assert record["fingerprint"]["batchSize"] == batches[winner]
    # A training whose pods fit on no node is replaced by the next one.
    batch = ("--set", f"training.batchSize={batches[winner]}")
    for more, code, text in (
        (("--set", "resources.requests.cpu=999", "--timeout", "1"), 2, "expired"),
        ((), 64, "--replace"),
        (("--replace",), 0, "score"),
    ):
        process = start("ann", *batch, *more)
        out = process.communicate(timeout=300 * PATIENCE)[0]
        assert (process.returncode, text in out) == (code, True), out


def keep_every_fourth_row(file: Path) -> None:
    """Remove three quarters of a csv file's rows: the word pairs of all would take most of the test's CPU time."""
    header, *rows = file.read_bytes().split(b"\n")
    assert len(rows) > 30_000
    file.write_bytes(b"\n".join([header, *rows[::4], b""]))


def assert_copied(copy_of: Path, output: Path) -> None:
    """Check that the files that `results` copied to `copy_of` equal those of the run's `output`."""
    found = [path for path in (output / "model").rglob("*") if path.is_file()]
    found += [output / name for name in ("metrics.csv", "curve.png", "run.json", "report.html")]
    assert len(found) > 8
    for path in found:
        copy = copy_of / path.relative_to(output)
        assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest(), path
