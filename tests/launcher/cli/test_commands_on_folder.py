"""Commands on a job's folder (--path)."""

import json
import signal

import pytest
import typer

from launcher.cli import main, terminal
from launcher.cli.commands import predict, results
from launcher.cli.run_files import OUTPUT, FoundFiles
from launcher.io.files import with_checksum

from .conftest import names, update_json


def test_status_shows_the_passes_the_ranks_and_the_state(cli, job_folder):
    code, out, _ = cli("status", "--path", job_folder)
    assert code == 0
    for part in (
        "complete",
        "100%",
        "3 shards, 21,000 lines",
        "quick-start-1a2b3c4d-2-abcde",
        "node3",
        "0.3100",
        "train_loss  0.3000  ▁▁     0.3000",
        "test_error  0.3000  █▁     0.2000",
    ):
        assert part in out


def test_a_complete_run_ends_with_its_score_and_the_next_command(cli, job_folder):
    copy = f"copy model and curve: python -m launcher results --path {job_folder} --to DIR"
    assert f"score error 0.2012; {copy}" in cli("status", "--path", job_folder)[1]
    code, out, _ = cli("wait", "--path", job_folder)
    assert code == 0
    assert out.startswith("complete") and out.splitlines()[-1].endswith("score error 0.2012")
    update_json(job_folder / "output" / "run.json", score={}, finished=1795236798.0)
    assert "complete at 2026-11-21 04:53:18Z" in cli("results", "--path", job_folder)[1]
    assert "score" not in cli("wait", "--path", job_folder)[1]


def test_another_jobs_folder_is_read_by_its_name(cli, job_folder):
    (job_folder.parent / "paddle").mkdir()
    code, out, _ = cli("results", "--path", job_folder.parent / "paddle", "--job", job_folder.name)
    assert (code, "score on the test set: error 0.2012" in out) == (0, True)
    assert cli("runs", "--path", job_folder, "--job", "../x")[0] == 64


def test_the_best_pass_and_early_stopping_are_shown(cli, job_folder):
    about = {"keepBest": "error", "patience": 1, "passes": 9, "modelPass": 1}
    update_json(job_folder / "output" / "run.json", **about)
    for command in ("status", "wait", "results"):
        assert "after pass 2, stopped early" in cli(command, "--path", job_folder)[1], command
    assert json.loads(cli("status", "--path", job_folder, "-o", "json")[1])["best"]["endedEarly"] is True


def test_a_folder_without_a_training_says_what_is_missing(cli, tmp_path):
    code, out, _ = cli("status", "--path", tmp_path)
    assert code == 0
    assert "the data Job has not finished" in out
    assert "no training has started in this folder" in out


def test_a_failed_data_job_is_shown_with_its_reason(cli, tmp_path):
    (tmp_path / "data-failed.json").write_text('{"dataDigest": "abc", "reason": "no space", "time": 1}')
    code, _, err = cli("wait", "--path", tmp_path, "--timeout", "1")
    assert code == 1
    assert "the data Job failed: no space" in err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), "trainer 0\n"),
        (("--rank", "2"), "trainer 2\n"),
        (("--rank", "1", "--role", "pserver"), "server 1\n"),
        (("--rank", "1", "--role", "pserver", "--server", "1"), "second server 1\n"),
        (("--rank", "1", "--attempt", "0"), "trainer 1, first attempt\n"),
        (("--follow",), "trainer 0\n"),
    ],
)
def test_logs_prints_the_requested_log(cli, job_folder, argv, text):
    assert cli("logs", "--path", job_folder, *argv)[:2] == (0, text)


def test_a_missing_log_is_one_message(cli, job_folder):
    code, out, err = cli("logs", "--path", job_folder, "--rank", "7")
    assert (code, out) == (3, "")
    assert "node_7/train.log" in err
    assert "Fix: check with the command status which ranks have started" in err
    assert "Traceback" not in err


def test_wait_returns_2_after_its_timeout_and_says_what_it_waits_for(cli, job_folder):
    update_json(job_folder / "output" / "status.json", state="training")
    code, out, err = cli("wait", "--path", job_folder, "--timeout", "0")
    assert code == 2
    assert "training: pass 7 of 10" in out
    assert "still waits for: pass 7 of 10" in err


def test_a_run_that_still_exports_is_not_over_and_then_its_address_is_shown(cli, job_folder):
    to = "s3://bucket/models/quick-start/quick-start-1a2b3c4d/"
    update_json(job_folder / "output" / "status.json", state="exporting", exportTo=to)
    code, out, err = cli("wait", "--path", job_folder, "--timeout", "0")
    assert code == 2
    assert out.startswith("exporting: ")
    assert f"still waits for: copying the model to {to}" in err
    out = cli("status", "--path", job_folder)[1]
    assert f"copying the model to {to}" in out
    assert "100%" in out
    update_json(job_folder / "output" / "status.json", state="complete")
    exported = {"to": to, "objects": 5, "bytes": 1000}
    update_json(job_folder / "output" / "run.json", exported=exported)
    for command in ("wait", "status", "results"):
        code, out, _ = cli(command, "--path", job_folder)
        assert (code, f"exported to {to}" in out) == (0, True), command


def test_results_are_copied_completely_and_unchanged(cli, job_folder, tmp_path):
    to = tmp_path / "to"
    code, _, err = cli("results", "--path", job_folder, "--to", to)
    assert code == 0
    assert "every sha256 matches the storage" in err
    output = job_folder / "output"
    copied = [path.relative_to(to) for path in to.rglob("*") if path.is_file()]
    assert {str(path) for path in copied} >= {
        "model/model.pdmodel",
        "metrics.csv",
        "run.json",
        "node_2/server-1.log",
    }
    assert all((to / path).read_bytes() == (output / path).read_bytes() for path in copied)


def test_results_rejects_overwriting_and_with_force_keeps_other_files(cli, job_folder, tmp_path):
    to = tmp_path / "to"
    (to / "model").mkdir(parents=True)
    (to / "model" / "mine").write_text("mine")
    (to / "node_7").mkdir()  # of another run, which had more pods
    (to / "notes.txt").write_text("notes")
    code, _, err = cli("results", "--path", job_folder, "--to", to)
    assert code == 64
    assert "already contains model" in err
    assert names(to) == ["model", "node_7", "notes.txt"]
    assert cli("results", "--path", job_folder, "--to", to, "--force")[0] == 0
    assert names(to / "model") == ["model.pdmodel"]
    assert not (to / "node_7").exists()
    assert (to / "notes.txt").read_text() == "notes"


def test_an_interrupted_copy_leaves_no_files(cli, job_folder, tmp_path, monkeypatch):
    def broken(source, into):
        (into / "half").write_bytes(source.read(100))
        raise results.ReaderError("the stream ended early")

    monkeypatch.setattr(results, "save_tar", broken)
    code, _, err = cli("results", "--path", job_folder, "--to", tmp_path / "to")
    assert code == 3
    assert "Nothing was copied" in err
    assert not (tmp_path / "to").exists()


def test_a_copy_whose_stream_ends_early_is_retried(cli, job_folder, tmp_path, monkeypatch):
    save_tar, tries = results.save_tar, []

    def torn_once(source, into):
        tries.append(into)
        if len(tries) == 1:
            (into / "half").write_bytes(source.read(100))
            source.read()
            raise results.ReaderError("the stream ended early")
        return save_tar(source, into)

    monkeypatch.setattr(results, "save_tar", torn_once)
    assert cli("results", "--path", job_folder, "--to", tmp_path / "to")[0] == 0
    assert len(tries) == 2
    assert "model" in names(tmp_path / "to") and "half" not in names(tmp_path / "to")


def test_missing_results_are_one_message_and_no_empty_folder(cli, tmp_path):
    (tmp_path / "job").mkdir()
    code, _, err = cli("results", "--path", tmp_path / "job", "--to", tmp_path / "to")
    assert code == 3
    assert "no training has written to this folder yet" in err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("status", "--path", "/nowhere"), "does not exist"),
        (("status", "--path", "/etc/passwd"), "is not a folder"),
        (("status", "--path", "/", "--context", "x"), "--path excludes --kubeconfig"),
        (("base", "--path", "/"), "--path reads a folder, but `base` needs a cluster"),
        (("status", "--kubeconfig", "/nowhere"), "the kubeconfig /nowhere cannot be used: no such file"),
        (("status", "--frobnicate"), "--frobnicate"),
        (("logs", "--rank", "-1"), "--rank"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_64(cli, argv, message):
    code, out, err = cli(*argv)
    assert (code, out) == (64, "")
    assert message in err
    assert "Traceback" not in err


def test_a_cluster_that_cannot_be_reached_is_one_message(cli, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "{current-context: a, users: [], clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}],"
        " contexts: [{name: a, context: {cluster: c}}]}"
    )
    code, _, err = cli("status", "--kubeconfig", config)
    assert code == 3
    assert "context a (http://127.0.0.1:9) cannot be reached" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN])
def test_signals_raise_an_exception_so_that_pods_and_leases_are_deleted(monkeypatch, hangup):
    handlers = {}
    monkeypatch.setattr(main.signal, "getsignal", lambda number: hangup if number == signal.SIGHUP else None)
    monkeypatch.setattr(main.signal, "signal", handlers.__setitem__)
    main.run_command(["status", "--path", "/nowhere"])
    assert set(handlers) == {signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if not hangup else [])}
    with pytest.raises(SystemExit) as raised:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert raised.value.code == 143


def test_a_damaged_run_record_is_read_from_its_copy():
    record = {"runId": "a", "score": {"error": 0.125}}
    intact = json.dumps(with_checksum(record)).encode()
    path, copy = OUTPUT.run_json.as_posix(), OUTPUT.run_copy.as_posix()
    for damaged in (intact.replace(b"0.125", b"0.925"), b"{", b""):
        found = FoundFiles({path: damaged, copy: intact})
        assert (found.run(OUTPUT).content, found.damage) == (record, {})
    found = FoundFiles({path: intact.replace(b"0.125", b"0.925")})
    assert found.run(OUTPUT) is None
    assert found.damage.keys() == {path}


def test_paths_are_printed_unchanged(cli, job_folder, tmp_path):
    """Console of rich would take words in brackets and colons as markup."""
    code, out, err = cli("results", "--path", job_folder, "--to", tmp_path / "old [bold] [/red] :key:")
    assert code == 0, err
    assert f"copied to {tmp_path}/old [bold] [/red] :key:: " in out


def test_a_relative_path_is_the_jobs_folder(cli, job_folder, tmp_path, monkeypatch):
    (job_folder.parent / "other" / "output").mkdir(parents=True)
    monkeypatch.chdir(job_folder.parent / "other" / "output")
    code, out, err = cli("results", "--path", "..", "--job", job_folder.name)
    assert (code, "error 0.2012" in out) == (0, True), err


def test_the_end_of_input_is_not_a_yes(monkeypatch):
    monkeypatch.setattr(terminal.sys.stdin, "isatty", lambda: True)

    def end(*_, **__):
        raise typer.Abort

    monkeypatch.setattr(terminal.typer, "confirm", end)
    assert terminal.confirm("Stop anyway?") is False


@pytest.mark.parametrize(
    ("module", "extra"), [("numpy", "model"), ("uvicorn", "serve"), ("launcher.gone", "")]
)
def test_a_package_that_is_not_installed_is_one_message_and_a_module_that_the_launcher_lacks_a_bug(
    cli, monkeypatch, module, extra
):
    def load(*_):
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(predict, "predict_rows", load)
    if not extra:
        with pytest.raises(ModuleNotFoundError):
            cli("predict", "model", "x=1")
        return
    code, _, err = cli("predict", "model", "x=1")
    assert (code, err.count("\n")) == (3, 1)
    assert f"the Python package {module}, which is not installed. Fix: pip install '.[{extra}]'" in err
