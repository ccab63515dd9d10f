"""Target aws with mocks: the Helm release of the training, its values and its Kubernetes provider."""

from __future__ import annotations

import json

from infra import eks_kubeconfig

from .recording_mocks import AWS, aws_stack, everything


def test_release_without_image_is_not_created() -> None:
    made = aws_stack(image="")
    assert not made.of("Release")
    made.one("NodeGroup")
    made.one("Repository")


def test_release_values_contain_stack_outputs() -> None:
    values = everything().one("Release").inputs["values"]
    assert values["image"] == AWS["image"]
    assert values["storage"]["efsCsi"]["fileSystemId"] == "paddle-training-dev-efs-id"
    assert values["storage"]["efsCsi"]["accessPointId"] == "paddle-training-dev-pods-id"
    assert values["data"]["source"] == "s3://paddle-training-dev-artifacts/sources/x"


def test_release_provider_uses_external_name_and_keeps_unreachable_resources() -> None:
    provider = everything().one("pulumi:providers:kubernetes")
    config = json.loads(provider.inputs["kubeconfig"])
    server = config["clusters"][0]["cluster"]
    assert server["server"] == "https://paddle.example.com"
    assert server["tls-server-name"] == "ABC.gr7.us-west-2.eks.amazonaws.com"
    assert config["users"][0]["user"]["exec"]["args"][:4] == [
        "eks",
        "get-token",
        "--cluster-name",
        "paddle-training-dev",
    ]
    # A refresh from a network that cannot reach the API would remove namespace and release from the state.
    assert "deleteUnreachable" not in provider.inputs
    assert provider.inputs["clusterIdentifier"] == "paddle-training-dev"


def test_eks_kubeconfig_contains_no_secret() -> None:
    text = eks_kubeconfig.build_kubeconfig("https://ABC.eks", "Q0E=", "dev", "us-west-2")
    user = json.loads(text)["users"][0]["user"]
    assert set(user) == {"exec"}
    assert user["exec"]["command"] == "aws"
    assert "tls-server-name" not in text
