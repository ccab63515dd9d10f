"""Target aws with mocks: the Helm release of the training, its values and its Kubernetes provider."""

from __future__ import annotations

import json

from .recording_mocks import AWS, aws_stack, everything


def test_release_without_image_is_not_created() -> None:
    made = aws_stack(image="")
    assert not made.of("Release")
    made.one("NodeGroup")
    made.one("PodIdentityAssociation", "pods")
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
    # A refresh from a network that cannot reach the API would remove namespace and release from the state.
    assert "deleteUnreachable" not in provider.inputs
