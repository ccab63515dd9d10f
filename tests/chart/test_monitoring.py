"""PodMonitor, alerts and dashboard use labels, ports and metrics that a training really has."""

from __future__ import annotations

import json
import re

import pytest
from chart_tools import CHART, ONE_MACHINE, ROOT, one, render, run_json

from launcher.schema import RankStatus, RestartRecord, StatusFile
from launcher.supervisor.coordinator.run_writer import render_metrics

PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
ALL = {
    "networkPolicy": {"metricsFrom": PROMETHEUS},
    "monitoring": {
        "podMonitor": {"enabled": True, "labels": {"release": "stack"}, "interval": "1m"},
        "alerts": {"enabled": True, "labels": {"role": "rules"}, "noBatchMinutes": 45, "restartsPerHour": 4},
        "dashboard": {"enabled": True, "labels": {"folder": "ml"}},
    },
}
KUBELET = {"kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"}


@pytest.fixture(scope="module")
def made():
    return render(ONE_MACHINE, values=ALL)


def served() -> dict[str, set[str]]:
    """Return the metrics of rank 0's page with their labels, from the code that writes it."""
    status = StatusFile(
        attempt=1,
        number=2,
        batch=3,
        samples_per_second=4.0,
        loss=0.5,
        eta=6.0,
        restarts=[RestartRecord(cause="x")],
        ranks=[RankStatus(rank=0, samples_per_second=4.0)],
    )
    found: dict[str, set[str]] = {}
    for line in render_metrics(status, 7.0).decode().splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(\{.*\})?", line).groups()
            found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels or ""))
    return found


def rules(made):
    [group] = one(made, "PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def dashboard(made):
    [found] = [item for item in made if item["metadata"]["name"] == "demo-dashboard"]
    return found["metadata"]["labels"], json.loads(found["data"]["paddle-training.json"])


def test_alerts_use_served_metrics_of_this_runs_rank_0_and_claim(made):
    assert one(made, "PrometheusRule")["metadata"]["labels"]["role"] == "rules"
    found = rules(made)
    assert set(found) == {
        "PaddleTrainingNoBatch",
        "PaddleTrainingRestarts",
        "PaddleTrainingSlowRank",
        "PaddleTrainingStorageAlmostFull",
    }
    names = {
        name for rule in found.values() for name in re.findall(r"\b((?:paddle|kubelet)_\w+)\{", rule["expr"])
    }
    assert names <= set(served()) | KUBELET
    run = run_json(made)
    for rule in found.values():
        assert rule["annotations"].keys() == {"summary", "description"}
        for selector in re.findall(r"\{(.*?)\}", rule["expr"]):
            assert selector in (
                f'namespace="paddle", pod=~"{run["k8sJob"]}-0-.*"',
                f'namespace="paddle", persistentvolumeclaim="{run["claim"]}"',
            )
    assert "[45m]" in found["PaddleTrainingNoBatch"]["expr"]
    assert "45 minutes" in found["PaddleTrainingNoBatch"]["annotations"]["summary"]
    assert found["PaddleTrainingRestarts"]["expr"].endswith(">= 4")
    assert found["PaddleTrainingStorageAlmostFull"]["expr"].endswith("* 100 < 10")


def test_alerts_of_schedule_select_rank_0_of_each_run():
    """A CronJob's Job has the name of the CronJob, a dash and a number; its pods add a dash, the rank and a suffix."""
    made = render(ONE_MACHINE, values={**ALL, "jobName": "nightly", "training": {"schedule": "@daily"}})
    [pods] = {pods for rule in rules(made).values() for pods in re.findall(r'pod=~"(.*?)"', rule["expr"])}
    names = (
        "nightly-29382910-0-x7k2p",
        "nightly-1-0-abcde",
        "nightly-29382910-10-x7k2p",
        "nightly-29382910-1-0abcd",
    )
    assert [bool(re.fullmatch(pods, name)) for name in names] == [True, True, False, False]


def test_dashboard_uses_every_served_metric_and_no_other(made):
    labels, board = dashboard(made)
    assert labels["folder"] == "ml"
    assert board == json.loads((CHART / "dashboards" / "training.json").read_text(encoding="utf-8"))
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    metrics = served()
    used = {name for target in targets for name in re.findall(r"paddle_training_\w+", target["expr"])}
    assert used == {name for name in metrics if not name.endswith("_created")}
    documented = (ROOT / "docs" / "reference" / "pods.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in documented for name in used)
    own = {"namespace", "pod"}  # Prometheus adds them to every metric of a PodMonitor
    for target in targets:
        [name] = re.findall(r"paddle_training_\w+", target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= metrics[name] | own
    variables = {item["name"] for item in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) == variables
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len({place[:2] for place in places}) == len(places)
