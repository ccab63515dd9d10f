"""Tests of `make demo`: the cluster that it uses, its preparation, and the completion time of a run."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from local import __main__, demo
from local.external_commands import LocalError
from local.go_tools import find_tool


def test_a_context_without_a_kubeconfig_is_rejected_because_the_default_one_is_never_used():
    with pytest.raises(LocalError, match=r"never used. Fix: add CLUSTER_KUBECONFIG"):
        demo.resolve_target(None, "prod", None)


@pytest.mark.parametrize("command", [["up"], ["down"], ["demo"], ["demo", "--config", "ctr"]])
def test_without_root_there_is_one_error_before_anything_is_built(monkeypatch, command):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(__main__.debian_packages, "ensure_packages", pytest.fail)
    monkeypatch.setattr(__main__.steps, "run_demo", pytest.fail)
    error = CliRunner().invoke(__main__.app, command).exception
    assert isinstance(error, LocalError)
    assert "need root (user id 0, not 1000)" in str(error)
    assert "Fix: run the command as root" in str(error)


def test_the_users_cluster_must_have_the_context_and_an_image(tmp_path):
    file = tmp_path / "k"
    file.write_text(yaml.safe_dump({"contexts": [{"name": "a"}], "current-context": "a"}))
    with pytest.raises(LocalError, match=r"CONTEXT=b is not in .*one of its contexts: a"):
        demo.resolve_target(str(file), "b", None)
    with pytest.raises(LocalError, match="IMAGE="):
        demo.resolve_target(str(file), None, None)
    assert demo.resolve_target(str(file), None, "r/i@sha256:0") == demo.Target(file, "a", is_local=False)
    with pytest.raises(LocalError, match="cannot be read as a kubeconfig"):
        demo.resolve_target(str(tmp_path / "absent"), None, None)


def test_a_demo_starts_the_cluster_as_soon_as_its_tools_are_built(monkeypatch):
    seen = []
    tools = [find_tool("kubernetes"), find_tool("coredns"), find_tool("helm")]
    image_is_there = threading.Event()
    started = threading.Event()

    @contextlib.contextmanager
    def building(_):
        def make(some):
            if len(some) == len(tools):
                image_is_there.set()
                assert started.wait(20), "the cluster must not wait for the other tools"
            seen.append([one.name for one in some])

        yield make

    def imported(runtime):
        assert runtime == "fleet"
        assert image_is_there.is_set()
        seen.append("import")

    monkeypatch.setattr(demo.go_tools, "tool_builder", building)
    monkeypatch.setattr(demo.launcher_image, "ensure_image", lambda runtime: image_is_there.wait(20))
    monkeypatch.setattr(demo.cluster_lifecycle, "import_launcher_image", imported)
    monkeypatch.setattr(demo.example_data, "ensure_example_data", lambda _: None)
    monkeypatch.setattr(demo, "start_cluster", lambda nodes: (seen.append(nodes), started.set()))
    demo._prepare_local_cluster(3, "quick_start", tools)
    assert seen.index(["kubernetes", "coredns"]) < seen.index(3) < seen.index("import")


def test_a_demo_without_config_says_which_example_the_stack_keeps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class StoppedError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StoppedError

    monkeypatch.setattr(demo.local_stack, "read_stack_example", lambda: "ctr")
    monkeypatch.setattr(demo, "STATE", tmp_path)
    monkeypatch.setattr(demo, "require_free_space", stop)
    where = demo.Target(tmp_path / "kubeconfig", "local", is_local=True)
    with pytest.raises(StoppedError):
        demo.run_demo("", 3, where, None)
    said = "".join(capsys.readouterr())
    assert "training the example ctr: valuesFiles in Pulumi.local.yaml" in said
    assert "make demo CONFIG=NAME, with one of ctr, quick_start" in said
    with pytest.raises(StoppedError):
        demo.run_demo("quick_start", 3, where, None)
    assert "training the example" not in "".join(capsys.readouterr())


def test_completion_time_of_complete_unfinished_and_unreadable_runs(tmp_path: Path) -> None:
    run = tmp_path / "output" / "run.json"
    run.parent.mkdir()
    for text, expected in (
        ('{"state": "complete", "finished": 12.5}', 12.5),
        ('{"state": "training", "finished": null}', None),
        ("{", None),
    ):
        run.write_text(text)
        assert demo.completion_time(tmp_path) == expected
    assert demo.completion_time(tmp_path / "absent") is None
