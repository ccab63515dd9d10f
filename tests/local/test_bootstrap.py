"""Tests of the Python environment's name, and of the paths in its scripts."""

from __future__ import annotations

from local import bootstrap


def test_environment_name_depends_on_lock_file_and_python_version():
    assert bootstrap.environment_name(b"a", (3, 11)) != bootstrap.environment_name(b"b", (3, 11))
    assert bootstrap.environment_name(b"a", (3, 11)) != bootstrap.environment_name(b"a", (3, 12))
    assert bootstrap.environment_name(b"a", (3, 11)).startswith("venv-3.11-")


def test_relocate_scripts_replaces_the_temporary_folder_by_the_final_one(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text(f"#!{tmp_path}/bin/python\n")
    bootstrap.relocate_scripts(tmp_path, tmp_path / "final")
    assert (tmp_path / "bin" / "tool").read_text() == f"#!{tmp_path}/final/bin/python\n"
