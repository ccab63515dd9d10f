"""Argo CD and Flux render without a cluster: the chart's manifests must not depend on what exists in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from chart_tools import CHART, ROOT

SERVING = ROOT / "charts" / "paddle-serving"


@pytest.mark.parametrize("chart", [CHART, SERVING], ids=lambda path: path.name)
def test_lookups_only_reject_values_and_never_decide_what_is_rendered(chart: Path) -> None:
    for file in sorted((chart / "templates").iterdir()):
        text = re.sub(r"\{\{-? */\*.*?\*/ *-?\}\}", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        for block in re.split(r"(?=\{\{-? define )", text):
            for question in (
                r"\blookup\b",
                r"\.Capabilities\.(?!HelmVersion)",
                r"\.Release\.Is",
                r"\brand|\bnow\b",
            ):
                allowed = file.name == "_validate.tpl" and '"paddle-training.validate.cluster"' in block
                assert allowed or not re.search(question, block), f"{file.name}: {question}"
