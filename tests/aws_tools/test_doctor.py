"""`make doctor` reports problems before `pulumi up`, and creates nothing."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import jmespath
import pytest
import yaml
from botocore.exceptions import ClientError, NoCredentialsError

from aws import doctor
from aws.stack_access import make_clients
from infra import iam_policies
from testkit.aws_emulator import authorization

ARN = "arn:aws:sts::123456789012:assumed-role/Admin/me"


def rejected(code: str, operation: str = "") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, operation)


class Iam:
    """A fake of IAM roles and of the policy simulator, which moto lacks; denies the actions in `denied`."""

    def __init__(self, denied=(), error=None, **roles):
        self.denied, self.error, self.asked, self.roles = set(denied), error, [], roles or {"Admin": "/"}
        self.simulated = {}

    def get_role(self, RoleName):  # noqa: N803 - boto3's names
        if RoleName not in self.roles:
            raise rejected("NoSuchEntity", "GetRole")
        return {"Role": {"Arn": f"arn:aws:iam::123456789012:role{self.roles[RoleName]}{RoleName}"}}

    def get_paginator(self, name):
        assert name == "simulate_principal_policy"
        return self

    def paginate(self, PolicySourceArn, ActionNames, ResourceArns=(), ContextEntries=()):  # noqa: N803
        if self.error:
            raise self.error
        assert PolicySourceArn.startswith("arn:aws:iam::123456789012:role/")
        assert len(ActionNames) <= 100
        self.asked += ActionNames
        keys = {entry["ContextKeyName"]: entry["ContextKeyValues"][0] for entry in ContextEntries}
        self.simulated |= {name: (list(ResourceArns), keys) for name in ActionNames}
        decided = [(a, "implicitDeny" if a in self.denied else "allowed") for a in ActionNames]
        results = [{"EvalActionName": a, "EvalDecision": d} for a, d in decided]
        return SimpleNamespace(search=lambda what: jmespath.search(what, {"EvaluationResults": results}))


class Quotas:
    """A fake of service quotas: the defaults of AWS, or values that a test sets by quota code."""

    defaults = {  # noqa: RUF012
        **{"L-1216C47A": 64.0, "L-34B43A08": 64.0, "L-0263D0A3": 5.0, "L-F678F1CE": 5.0},
        **dict.fromkeys(("L-DB2E81BA", "L-3819A6DF", "L-417A185B", "L-7212CCBC"), 0.0),  # G and VT, P
    }

    def __init__(self, own=()):
        self.own = {code: float(value) for code, value in dict(own).items()}

    def get_service_quota(self, ServiceCode, QuotaCode):  # noqa: N803
        if QuotaCode not in self.own:
            raise rejected("NoSuchResourceException")
        return {"Quota": {"Value": self.own[QuotaCode]}}

    def get_aws_default_service_quota(self, ServiceCode, QuotaCode):  # noqa: N803
        return {"Quota": {"Value": self.defaults[QuotaCode]}}


class Eks:
    """A fake of EKS' list of versions, which moto lacks: standard support of all ends in `days`."""

    def __init__(self, days):
        self.end = datetime.now(UTC) + timedelta(days=days, hours=1)

    def describe_cluster_versions(self, clusterVersions):  # noqa: N803
        known = [version for version in clusterVersions if version != "1.99"]
        return {
            "clusterVersions": [{"clusterVersion": v, "endOfStandardSupportDate": self.end} for v in known]
        }


@pytest.fixture
def world(account, client, monkeypatch):
    """Return clients of the emulated account, with fakes for services that moto lacks.

    The checks run in one thread, because moto's emulation in this process is not thread-safe.
    """
    monkeypatch.setattr(doctor, "ThreadPoolExecutor", lambda checks: ThreadPoolExecutor(1))

    def make(**replaced):
        who = SimpleNamespace(get_caller_identity=lambda: {"Account": "123456789012", "Arn": ARN})
        stand_ins = {"sts": who, "iam": Iam(), "service_quotas": Quotas(), "eks": Eks(365), **replaced}
        return lambda service: stand_ins.get(service.replace("-", "_")) or client(service)

    return make


@pytest.fixture
def examine(dev, world):
    """Return a function: changes of settings and fakes of services → what the doctor finds."""
    return lambda *changes, **replaced: doctor.run_checks(dev(*changes), world(**replaced))


ROWS = yaml.safe_load(Path(__file__).with_name("doctor.yaml").read_text(encoding="utf-8"))
CASES = [
    pytest.param(
        rule | case | {"changes": [*rule.get("changes", ()), *case.get("changes", ())]},
        id=rule["rule"],
        marks=[pytest.mark.slow] if rule.get("slow") else [],
    )
    for rule in ROWS
    for case in rule["cases"]
]


@pytest.mark.parametrize("case", CASES)
def test_doctor_follows_the_rule(examine, client, case) -> None:
    replaced = {"iam": Iam(denied=case.get("denied", ()), **case.get("roles", {}))}
    replaced |= {"service_quotas": Quotas(case.get("quotas", ())), "eks": Eks(case.get("days", 365))}
    if "caller" in case:
        arn = f"arn:aws:sts::123456789012:assumed-role/{case['caller']}/me@here"
        replaced["sts"] = SimpleNamespace(get_caller_identity=lambda: {"Account": "123456789012", "Arn": arn})
    if "instance" in case:
        image = client("ec2").register_image(Name="any")["ImageId"]
        client("ec2").run_instances(ImageId=image, InstanceType=case["instance"], MinCount=1, MaxCount=1)
    found = [f"{each.level} {each.what} → {each.fix}" for each in examine(*case["changes"], **replaced)]
    for pattern in case.get("finds", ()):
        assert [text for text in found if re.search(pattern, text)], found
    for pattern in case.get("lacks", ()):
        assert not [text for text in found if re.search(pattern, text)]


def levels(findings, level):
    return [f.what for f in findings if f.level == level]


def test_doctor_ready_account_warns_only_about_image(examine, dev) -> None:
    iam = Iam()
    found = examine(iam=iam)
    assert levels(found, "bad") == []
    assert levels(found, "unknown") == []
    assert [f.fix for f in found if f.level == "warn"] == [
        "pulumi config set --path 'cluster.publicCidrs[0]' YOUR.ADDRESS/32 --stack dev",
        "pulumi up --stack dev, then make push STACK=dev, then pulumi up again",
    ]
    documents = iam_policies.deployer("paddle-training-dev", dev().settings.iam)
    assert set(authorization.actions(documents)) == set(iam.asked)


def test_doctor_simulates_rights_on_own_roles_with_their_conditions(examine) -> None:
    iam, boundary = Iam(), "arn:aws:iam::123456789012:policy/Boundary"
    examine("iam.path=/teams/", f"iam.permissionsBoundary={boundary}", iam=iam)
    role = ["arn:aws:iam::123456789012:role/teams/paddle-training-dev-doctor"]
    assert iam.simulated["iam:CreateRole"] == (role, {"iam:PermissionsBoundary": boundary})
    assert iam.simulated["iam:PassRole"] == (role, {"iam:PassedToService": "ec2.amazonaws.com"})
    assert iam.simulated["iam:GetRole"] == ([], {})
    arns = [arn.split(":") for asked, _ in iam.simulated.values() for arn in asked]
    assert {arn[4] for arn in arns} == {"123456789012", ""}, "the simulator accepts only ids of accounts"
    key = "arn:aws:kms:us-west-2:123456789012:key/1-2"
    examine(f"kms.keyArn={key}", iam=iam)
    assert iam.simulated["kms:CreateGrant"] == ([key], {})


def test_doctor_zones_without_control_plane_are_excluded(dev, world, client) -> None:
    here = make_clients("us-east-1")
    elsewhere = world(ec2=here("ec2"))
    ids = {z["ZoneId"]: z["ZoneName"] for z in here("ec2").describe_availability_zones()["AvailabilityZones"]}
    stack = dev("aws:region=us-east-1", f"network.availabilityZones=[us-east-1a,{ids['use1-az3']}]")
    rejected = levels(doctor.run_checks(stack, elsewhere), "bad")
    assert f"us-east-1 has no EKS support in zone {ids['use1-az3']}" in rejected
    assert ids["use1-az3"] not in doctor.offered_zones(elsewhere)


@pytest.mark.parametrize(
    ("kind", "counted"),
    [("m6i.large", "standard"), ("im4gn.large", "standard"), ("g5.xlarge", "G"), ("gr6.4xlarge", "G"),
     ("vt1.3xlarge", "G"), ("p5.48xlarge", "P"), ("inf1.xlarge", ""), ("trn1.2xlarge", ""), ("u-3tb1.56xlarge", "")],
)  # fmt: skip
def test_vcpu_quota_depends_on_family(kind, counted) -> None:
    assert doctor.vcpu_quota(kind) == counted


def test_doctor_creates_no_resource(examine, client) -> None:
    calls: list[str] = []

    def note(model, **_):
        calls.append(model.name)

    for service in ("ec2", "ecr"):
        client(service).meta.events.register("before-call", note, unique_id="note")
    examine()
    for service in ("ec2", "ecr"):
        client(service).meta.events.unregister("before-call", note, unique_id="note")
    assert calls
    assert [name for name in calls if not name.startswith(("Describe", "Get", "List"))] == []


@pytest.mark.parametrize("error", [NoCredentialsError(), rejected("ExpiredToken", "GetCallerIdentity")])
def test_doctor_without_credentials_reports_only_that(examine, error) -> None:
    def fail():
        raise error

    found = examine(sts=SimpleNamespace(get_caller_identity=fail))
    assert [f.level for f in found] == ["bad"]
    assert found[0].what.startswith("credentials: "), "after the mark `no`"
    assert "sign in" in found[0].fix


@pytest.mark.parametrize(
    ("offered", "found"),
    [
        ({"a": "xyz", "b": "xyz"}, ["ok", "ok"]),
        ({"a": "xz", "b": "yz"}, ["warn", "warn"]),
        ({"a": "x", "b": "y"}, ["bad", "bad"]),
        ({"a": "xyz", "b": ""}, ["ok", "warn"]),
    ],
)
def test_doctor_a_zone_without_any_instance_type_is_an_error(monkeypatch, offered, found) -> None:
    """Regression: if another type was offered in one of several missing zones, all of them were only warnings."""
    offers = [{"InstanceType": kind, "Location": zone} for kind, zones in offered.items() for zone in zones]
    pages = SimpleNamespace(search=lambda _: offers)
    ec2 = SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=lambda **_: pages))
    nodes = SimpleNamespace(single_zone=False, instance_types=("a", "b"))
    monkeypatch.setattr(doctor, "used_zones", lambda *_: ["x", "y", "z"])
    stack = SimpleNamespace(settings=SimpleNamespace(nodes=nodes))
    assert [each.level for each in doctor.check_types(stack, lambda _: ec2)] == found


def test_doctor_checks_existing_resources_of_settings(examine, client) -> None:
    client("ec2").create_key_pair(KeyName="mine")
    key = client("kms").create_key()["KeyMetadata"]
    changes = ("nodes.sshKeyName=mine", f"kms.keyArn={key['Arn']}")
    found = examine(*changes)
    assert {"nodes.sshKeyName mine", f"kms.keyArn {key['Arn']}"} <= set(levels(found, "ok"))
    client("kms").schedule_key_deletion(KeyId=key["KeyId"])
    found = examine(*changes)
    assert f"kms.keyArn {key['Arn']} is PendingDeletion" in levels(found, "bad")


def test_doctor_quotas_do_not_count_own_resources_twice(examine, client) -> None:
    own = [{"Key": "Project", "Value": "paddle-training"}, {"Key": "Stack", "Value": "dev"}]
    tagged = [{"ResourceType": "vpc", "Tags": own}]
    client("ec2").create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged)
    found = examine(service_quotas=Quotas({"L-F678F1CE": 2}))
    assert "VPCs: 1 used by other resources, 1 needed by this stack, quota 2" in levels(found, "ok")


def test_doctor_denied_check_is_unknown(examine) -> None:
    found = examine(iam=Iam(error=rejected("AccessDenied", "SimulatePrincipalPolicy")))
    assert levels(found, "unknown") == ["actions: not checked: AWS denied SimulatePrincipalPolicy"]
    assert levels(found, "bad") == []


def test_doctor_existing_image_is_ok(examine, client) -> None:
    ecr = client("ecr")
    ecr.create_repository(repositoryName="launcher")
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": {"digest": "sha256:" + "1" * 64},
        "layers": [],
    }
    ecr.put_image(repositoryName="launcher", imageManifest=json.dumps(manifest), imageTag="one")
    url = "123456789012.dkr.ecr.us-west-2.amazonaws.com/launcher"
    digest = ecr.describe_images(repositoryName="launcher")["imageDetails"][0]["imageDigest"]
    for image in (f"{url}:one", f"{url}@{digest}"):
        assert f"image {image}" in levels(examine(f"image={image}"), "ok")
