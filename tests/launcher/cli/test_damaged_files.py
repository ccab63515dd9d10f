"""Files of a job that are damaged: each command says which one, and the fix, and ends with exit code 65."""

import json

import pytest

from launcher.cli import run_files, shared_options
from launcher.errors import EXIT_DATA
from launcher.io.files import with_checksum
from launcher.reporting import html_report

from .conftest import DATA_JOB, DONE, K8S_JOB, add_run, make_job, make_pod, update_json
from .fake_cluster import FakeCluster

OF_RUN = ("output/run.json", "output/run.copy.json")
PROGRAM = {"options": {}, "files": {"trainer_config.py": "x = 1"}}


def wrong_checksum(content: bytes) -> bytes:
    return json.dumps({**with_checksum(json.loads(content)), "checksum": "0" * 64}).encode()


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "no object": lambda content: b"[]",
    "not JSON": lambda content: b"<html>",
    "not UTF-8": lambda content: b"\xff\xfe" + content,
    "deep": lambda content: b"[" * 100_000,
    "checksum": wrong_checksum,
}
WRONG_TYPES = {
    "output/status.json": {"state": 5},
    "output/run.json": {"score": "good"},
    "manifest.json": {"shards": {}},
    "data-failed.json": {"reason": ["none"]},
    "output/program.json": {"files": ["trainer_config.py"]},
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(run_files, "AGAIN_SECONDS", 0.0)


def damage(job, name, how):
    """Damage a file of the job; the run record in both copies."""
    for path in OF_RUN if name == OF_RUN[0] else (name,):
        content = (job / name).read_bytes() if (job / name).exists() else b'{"dataDigest": "a"}'
        (job / path).write_bytes(how(content))


def rejected(cli, name, *argv):
    """Run a command that must say that the file `name` is damaged; return what it prints to stdout."""
    code, out, err = cli(*argv)
    assert (code, "Traceback" in err) == (EXIT_DATA, False), err
    assert name in err and "Fix: " in err, err
    assert "damaged" in err or "is not JSON" in err or "contains no JSON object" in err, err
    return out


@pytest.mark.parametrize("how", [*DAMAGES, "type"])
@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_damaged_file_is_no_absent_file(cli, job, name, how):
    (job / "output" / "program.json").write_text(json.dumps(PROGRAM))

    def wrong_type(content):
        return json.dumps({**json.loads(content), **WRONG_TYPES[name]}).encode()

    damage(job, name, DAMAGES.get(how, wrong_type))
    of_program = "program.json" in name
    if not of_program:
        out = rejected(cli, name, "status", "--path", job)
        assert "no training has started" not in out and "has not finished" not in out
        shown = rejected(cli, name, "status", "--path", job, "-o", "json")
        assert name in json.loads(shown)["damage"]
        rejected(cli, name, "wait", "--path", job, "--timeout", "5")
    if of_program or "run.json" in name:
        for command in ("runs", "compare", "results"):
            rejected(cli, name, command, "--path", job)
        assert name in json.loads(rejected(cli, name, "runs", "--path", job, "-o", "json"))[0]["damage"]


def test_a_run_whose_record_is_damaged_is_listed_as_damaged_and_its_results_are_copied(cli, job, tmp_path):
    damage(job, OF_RUN[0], wrong_checksum)
    out = rejected(cli, OF_RUN[0], "runs", "--path", job)
    assert out.splitlines()[1].split()[:3] == ["output", "(current)", "damaged"]
    out = rejected(cli, OF_RUN[0], "results", "--path", job, "--to", tmp_path / "to")
    assert "score on the test set: unknown" in out
    assert (tmp_path / "to" / "model" / "model.pdmodel").exists()


HEAD = b"pass,rank,attempt,samples,seconds,samples_per_second,train_loss"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        HEAD + b"\n0,0,0,100,2.0,5",
        HEAD + b"\n0,0,0,100,2.0,50,0.6",
        HEAD + b"\n0,0,0,many,2.0,50,0.6\n",
        b"pass;rank\n",
        b"\xff\n",
        HEAD + b",test_auc\n0,0,0,1,2.0,50,0.6,x\n",
    ],
)
def test_damaged_metrics_are_named_and_their_intact_rows_shown(cli, job, content):
    (job / "output" / "metrics.csv").write_bytes(content)
    for command in ("status", "wait", "results", "runs"):
        rejected(cli, "output/metrics.csv", command, "--path", job)


@pytest.mark.parametrize("options", [("--attempt", "3"), ("--follow",)])
def test_a_log_that_needs_the_state_of_the_run_is_an_error_if_it_cannot_be_read(cli, job, options):
    damage(job, "output/status.json", DAMAGES["cut"])
    rejected(cli, "output/status.json", "logs", "--path", job, *options)


def test_a_failed_run_with_a_damaged_file_keeps_its_exit_code_and_names_the_file(cli, job):
    update_json(job / "output" / "status.json", state="failed", cause="a row. Fix: correct it")
    damage(job, "manifest.json", DAMAGES["empty"])
    cli.fail(1, "manifest.json", "wait", "--path", job)


def test_clean_removes_nothing_whose_record_is_damaged(cli, job):
    add_run(job, "quick-start-dddd", 20, 0.3)
    damage(job, "runs/quick-start-cccc/run.json", wrong_checksum)
    code, _, err = cli("clean", "--path", job, "--keep", "0", "--yes")
    assert (code, (job / "runs" / "quick-start-cccc").exists()) == (0, True), err
    assert "kept: quick-start/runs/quick-start-cccc: its age and score are unknown" in err
    assert not (job / "runs" / "quick-start-dddd").exists()
    damage(job, OF_RUN[0], wrong_checksum)
    rejected(cli, OF_RUN[0], "clean", "--path", job, "--keep", "0", "--yes")


def test_a_release_whose_files_are_damaged_is_no_release_without_files(cli, job, monkeypatch):
    cluster = FakeCluster(job.parent)
    monkeypatch.setattr(cluster, "stream_log", lambda *_, **__: [], raising=False)
    cluster.add_release()
    cluster.jobs = [make_job(K8S_JOB), make_job(DATA_JOB, DONE)]
    running = [{"name": "train", "state": {"running": {}}}]
    cluster.pods = [make_pod("p0", rank=0, containerStatuses=running)]
    monkeypatch.setattr(shared_options, "connect", lambda *_: cluster)
    damage(job, "output/status.json", DAMAGES["cut"])
    for command in ("status", "wait"):
        rejected(cli, "output/status.json", command)
    code, _, err = cli("stop")
    assert (code, "no checkpoint could be saved" in err, "output/status.json" in err) == (64, True, True), err


def test_the_report_says_what_is_damaged(job, capsys):
    output = job / "output"
    (output / "metrics.csv").unlink()  # matplotlib takes seconds
    damage(job, "manifest.json", wrong_checksum)
    damage(job, "runs/quick-start-cccc/run.json", DAMAGES["cut"])
    (output / "program.json").write_text("[]")
    assert html_report.main([str(output)]) == 0
    page = (output / "report.html").read_text()
    for name in ("manifest.json", "quick-start-cccc/run.json", "program.json"):
        assert name in page.partition("Damaged files")[2].partition("</section>")[0]
    damage(job, OF_RUN[0], wrong_checksum)
    assert html_report.main([str(output)]) == EXIT_DATA
    assert "run.json is damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 2, "files": {}}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_description_of_a_model_is_an_error(cli, tmp_path, content):
    (tmp_path / "model.json").write_bytes(content)
    code, out, err = cli("predict", tmp_path, "a=1")
    assert (code, out, "Traceback" in err) == (EXIT_DATA, "", False), err
    assert "model.json" in err and "Fix: copy the model again" in err
