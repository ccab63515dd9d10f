"""Wiring of target aws, by mocks: the release and what it is given."""

from __future__ import annotations

import json

from .support import AWS, aws_stack, everything


def test_without_an_image_everything_but_the_release_is_made() -> None:
    made = aws_stack(image="")
    assert not made.of("Release")
    made.one("NodeGroup")
    made.one("Repository")


def test_the_release_gets_what_the_stacks_resources_know() -> None:
    values = everything().one("Release").inputs["values"]
    assert values["image"] == AWS["image"]
    assert values["storage"]["efsCsi"]["fileSystemId"] == "paddle-training-dev-efs-id"
    assert values["storage"]["efsCsi"]["accessPointId"] == "paddle-training-dev-pods-id"
    assert values["data"]["source"] == "s3://paddle-training-dev-artifacts/sources/x"


def test_the_releases_provider_knows_one_cluster_and_forgets_nothing_that_it_cannot_reach() -> None:
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
    # One refresh from a network that cannot reach the API would drop namespace and release from the state.
    assert "deleteUnreachable" not in provider.inputs
    assert provider.inputs["clusterIdentifier"] == "paddle-training-dev"
