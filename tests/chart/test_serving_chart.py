"""The serving chart: objects that refer to each other, and its schema; its folder tests/ has the other tests."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from chart_tools import KUBE_VERSION, ROOT, helm_template, one, render, run, tool

SERVING = ROOT / "charts" / "paddle-serving"
CLAIM, INGRESS_AND_GATEWAY = (SERVING / "ci" / f"{name}.yaml" for name in ("claim", "ingress-and-gateway"))
SCENARIOS = sorted((SERVING / "ci").glob("*.yaml"))


def made(*files, values=None):
    return render(*files, values=values, chart=SERVING)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_each_scenario_passes_strict_lint_and_renders_without_a_template_error(scenario):
    done = run(tool("helm"), "lint", "--strict", SERVING, "-f", scenario, "--kube-version", KUBE_VERSION)
    assert done.returncode == 0, done.stdout + done.stderr
    text = helm_template(scenario, chart=SERVING).stdout
    assert text
    assert not re.search(r"<no value>|<nil>|%!|[0-9]e\+[0-9]", text)


def test_service_budget_and_policy_select_the_deployments_pods():
    manifests = made(CLAIM)
    labels = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one(manifests, "Service")["spec"]["selector"],
        one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    training = {"app.kubernetes.io/name": "paddle-training", "app.kubernetes.io/instance": "demo"}
    assert any(training[key] != labels[key] for key in labels), "no policy of a training takes these pods"


def test_ingress_route_and_autoscaler_refer_to_the_service_and_the_deployment():
    manifests = made(INGRESS_AND_GATEWAY)
    target = one(manifests, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == one(manifests, "Deployment")["metadata"]["name"]
    service = one(manifests, "Service")
    [port] = service["spec"]["ports"]
    ingress = one(manifests, "Ingress")["spec"]
    assert (ingress["ingressClassName"], ingress["tls"][0]["secretName"]) == ("nginx", "ratings-tls")
    [rule] = ingress["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert rule["host"] == "ratings.example.org"
    assert backend == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    route = one(manifests, "HTTPRoute")["spec"]
    assert route["rules"][0]["backendRefs"] == [{"name": service["metadata"]["name"], "port": port["port"]}]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways"}]


@pytest.mark.parametrize("name", ["2026-model", "model.eu"])
def test_release_name_that_cannot_be_a_service_is_rejected(name):
    done = helm_template(CLAIM, chart=SERVING, release=name)
    assert done.returncode != 0
    assert f'the release\'s name is "{name}", but must be' in done.stderr


def test_schema_has_exactly_the_values():
    def leaves(value, path=""):
        if isinstance(value, dict) and value and path not in (".resources.requests", ".resources.limits"):
            return {leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}")}
        return {path}

    def known(schema, path=""):
        inner = schema.get("properties")
        return (
            {leaf for key, each in inner.items() for leaf in known(each, f"{path}.{key}")}
            if inner
            else {path}
        )

    schema = json.loads((SERVING / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((SERVING / "values.yaml").read_text(encoding="utf-8"))
    assert known(schema) - {".global"} == leaves(values)
