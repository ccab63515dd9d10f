"""`make doctor` names what is wrong before anything is made, and makes nothing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jmespath
import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from aws import doctor
from aws.stack import clients
from infra import policies

KEY = "arn:aws:kms:us-west-2:123456789012:key/0-1"
ARN = "arn:aws:sts::123456789012:assumed-role/Admin/me"


def refused(operation: str) -> ClientError:
    return ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)


class Iam:
    """Roles by name and path, and IAM's simulator, which moto has not: it refuses what it is told to."""

    def __init__(self, denied=(), error=None, **roles):
        self.denied, self.error, self.asked, self.roles = set(denied), error, [], roles or {"Admin": "/"}

    def get_role(self, RoleName):  # noqa: N803 - boto3's names
        if RoleName not in self.roles:
            raise ClientError({"Error": {"Code": "NoSuchEntity", "Message": "none"}}, "GetRole")
        return {"Role": {"Arn": f"arn:aws:iam::123456789012:role{self.roles[RoleName]}{RoleName}"}}

    def get_paginator(self, name):
        assert name == "simulate_principal_policy"
        return self

    def paginate(self, PolicySourceArn, ActionNames):  # noqa: N803
        if self.error:
            raise self.error
        assert PolicySourceArn.startswith("arn:aws:iam::123456789012:role/")
        assert len(ActionNames) <= 100
        self.asked += ActionNames
        decided = [(a, "implicitDeny" if a in self.denied else "allowed") for a in ActionNames]
        results = [{"EvalActionName": a, "EvalDecision": d} for a, d in decided]
        return SimpleNamespace(search=lambda what: jmespath.search(what, {"EvaluationResults": results}))


class Quotas:
    """An account whose quotas are AWS's defaults, or those that a test sets by their code."""

    defaults = {"L-1216C47A": 64.0, "L-34B43A08": 64.0, "L-0263D0A3": 5.0, "L-F678F1CE": 5.0}  # noqa: RUF012

    def __init__(self, **own):
        self.own = {code.replace("_", "-"): value for code, value in own.items()}

    def get_service_quota(self, ServiceCode, QuotaCode):  # noqa: N803
        if QuotaCode not in self.own:
            raise ClientError({"Error": {"Code": "NoSuchResourceException", "Message": "none"}}, "")
        return {"Quota": {"Value": self.own[QuotaCode]}}

    def get_aws_default_service_quota(self, ServiceCode, QuotaCode):  # noqa: N803
        return {"Quota": {"Value": self.defaults[QuotaCode]}}


@pytest.fixture
def world(account, client):
    """The emulated account with stand-ins for what moto lacks."""

    def make(**replaced):
        who = SimpleNamespace(get_caller_identity=lambda: {"Account": "123456789012", "Arn": ARN})
        stand_ins = {"sts": who, "iam": Iam(), "service-quotas": Quotas(), **replaced}
        return lambda service: stand_ins.get(service) or client(service)

    return make


def levels(findings, level):
    return [f.what for f in findings if f.level == level]


def test_an_account_that_is_ready_gets_no_complaint_but_the_missing_image(dev, world) -> None:
    iam = Iam()
    found = doctor.examine(dev(), world(iam=iam))
    assert levels(found, "bad") == []
    assert levels(found, "unknown") == []
    assert [f.fix for f in found if f.level == "warn"] == [
        "pulumi config set --path 'cluster.publicCidrs[0]' YOUR.ADDRESS/32 --stack dev",
        "pulumi up --stack dev, then make push STACK=dev, then pulumi up again",
    ]
    statements = [s for text in policies.deployer() for s in json.loads(text)["Statement"]]
    assert {a for s in statements for a in s["Action"]} - set(iam.asked) == {"iam:PassRole"}


SSO = "AWSReservedSSO_AdministratorAccess_0123456789abcdef"
SSO_ROLE = f"role/aws-reserved/sso.amazonaws.com/eu-west-1/{SSO}"
SSO_ARN = f"arn:aws:iam::123456789012:{SSO_ROLE}"


@pytest.mark.parametrize(
    ("admins", "said", "fix"),
    [
        ("role/Admin", "role/Admin does not exist in IAM", "existing role or user"),
        ("role/Admin", f"does not list {SSO_ARN}", f"'cluster.admins[1]' {SSO_ARN}"),
        (f"role/{SSO}", f"IAM has {SSO_ARN}", f"'cluster.admins[0]' {SSO_ARN}"),
        (SSO_ROLE, None, None),
    ],
)
def test_a_single_sign_on_role_is_named_with_its_path_as_eks_wants_it(dev, world, admins, said, fix) -> None:
    session = {"Account": "123456789012", "Arn": f"arn:aws:sts::123456789012:assumed-role/{SSO}/me@here"}
    who = SimpleNamespace(get_caller_identity=lambda: session)
    iam = Iam(**{SSO: "/aws-reserved/sso.amazonaws.com/eu-west-1/"})
    found = doctor.examine(dev(f"cluster.admins=[{admins}]"), world(sts=who, iam=iam))
    refused = [f for f in found if f.level == "bad"]
    if said is None:
        assert refused == []
    else:
        assert [f for f in refused if said in f.what and fix in f.fix], refused


def test_a_viewer_who_is_not_there_and_one_of_another_account_are_told_apart(dev, world) -> None:
    found = doctor.examine(
        dev("cluster.viewers=[role/preview,arn:aws:iam::210987654321:role/ci]"), world(iam=Iam())
    )
    assert [w for w in levels(found, "bad") if w.startswith("cluster.viewers")] == [
        "cluster.viewers[0]: arn:aws:iam::123456789012:role/preview does not exist in IAM"
    ]
    assert [w for w in levels(found, "unknown") if "210987654321:role/ci belongs to another account" in w]


def test_zones_where_eks_puts_no_control_plane_are_neither_offered_nor_taken(dev, world, client) -> None:
    here = clients("us-east-1")
    elsewhere = world(ec2=here("ec2"))
    ids = {z["ZoneId"]: z["ZoneName"] for z in here("ec2").describe_availability_zones()["AvailabilityZones"]}
    stack = dev("aws:region=us-east-1", f"network.availabilityZones=[us-east-1a,{ids['use1-az3']}]")
    refused = levels(doctor.examine(stack, elsewhere), "bad")
    assert f"us-east-1 has no EKS support in zone {ids['use1-az3']}" in refused
    assert ids["use1-az3"] not in doctor.offered_zones(elsewhere)


def test_the_sizes_of_types_are_those_of_ec2(dev, world) -> None:
    found = doctor.examine(dev("nodes.instanceTypes=[x1e.xlarge]", "nodes.max=4"), world())
    assert any("0 used by others, 16 needed" in what for what in levels(found, "ok"))


def test_it_makes_nothing(dev, world, client) -> None:
    calls: list[str] = []

    def note(model, **_):
        calls.append(model.name)

    for service in ("ec2", "ecr"):
        client(service).meta.events.register("before-call", note, unique_id="note")
    doctor.examine(dev(), world())
    for service in ("ec2", "ecr"):
        client(service).meta.events.unregister("before-call", note, unique_id="note")
    assert calls
    assert [name for name in calls if not name.startswith(("Describe", "Get", "List"))] == []


@pytest.mark.parametrize(
    "error",
    [
        NoCredentialsError(),
        ClientError(
            {"Error": {"Code": "ExpiredToken", "Message": "The security token is expired"}},
            "GetCallerIdentity",
        ),
    ],
)
def test_without_working_credentials_that_is_all_it_says(dev, world, error) -> None:
    def fail():
        raise error

    found = doctor.examine(dev(), world(sts=SimpleNamespace(get_caller_identity=fail)))
    assert [f.level for f in found] == ["bad"]
    assert found[0].what.startswith("credentials: "), "behind the mark `no`"
    assert "sign in" in found[0].fix


@pytest.mark.parametrize(
    ("changes", "replaced", "said"),
    [
        (["cluster.admins=[role/Other]"], {}, "does not list arn:aws:iam::123456789012:role/Admin"),
        (["network.availabilityZones=[us-west-2a,us-west-2x]"], {}, "no EKS support in zone us-west-2x"),
        (["nodes.instanceTypes=[m9x.large]"], {}, "m9x.large is not offered in us-west-2a, us-west-2b"),
        (["nodes.max=40"], {}, "0 used by others, 80 needed, quota 64"),
        ([], {"service-quotas": Quotas(L_1216C47A=5.0)}, "6 needed, quota 5"),
        (
            ["nodes.capacity=SPOT"],
            {"service-quotas": Quotas(L_34B43A08=0.0)},
            "spot standard instances: 0 used",
        ),
        (["network.nat=per-az"], {"service-quotas": Quotas(L_0263D0A3=1.0)}, "2 needed, quota 1"),
        ([], {"service-quotas": Quotas(L_F678F1CE=1.0)}, "VPCs: 1 used by others, 1 needed, quota 1"),
        (
            ["network.vpcId=vpc-0abc", "network.subnetIds=[subnet-0a,subnet-0b]"],
            {},
            "network.vpcId vpc-0abc is missing",
        ),
        (["nodes.sshKeyName=mine"], {}, "nodes.sshKeyName mine is missing"),
        ([f"kms.keyArn={KEY}"], {}, f"kms.keyArn {KEY} is missing"),
        (["dns.publicZoneId=Z1", "dns.externalName=api.example.com"], {}, "dns.publicZoneId Z1 is missing"),
        ([], {"iam": Iam(denied=["eks:CreateCluster"])}, "IAM actions are missing: eks:CreateCluster"),
        (
            ["image=123456789012.dkr.ecr.us-west-2.amazonaws.com/none@sha256:" + "0" * 64],
            {},
            "is not in the registry",
        ),
    ],
)
def test_each_obstacle_is_reported_with_a_fix(dev, world, changes, replaced, said) -> None:
    found = [f for f in doctor.examine(dev(*changes), world(**replaced)) if f.level == "bad"]
    assert [f for f in found if said in f.what and f.fix], found


def test_what_a_setting_names_is_found_and_a_key_on_its_way_out_is_not(dev, world, client) -> None:
    client("ec2").create_key_pair(KeyName="mine")
    key = client("kms").create_key()["KeyMetadata"]
    stack = dev("nodes.sshKeyName=mine", f"kms.keyArn={key['Arn']}")
    found = doctor.examine(stack, world())
    assert {"nodes.sshKeyName mine", f"kms.keyArn {key['Arn']}"} <= set(levels(found, "ok"))
    client("kms").schedule_key_deletion(KeyId=key["KeyId"])
    found = doctor.examine(stack, world())
    assert f"kms.keyArn {key['Arn']} is PendingDeletion" in levels(found, "bad")


def test_a_region_that_is_off_is_named_with_those_that_are_on(dev, world) -> None:
    found = doctor.examine(dev("aws:region=me-central-9"), world())
    assert any("me-central-9 is not enabled in this account" in what for what in levels(found, "bad"))


def test_the_stacks_own_resources_do_not_count_twice(dev, world, client) -> None:
    own = [{"Key": "Project", "Value": "paddle-training"}, {"Key": "Stack", "Value": "dev"}]
    tagged = [{"ResourceType": "vpc", "Tags": own}]
    client("ec2").create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged)
    found = doctor.examine(dev(), world(**{"service-quotas": Quotas(L_F678F1CE=2.0)}))
    assert "VPCs: 1 used by others, 1 needed, quota 2" in levels(found, "ok")


def test_what_it_may_not_look_at_is_said_and_stops_nothing(dev, world) -> None:
    found = doctor.examine(dev(), world(iam=Iam(error=refused("SimulatePrincipalPolicy"))))
    assert levels(found, "unknown") == ["actions: not checked: AWS denied SimulatePrincipalPolicy"]
    assert levels(found, "bad") == []


def test_an_image_that_the_registry_has_is_fine(dev, world, client) -> None:
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
        assert f"image {image}" in levels(doctor.examine(dev(f"image={image}"), world()), "ok")
