"""Target aws with mocks: DNS records."""

from __future__ import annotations

from .recording_mocks import everything


def test_dns_records_point_to_resources() -> None:
    records = {a.inputs["name"]: a.inputs for a in everything().of("route53/record:Record")}
    assert records["efs.paddle.internal"]["records"] == ["fs-1.efs.us-west-2.amazonaws.com"]
    assert records["api.paddle.internal"]["records"] == ["ABC.gr7.us-west-2.eks.amazonaws.com"]
    assert records["paddle.example.com"]["zoneId"] == "Z1"
    assert records["paddle.example.com"]["records"] == ["ABC.gr7.us-west-2.eks.amazonaws.com"]
    assert everything().one("Zone").inputs["vpcs"] == [{"vpcId": "paddle-training-dev-vpc-id"}]
