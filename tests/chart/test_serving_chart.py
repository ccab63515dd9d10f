"""The serving chart: sources of the model, admitted connections, rejected values."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from chart_tools import KUBE_VERSION, ROOT, helm_template, one, render, run, tool

SERVING = ROOT / "charts" / "paddle-serving"
CLAIM, EXPORT, FOLLOW, INGRESS_AND_GATEWAY = (
    SERVING / "ci" / f"{name}.yaml" for name in ("claim", "export", "follow", "ingress-and-gateway")
)
SCENARIOS = sorted((SERVING / "ci").glob("*.yaml"))


def made(*files, values=None):
    return render(*files, values=values, chart=SERVING)


def pod(manifests):
    return one(manifests, "Deployment")["spec"]["template"]["spec"]


def arguments(manifests):
    """Return the options of the container's command line, by name."""
    [container] = pod(manifests)["containers"]
    assert container["command"] == ["python", "-m", "launcher", "serve"]
    return dict(item.removeprefix("--").split("=", 1) for item in container["args"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_each_scenario_passes_strict_lint_and_renders_without_a_template_error(scenario):
    done = run(tool("helm"), "lint", "--strict", SERVING, "-f", scenario, "--kube-version", KUBE_VERSION)
    assert done.returncode == 0, done.stdout + done.stderr
    text = helm_template(scenario, chart=SERVING).stdout
    assert text
    assert not re.search(r"<no value>|<nil>|%!|[0-9]e\+[0-9]", text)


def test_model_on_a_claim_is_mounted_read_only_and_its_pods_accept_only_pods_of_the_namespace():
    manifests = made(CLAIM, values={"port": 9001})
    options = arguments(manifests)
    assert (options["model"], options["port"]) == ("/model/quick-start/output/model", "9001")
    volume = next(v for v in pod(manifests)["volumes"] if v["name"] == "model")
    assert volume["persistentVolumeClaim"] == {"claimName": "paddle-training-shared", "readOnly": True}
    mount = next(m for m in pod(manifests)["containers"][0]["volumeMounts"] if m["name"] == "model")
    assert mount == {"name": "model", "mountPath": "/model", "readOnly": True}
    policy, service = one(manifests, "NetworkPolicy")["spec"], one(manifests, "Service")["spec"]
    assert policy["egress"] == []
    [rule] = policy["ingress"]
    assert rule == {"from": [{"podSelector": {}}], "ports": [{"port": 9001, "protocol": "TCP"}]}
    assert service["ports"][0]["port"] == 9001
    labels = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        service["selector"],
        policy["podSelector"]["matchLabels"],
        one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    training = {"app.kubernetes.io/name": "paddle-training", "app.kubernetes.io/instance": "demo"}
    assert any(training[key] != labels[key] for key in labels), "no policy of a training takes these pods"
    assert not {item["kind"] for item in manifests} & {"Ingress", "HTTPRoute", "HorizontalPodAutoscaler"}


def test_export_is_downloaded_from_its_bucket_only_by_pods_of_the_restricted_level():
    manifests = made(EXPORT)
    options, spec = arguments(manifests), pod(manifests)
    assert options["model"] == "s3://models/exports/recommendation/run-1"
    assert "follow" not in options
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(volumes) == {"tmp", "work"}
    assert volumes["work"]["emptyDir"] == {"sizeLimit": "20Gi"}
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    assert mounts[options["work"]] == "work"
    policy = one(manifests, "NetworkPolicy")["spec"]
    reached = {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in policy["egress"]
        for peer in rule.get("to", [])
        for port in rule["ports"]
    }
    assert reached == {("10.0.0.0/16", 443), ("169.254.170.23/32", 80)}
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "proxy"}}}]
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    own = spec["containers"][0]["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}


def test_pods_follow_new_models_only_if_the_values_say_so():
    options = arguments(made(FOLLOW))
    assert options["model"] == "s3://models/exports/recommendation"
    assert (options["follow"], options["work-limit"]) == ("300", "20Gi")
    options = arguments(made(CLAIM, values={"model": {"followLatest": True}}))
    assert (options["model"], options["follow"]) == ("/model/quick-start/output/model", "300")
    assert "work-limit" not in options


def test_start_seconds_is_the_deadline_of_the_startup_probe():
    manifests = made(CLAIM, values={"model": {"startSeconds": 61}})
    probe = pod(manifests)["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 61
    assert one(manifests, "Deployment")["spec"]["progressDeadlineSeconds"] > 61


@pytest.mark.parametrize(
    ("scenario", "values", "budget"),
    [
        (CLAIM, {}, True),
        (CLAIM, {"replicas": 1}, False),
        (INGRESS_AND_GATEWAY, {}, False),  # autoscaling.minReplicas is 1
        (INGRESS_AND_GATEWAY, {"autoscaling": {"minReplicas": 2}}, True),
    ],
)
def test_disruption_budget_exists_unless_it_would_block_every_drain_of_the_only_pod(scenario, values, budget):
    assert ("PodDisruptionBudget" in [item["kind"] for item in made(scenario, values=values)]) is budget


def test_ingress_route_and_autoscaler_refer_to_the_service_and_the_deployment():
    manifests = made(INGRESS_AND_GATEWAY)
    deployment, scaler = (one(manifests, kind) for kind in ("Deployment", "HorizontalPodAutoscaler"))
    assert "replicas" not in deployment["spec"], "an upgrade would undo what the autoscaler has set"
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 20)
    assert scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 50
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
    spec = pod(manifests)
    assert "nodeSelector" not in spec
    assert "podAntiAffinity" in spec["affinity"]
    spec = pod(made(CLAIM, values={"podSecurityContext": {"runAsUser": 20000}}))
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (20000, 10001)


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
