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


def test_claim_is_mounted_read_only_without_other_connections():
    manifests = made(CLAIM)
    assert arguments(manifests)["model"] == "/model/quick-start/output/model"
    volume = next(v for v in pod(manifests)["volumes"] if v["name"] == "model")
    assert volume["persistentVolumeClaim"] == {"claimName": "paddle-training-shared", "readOnly": True}
    mount = next(m for m in pod(manifests)["containers"][0]["volumeMounts"] if m["name"] == "model")
    assert mount == {"name": "model", "mountPath": "/model", "readOnly": True}
    assert one(manifests, "NetworkPolicy")["spec"]["egress"] == []


def test_export_is_downloaded_to_the_pods_disk_from_its_bucket_only():
    manifests = made(EXPORT)
    options = arguments(manifests)
    assert options["model"] == "s3://models/exports/recommendation/run-1"
    volumes = {volume["name"]: volume for volume in pod(manifests)["volumes"]}
    assert set(volumes) == {"tmp", "work"}
    assert volumes["work"]["emptyDir"] == {"sizeLimit": "20Gi"}
    mounts = {m["mountPath"]: m["name"] for m in pod(manifests)["containers"][0]["volumeMounts"]}
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


def test_pods_follow_new_models_only_if_the_values_say_so():
    options = arguments(made(FOLLOW))
    assert options["model"] == "s3://models/exports/recommendation"
    assert (options["follow"], options["work-limit"]) == ("300", "20Gi")
    assert "follow" not in arguments(made(EXPORT))
    options = arguments(made(CLAIM, values={"model": {"followLatest": True}}))
    assert (options["model"], options["follow"]) == ("/model/quick-start/output/model", "300")
    assert "work-limit" not in options


def test_pods_of_the_namespace_may_connect_to_one_port_by_default():
    manifests = made(CLAIM, values={"port": 9001})
    [rule] = one(manifests, "NetworkPolicy")["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {}}], "ports": [{"port": 9001, "protocol": "TCP"}]}
    assert arguments(manifests)["port"] == "9001"
    assert one(manifests, "Service")["spec"]["ports"][0]["port"] == 9001


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
    alone = [item["kind"] for item in made(CLAIM, values={"replicas": 1})]
    assert "PodDisruptionBudget" not in alone, "with one pod it would block every drain"


def test_start_seconds_is_the_deadline_of_the_startup_probe():
    manifests = made(CLAIM, values={"model": {"startSeconds": 61}})
    probe = pod(manifests)["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 61
    assert one(manifests, "Deployment")["spec"]["progressDeadlineSeconds"] > 61


def test_pod_meets_the_restricted_level_without_a_token():
    spec = pod(made(EXPORT))
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    own = spec["containers"][0]["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}


def test_autoscaler_sets_the_number_of_pods_instead_of_replicas():
    deployment, scaler = (
        one(made(INGRESS_AND_GATEWAY), kind) for kind in ("Deployment", "HorizontalPodAutoscaler")
    )
    assert "replicas" not in deployment["spec"], "an upgrade would undo what the autoscaler has set"
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 20)
    assert scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 50
    assert "PodDisruptionBudget" not in [item["kind"] for item in made(INGRESS_AND_GATEWAY)], (
        "minReplicas is 1"
    )
    two = made(INGRESS_AND_GATEWAY, values={"autoscaling": {"minReplicas": 2}})
    assert "PodDisruptionBudget" in [item["kind"] for item in two]


def test_ingress_and_route_lead_to_a_port_of_the_service():
    manifests = made(INGRESS_AND_GATEWAY)
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
    kinds = {item["kind"] for item in made(CLAIM)}
    assert not kinds & {"Ingress", "HTTPRoute", "HorizontalPodAutoscaler"}


def test_placement_and_user_of_the_pods():
    spec = pod(made(INGRESS_AND_GATEWAY))
    assert "nodeSelector" not in spec
    assert "podAntiAffinity" in spec["affinity"]
    spec = pod(made(CLAIM, values={"podSecurityContext": {"runAsUser": 20000}}))
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (20000, 10001)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": ""}, "image"),
        ({"model": {"claim": "", "path": ""}}, "model.claim is \"\" and model.s3 is \"\", but exactly one"),
        ({"model": {"s3": "s3://bucket/x"}}, "but exactly one of them must be given"),
        ({"model": {"path": ""}}, "model.path is \"\" with model.claim"),
        ({"model": {"path": "../other"}}, "path"),
        ({"model": {"s3": "s3://bucket"}}, "s3"),
        ({"model": {"sizeLimit": "20GB"}}, "sizeLimit"),
        ({"model": {"pollSeconds": 1}}, "pollSeconds"),
        ({"resources": {"limits": {"memory": "2Gi"}}}, "resources.limits.memory is \"2Gi\""),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is empty"),
        ({"extraEnv": [{"name": "HOME", "value": "/"}]}, "extraEnv has HOME"),
        ({"extraEnv": [{"name": "A"}]}, "extraEnv A must have either value or valueFrom"),
        ({"replica": 2}, "replica"),
        ({"securityContext": {"runAsUser": 5}}, "runAsUser"),
        ({"autoscaling": {"enabled": True, "minReplicas": 11}}, "autoscaling.minReplicas is 11, but must be"),
        ({"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}, "resources.requests.cpu"),
        ({"ingress": {"enabled": True}}, "ingress.hosts is [], but must be given"),
        ({"ingress": {"enabled": True, "hosts": ["a.org"]}}, "networkPolicy.from is [], but must be given"),
        ({"ingress": {"hosts": ["https://a.org"]}}, "hosts"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is [], but must be given"),
    ],
)  # fmt: skip
def test_invalid_values_are_rejected_with_their_key(values, message):
    done = helm_template(CLAIM, values=values, chart=SERVING)
    assert done.returncode != 0
    assert message in done.stderr


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
