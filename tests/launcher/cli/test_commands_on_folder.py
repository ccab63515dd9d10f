"""Commands on a job's folder (--path): what they print (commands.yaml), and what they copy."""

import json
import os
import signal
from pathlib import Path

import pytest
import typer
import yaml

from launcher.cli import main, terminal
from launcher.cli.commands import predict, results
from launcher.io.files import with_checksum
from launcher.reporting.saved_runs import OUTPUT, FoundFiles
from testkit.written_files import write_files

from .conftest import add_run, names, run_step, write_job_files

CASES = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text())


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES)
def test_commands_print(cli, job, here, steps):
    for step in steps:
        write_job_files(job, step.get("write", {}))
        run_step(cli, job, step, "--path", job)


def test_results_are_copied_completely_and_unchanged(cli, job_folder, tmp_path):
    to = tmp_path / "to"
    code, _, err = cli("results", "--path", job_folder, "--to", to)
    assert code == 0
    assert "every sha256 matches the storage" in err
    output = job_folder / "output"
    copied = [path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()]
    logs = {"node_2/server-1.log", "node_2/attempt-0/train.log"}
    assert {*copied} >= {"model/model.pdmodel", "metrics.csv", "run.json", *logs}
    assert all((to / path).read_bytes() == (output / path).read_bytes() for path in copied)


@pytest.mark.parametrize("everything", [False, True])
def test_results_copy_what_a_script_wrote(cli, job_folder, tmp_path, everything):
    output = job_folder / "output"
    saved = [f"checkpoints/{name}" for name in ("iter_10/x", "iter_20/x", "1.pd", "2.pd")]
    write_files(output, {name: name for name in ("images/a/1.png", *saved)})
    for old in ("checkpoints/iter_10", "checkpoints/1.pd"):
        os.utime(output / old, (1e9, 1e9))
    (output / "latest").symlink_to("checkpoints/iter_20")
    cli.succeed("results", "--path", job_folder, "--to", tmp_path / "to", *["--all"] * everything)
    assert (tmp_path / "to" / "images" / "a" / "1.png").read_text() == "images/a/1.png"
    older = ["1.pd", "iter_10"] if everything else []
    assert names(tmp_path / "to" / "checkpoints") == sorted([*older, "2.pd", "iter_20"])
    unwanted = ("pass-", ".", "run.lock", "latest")
    assert not [name for name in names(tmp_path / "to") if name.startswith(unwanted)]


def test_an_interrupted_copy_leaves_no_files(cli, job_folder, tmp_path, monkeypatch):
    def broken(source, into):
        (into / "half").write_bytes(source.read(100))
        raise results.ReaderError("the stream ended early")

    monkeypatch.setattr(results, "save_tar", broken)
    cli.fail(3, "Nothing was copied", "results", "--path", job_folder, "--to", tmp_path / "to")
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


def test_a_cluster_that_cannot_be_reached_is_one_message(cli, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "{current-context: a, users: [], clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}],"
        " contexts: [{name: a, context: {cluster: c}}]}"
    )
    cli.fail(3, "context a (http://127.0.0.1:9) cannot be reached", "status", "--kubeconfig", config)


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


def test_a_long_diff_of_programs_ends_with_the_number_of_lines_that_are_hidden(cli, job):
    for name, text in (("other", "x\n" * 150), ("one", "")):
        add_run(job, name, 2, 0.12, program=name)
        program = {"options": {"rate": "1"}, "files": {"trainer_config.py": text}}
        (job / "runs" / name / "program.json").write_text(json.dumps(program))
    assert "\n53 more lines; -o json prints all" in cli("compare", "--path", job, "one", "other")[1]
