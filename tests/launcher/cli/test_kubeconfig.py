"""Which cluster a command uses: the one that the user selected, or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import incluster_config

from launcher.cli.cluster_api import connect
from launcher.cli.errors import UsageError
from testkit.written_files import write_files

COMMANDS = ("status", "wait", "logs", "results", "runs", "compare", "clean", "stop", "resume", "base")


def kubeconfig(path: Path, *names: str, current: str = "", **changes: Any) -> Path:
    """Write a kubeconfig with a context, a cluster and a user for each name; the server has the file's name, too."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": [{"name": one, "context": {"cluster": one, "user": one}} for one in names],
        "clusters": [{"name": one, "cluster": {"server": f"http://{path.stem}-{one}:9"}} for one in names],
        "users": [{"name": one, "user": {"token": one}} for one in names],
        **changes,
    }
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one in a pod, with a service account and an empty home."""
    account = write_files(tmp_path / "account", {"token": "x", "ca.crt": "x"})
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    monkeypatch.setattr(
        incluster_config.InClusterConfigLoader.__init__,
        "__defaults__",
        (str(account / "token"), str(account / "ca.crt"), True, os.environ),
    )
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_the_account_of_the_pod_is_used_if_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (None, ""):
        if variable is not None:
            monkeypatch.setenv("KUBECONFIG", variable)
        cluster = connect(None, None, "paddle")
        assert (cluster.configuration.host, cluster.context) == ("https://10.0.0.1:443", "")
        assert cluster.configuration.retries is False, "as with a kubeconfig"


BROKEN = {
    "no such file": lambda path: None,
    "empty": lambda path: path.write_text(""),
    "not YAML": lambda path: path.write_text("{: no yaml"),
    "a list": lambda path: path.write_text("[]"),
    "a text": lambda path: path.write_text("token"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "a folder": lambda path: path.mkdir(),
    "no current context": lambda path: kubeconfig(path, "prod", current=None),
    "another current context": lambda path: kubeconfig(path, "prod", current="gone"),
    "no contexts": lambda path: kubeconfig(path, current="prod", contexts=None),
    "no cluster": lambda path: kubeconfig(path, "prod", current="prod", clusters=[]),
    "no server": lambda path: kubeconfig(
        path, "prod", current="prod", clusters=[{"name": "prod", "cluster": {}}]
    ),
    "contexts of another type": lambda path: kubeconfig(path, current="prod", contexts={"prod": {}}),
    "a context without a name": lambda path: kubeconfig(path, current="prod", contexts=[{"context": {}}]),
}


@pytest.mark.parametrize(
    ("how", "given"),
    [
        (how, given)
        for how in BROKEN
        for given in ("option", "variable", "home")
        if (how, given) != ("no such file", "home")
    ],
)
def test_an_unusable_kubeconfig_is_never_replaced_by_the_account_of_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, given: str
) -> None:
    path = tmp_path / "config"
    if given == "home":
        path = tmp_path / "home" / ".kube" / "config"
        path.parent.mkdir(parents=True)
    BROKEN[how](path)
    if given == "variable":
        monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UsageError, match="Fix: "):
        connect(path if given == "option" else None, None, "paddle")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_context_that_the_file_does_not_have_is_an_error_of_every_command(
    cli: Any, tmp_path: Path, command: str
) -> None:
    empty = kubeconfig(tmp_path / "empty", current=None)
    other = kubeconfig(tmp_path / "other", "test", current="test")
    for options in (("--kubeconfig", empty), ("--kubeconfig", other), ()):
        code, out, err = cli(command, *options, "--context", "prod")
        assert (code, out) == (64, ""), err
        assert "Fix: " in err and "Traceback" not in err
    assert "it has no context prod" in cli(command, "--kubeconfig", other, "--context", "prod")[2]


def test_of_several_files_the_first_with_an_entry_wins_as_for_helm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kubeconfig(tmp_path / "one", "prod", "test", current="prod")
    two = kubeconfig(tmp_path / "two", "test", "more", current="test")
    absent = tmp_path / "absent"
    for files, context, host in (
        ((one, two), None, "one-prod"),
        ((two, one), None, "two-test"),
        ((one, two), "test", "one-test"),
        ((absent, two), None, "two-test"),
        ((one, two), "more", "two-more"),
    ):
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
        cluster = connect(None, context, "paddle")
        assert cluster.configuration.host == f"http://{host}:9"
        assert cluster.context == host.partition("-")[2]
        assert cluster.options == (["--context", context] if context else [])
    cluster = connect(two, None, "paddle")
    assert cluster.configuration.host == "http://two-test:9", "--kubeconfig overrides"
    assert cluster.kubeconfig_options == cluster.options == ["--kubeconfig", str(two)]
