"""List what is left in an account: resources of the generic model, and of moto beyond a new account."""

from __future__ import annotations

import jmespath

from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import TABLE, MotoCloud, run_calls


def list_leftovers(account: Account, region: str) -> list[str]:
    """Return one line, `kind id`, for each existing resource; an empty list means an empty account.

    Not included is what `.left` of moto_calls.yaml leaves out, and a KMS key with scheduled deletion, which costs
    nothing.
    """
    cloud = MotoCloud(account, region)
    found = {f"{record.type} {record.id}" for record in account.all()}
    for kind, row in TABLE[".left"].items():
        call = {name: text for name, text in row.items() if name != "ids"}
        ids = jmespath.search(row["ids"], run_calls(cloud, [call], {})["answer"])
        found |= {f"{kind} {id_}" for id_ in ids}
    kms = cloud.client("kms")
    keys = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"] for key in kms.list_keys()["Keys"]]
    for key in keys:
        if key["KeyManager"] == "CUSTOMER" and key["KeyState"] != "PendingDeletion":
            found.add(f"key {key['KeyId']}")
    return sorted(found)
