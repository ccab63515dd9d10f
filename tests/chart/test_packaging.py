"""The packaged charts: equal charts give equal archives, and a chart from a registry renders the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import urllib.request
from pathlib import Path

import pytest
import yaml
from chart_tools import CHART, KUBE_VERSION, ROOT, run, tool

from local.package_charts import NAMES, package_chart
from testkit import oci_registry

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.mark.parametrize("name", NAMES)
def test_archive_depends_only_on_the_chart(name: str, tmp_path: Path) -> None:
    copy = tmp_path / name
    shutil.copytree(ROOT / "charts" / name, copy)
    for path in copy.rglob("*"):
        os.utime(path, (0, 0))
    first, other = (
        package_chart(ROOT / "charts" / name, tmp_path / "first"),
        package_chart(copy, tmp_path / "other"),
    )
    assert first.read_bytes() == other.read_bytes()
    with tarfile.open(first) as archive:
        assert {member.mtime for member in archive} == {0}, "helm's own would have the time of the day"


def test_chart_from_a_registry_renders_like_the_chart_in_its_folder(tmp_path: Path) -> None:
    archive = package_chart(CHART, tmp_path)
    values = CHART / "ci" / "minimal.yaml"
    argv = [tool("helm"), "template", "demo", "-f", values, "--kube-version", KUBE_VERSION]
    with oci_registry.run_registry(tmp_path) as address:
        charts = f"oci://{address}/charts"
        pushed = run(tool("helm"), "push", archive, charts, "--plain-http")
        assert pushed.returncode == 0, pushed.stderr
        pulled = run(*argv, f"{charts}/paddle-training", "--plain-http")
        url = f"http://{address}/v2/charts/paddle-training/manifests/0.1.0"
        asked = urllib.request.Request(url, headers={"Accept": MANIFEST})
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310 - the test's own registry
            (layer,) = json.load(answer)["layers"]
    here = run(*argv, CHART)
    assert list(yaml.safe_load_all(pulled.stdout)) == list(yaml.safe_load_all(here.stdout)), pulled.stderr
    assert layer["digest"] == f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
