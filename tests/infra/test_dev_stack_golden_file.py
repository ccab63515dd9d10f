"""Everything that the stack `dev` registers, compared with the golden file `golden/dev.txt`.

`GOLDEN=write python -m pytest tests/infra/test_dev_stack_golden_file.py` updates the file after an intended
change; the pull request then shows the difference. Do not accept a difference that gives up one of these:

- network: DNS support and host names in the VPC; the first zones by name, although AWS returns them in any order; no
  public addresses for nodes; the NAT gateway in a public subnet, and a route to it from each private one; the free
  endpoint of S3 in all private route tables;
- key: rotates, and encrypts Secrets, file system, bucket, registry and disks; its policy names no role, because KMS
  rejects roles that a new account lacks;
- file system: elastic; NFS only from the cluster's security group, one mount target in each zone, and uid and gid of
  the pods in the access point;
- bucket: public access blocked in all four ways, requests without TLS denied, versions kept; the pods' role can use
  only its prefixes, and write only models;
- registry: immutable tags, and images scanned when they are pushed;
- cluster: private endpoint, access only by access entries, standard support, logs with retention, network policy
  (`vpc-cni`), explicit versions; the kubeconfig contains no secret;
- EFS driver: a role of its own, and small requests for its six idle containers;
- nodes: IMDSv2 with one hop, a launch template without security groups (they would replace the cluster's), and neither
  diskSize nor remoteAccess, which EKS rejects with a launch template.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from infra import target_aws
from infra.chart_values import read_stack_inputs
from infra.settings import load_settings

from .recording_mocks import ROOT, Recorder, config, record

GOLDEN = Path(__file__).parent / "golden" / "dev.txt"
# Chart values, the chart's digest and the stack's tags have their own tests; tags that Kubernetes reads are shown.
HIDDEN = {"tags", "tagSpecifications", "volumeTags", "values"}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        if value.startswith("{"):
            return _plain(json.loads(value))
        return re.sub(r"[0-9a-f]{64}", "<digest>", value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | float | bool) or value is None else type(value).__name__


def _text(recorder: Recorder) -> str:
    blocks = []
    for args in sorted(recorder.resources, key=lambda args: (args.typ, args.name)):
        tags = {key: value for key, value in (args.inputs.get("tags") or {}).items() if "/" in key}
        shown = {key: value for key, value in args.inputs.items() if key not in HIDDEN}
        inputs = _plain(shown | ({"tags": tags} if tags else {}))
        body = yaml.safe_dump(inputs, sort_keys=True, width=108, allow_unicode=True) if inputs else ""
        blocks.append(f"+ {args.typ}  {args.name}\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    return "\n".join(blocks)


def test_dev_stack_matches_golden_file() -> None:
    written = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())["config"]
    keys = {
        key.removeprefix("paddle-training:"): value for key, value in written.items() if key != "aws:region"
    }
    # With an image, so that there is a release; without uploads, whose files are not in the repository.
    chosen = load_settings(config(**{**keys, "image": "registry/launcher@sha256:1", "artifacts": {}}))
    seen = _text(
        record(lambda: target_aws.create_aws_stack(read_stack_inputs(chosen, "paddle-training", "dev", ROOT)))
    )
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(seen, encoding="utf-8")
    golden = GOLDEN.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        golden.splitlines(), seen.splitlines(), "golden", "now", lineterm="", n=2
    )
    assert seen == golden, "\n".join(difference)
