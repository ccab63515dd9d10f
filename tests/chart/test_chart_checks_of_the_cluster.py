"""The chart's checks of helm's version, of an existing claim, and of the namespace's pod security level."""

from __future__ import annotations

import shutil

import pytest
from chart_tools import CHART, ONE_MACHINE, helm_template


def probe(tmp_path, call: str):
    """Return helm's stderr for the chart plus a template that fails with the result of the template code `call`."""
    copy = tmp_path / "paddle-training"
    shutil.copytree(CHART, copy)
    (copy / "templates" / "probe.yaml").write_text(f"{{{{- fail ({call}) }}}}\n", encoding="utf-8")
    return helm_template(ONE_MACHINE, chart=copy).stderr


@pytest.mark.parametrize(
    ("version", "rejected"), [("v3.13.3", True), ("v3.14.0", False), ("v3.19", False), ("v4.0.1", False)]
)
def test_helm_older_than_3_14_is_rejected(tmp_path, version, rejected):
    text = probe(tmp_path, f'include "paddle-training.validate.helmVersion" "{version}" | printf "probe %s"')
    assert "probe" in text
    assert ("but must be 3.14 or newer" in text) is rejected


def test_claim_with_another_access_mode_is_rejected(tmp_path):
    call = 'include "paddle-training.validate.claimModes" (list "disk" (list "ReadWriteOnce"))'
    call += ' | printf "probe %s"'
    text = probe(tmp_path, call)
    assert 'storage.existingClaim.name is "disk", but must be a claim with access mode ReadWriteMany' in text
    assert "this claim has ReadWriteOnce" in text


def test_host_ports_in_a_restricted_namespace_are_rejected(tmp_path):
    call = 'include "paddle-training.validate.podSecurity" (list "paddle" "restricted") | printf "probe %s"'
    text = probe(tmp_path, call)
    assert "hostPorts is true" in text
    assert "kubectl label namespace paddle pod-security.kubernetes.io/enforce=privileged" in text
