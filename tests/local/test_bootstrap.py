"""Tests of the Python environment: its name, its interpreter, and uv's settings."""

from __future__ import annotations

import pytest

from local import bootstrap
from testkit.written_files import write_script


def test_environment_name_depends_on_lock_file_and_python_version():
    assert bootstrap.environment_name(b"a", (3, 11)) != bootstrap.environment_name(b"b", (3, 11))
    assert bootstrap.environment_name(b"a", (3, 11)) != bootstrap.environment_name(b"a", (3, 12))
    assert bootstrap.environment_name(b"a", (3, 11)).startswith("venv-3.11-")


@pytest.mark.parametrize(("version", "used"), [((3, 12), (3, 12)), ((3, 13), (3, 11)), ((3, 10), (3, 11))])
def test_environment_has_this_python_if_it_is_supported(monkeypatch, version, used):
    monkeypatch.setattr(bootstrap.sys, "version_info", (*version, 0))
    assert bootstrap.python_version() == used


def test_a_python_that_uv_cannot_bring_is_one_error_with_the_fix(monkeypatch, tmp_path):
    text = '#!/bin/sh\necho "no route to $UV_PYTHON_INSTALL_DIR for $*" >&2\nexit 2\n'
    write_script(tmp_path / "uv", text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 13, 0))
    with pytest.raises(
        SystemExit, match=r"Python 3\.13 is not supported: .* Fix: install Python 3\.11"
    ) as raised:
        bootstrap.install_packages(tmp_path / "draft", bootstrap.LOCK)
    assert f"no route to {tmp_path}/cache/python for venv --quiet" in str(raised.value)


def test_uv_uses_the_package_index_of_pip_unless_it_has_one(monkeypatch, tmp_path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://file.example/%40/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert bootstrap.uv_variables()["UV_DEFAULT_INDEX"] == "https://file.example/%40/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    assert bootstrap.uv_variables()["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://other.example/simple")
    assert bootstrap.uv_variables()["UV_DEFAULT_INDEX"] == "https://other.example/simple"
