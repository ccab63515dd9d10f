"""The aws command of an emulated account: `eks get-token`, nothing else."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from testkit.aws_emulator.account import Account, AwsError


def _token(account: Account) -> str:
    """Return the token that the API server of the emulated clusters accepts.

    As in AWS, a caller without an access entry gets a token too, and the API server rejects it.
    """
    entries = account.all("aws:eks/accessEntry:AccessEntry")
    if not any(entry.inputs["principalArn"] == account.caller for entry in entries):
        return "of-a-caller-without-an-access-entry"
    return Path(account.about["cluster"]["tokenFile"]).read_text(encoding="utf-8").strip()


def _get_token(account: Account, name: str) -> dict[str, object]:
    if account.get("aws:eks/cluster:Cluster", name) is None:
        raise AwsError(f"ResourceNotFoundException: No cluster found for name: {name}.")
    until = (datetime.now(UTC) + timedelta(minutes=14)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "spec": {},
        "status": {"expirationTimestamp": until, "token": _token(account)},
    }


def main(arguments: list[str]) -> int:
    """Run one command line; the exit code is 254 for a rejected call and 2 for another call, as of the real command."""
    if arguments[:2] != ["eks", "get-token"]:
        sys.stderr.write("the emulated aws command has only `eks get-token`\n")
        return 2
    try:
        answer = _get_token(Account.from_environment(), arguments[arguments.index("--cluster-name") + 1])
    except AwsError as error:
        sys.stderr.write(f"An error occurred: {error}\n")
        return 254
    sys.stdout.write(json.dumps(answer, indent=4) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
