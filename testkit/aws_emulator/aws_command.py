"""The aws command of an emulated account: `eks get-token`, nothing else."""

from __future__ import annotations

import argparse
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
    path = account.about["cluster"].get("tokenFile")
    if not path:
        raise AwsError(
            "this emulated account has no cluster token. Fix: pass one to Account.create(cluster={'tokenFile': …})"
        )
    return Path(path).read_text(encoding="utf-8").strip()


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
    """Run one command line; the exit code is 254 for a rejected call, as of the real command."""
    parser = argparse.ArgumentParser(prog="aws")
    parser.add_argument("--region")
    parser.add_argument("--profile")
    parser.add_argument("--output", choices=["json"], default="json")
    services = parser.add_subparsers(dest="service", required=True)
    get_token = services.add_parser("eks").add_subparsers(dest="call", required=True).add_parser("get-token")
    get_token.add_argument("--cluster-name", "--cluster-id", dest="name", required=True)
    for name in ("--region", "--output", "--profile", "--role-arn"):
        get_token.add_argument(name)
    wanted = parser.parse_args(arguments)
    account = Account.from_environment()
    try:
        answer = _get_token(account, wanted.name)
    except AwsError as error:
        sys.stderr.write(f"An error occurred: {error}\n")
        return 254
    sys.stdout.write(json.dumps(answer, indent=4) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
