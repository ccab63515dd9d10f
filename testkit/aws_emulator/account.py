"""One emulated account: its description, existing resources, calls so far and faults to inject.

Several engine runs and stacks use an account at the same time, so its state is a SQLite file.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testkit.aws_emulator import authorization
from testkit.aws_emulator.property_values import Props, all_strings

_SCHEMA = """
create table if not exists resources (
  type text, id text, urn text, inputs text, outputs text, owned text, primary key (type, id));
create table if not exists calls (type text, operation text);
create table if not exists faults (
  number integer primary key, type text, operation text, nth integer, message text);
"""


Target = tuple[str, dict[str, str]]
"""The ARN of a resource, and the condition keys of a request on it."""


class AwsError(Exception):
    """A call that AWS rejects; the text is shown to the user."""


@dataclass(frozen=True)
class Record:
    """An existing resource of the account.

    `type` is its Pulumi type, `id` its id in AWS, `urn` its name in the Pulumi stack. `owned` are ids of further
    objects that AWS created with it, such as the security group of an EKS cluster.
    """

    type: str
    id: str
    urn: str
    inputs: Props
    outputs: Props
    owned: list[str]


@dataclass(frozen=True)
class Situation:
    """What a test changes in an account, or what AWS changes over time.

    Attributes:
        caller: role or user of the caller, such as `role/Admin`, which need not be an administrator of a cluster.
        late_logs: whether the log group of a control plane is created again after its deletion, as EKS does.
        image_date: date (YYYYMMDD) in the name of the newest machine image of nodes.
        node_quota: the quota of the account, counted in nodes instead of vCPU.
        addon_release: second number of AWS' default version of every add-on.
    """

    caller: str = "role/Admin"
    late_logs: bool = False
    image_date: str = "20261101"
    node_quota: int = 1000
    addon_release: int = 0


class Account:
    """An emulated account, whose state is in `folder`: resources, calls and faults. `Account.create` creates it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about = json.loads((folder / "account.json").read_text(encoding="utf-8"))
        self.number: str = self.about["number"]
        self.moto: str = self.about["moto"]

    @classmethod
    def create(cls, folder: Path, *, moto: str, cluster: dict[str, str] | None = None) -> Account:
        """Create an empty account.

        Args:
            moto: address of the moto server, `http://127.0.0.1:<port>`.
            cluster: `server` and `ca` (base64) of every emulated EKS cluster, and `tokenFile`, the file with
            the token that `aws eks get-token` returns.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # Roles that exist before the stack, as in every real account.
        roles = [f"arn:aws:iam::123456789012:role/{name}" for name in ("Admin", "preview")]
        about = {"number": "123456789012", "moto": moto, "cluster": cluster or {}, "principals": roles}
        (folder / "account.json").write_text(json.dumps(about), encoding="utf-8")
        account = cls(folder)
        with account._database() as database:
            database.executescript(_SCHEMA)
        return account

    @classmethod
    def from_environment(cls) -> Account:
        """Return the account in the folder of `AWS_EMULATOR_DIR`."""
        return cls(Path(os.environ["AWS_EMULATOR_DIR"]))

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.folder / "state.sqlite", timeout=60)) as database, database:
            database.execute("pragma synchronous = off")  # no test outlives a crash of the machine
            yield database

    # --- resources

    def put(self, record: Record) -> None:
        """Save a new or changed resource."""
        columns = (record.inputs, record.outputs, record.owned)
        with self._database() as database:
            database.execute(
                "insert or replace into resources values (?,?,?,?,?,?)",
                (record.type, record.id, record.urn, *map(json.dumps, columns)),
            )

    def get(self, kind: str, rid: str) -> Record | None:
        """Return an existing resource, or None."""
        return next((record for record in self.all(kind) if record.id == rid), None)

    def all(self, kind: str | None = None) -> list[Record]:
        """Return all existing resources, optionally of one type."""
        with self._database() as database:
            rows = database.execute(
                "select type, id, urn, inputs, outputs, owned from resources where type = coalesce(?, type)"
                " order by rowid",
                (kind,),
            ).fetchall()
        return [Record(row[0], row[1], row[2], *map(json.loads, row[3:])) for row in rows]

    def drop(self, kind: str, rid: str) -> None:
        """Remove a resource from the state. Called by a test, it simulates a manual deletion."""
        with self._database() as database:
            database.execute("delete from resources where type = ? and id = ?", (kind, rid))

    def users_of(self, record: Record) -> list[Record]:
        """Return the resources whose inputs contain this one's id or ARN, or an id that was created with it.

        Tags and a resource's own `name` are not references. A user-chosen id (the name of a role or bucket)
        counts only in a field that refers to this type.
        """
        names = {record.id, record.outputs.get("arn"), *record.owned} - {None, ""}
        chosen = record.id in all_strings(record.inputs)
        found = []
        for other in self.all():
            if (other.type, other.id) == (record.type, record.id):
                continue
            inputs = {key: value for key, value in other.inputs.items() if key not in ("tags", "name")}
            if chosen:
                hints = _hints(record.type)
                by_name = {
                    key: value for key, value in inputs.items() if any(h in key.lower() for h in hints)
                }
                used = (all_strings(by_name) & names) | (all_strings(inputs) & (names - {record.id}))
            else:
                used = all_strings(inputs) & names
            if used:
                found.append(other)
        return found

    def grant(self, policies: Iterable[str]) -> None:
        """Allow the caller only what these IAM documents allow; before the first call everything is allowed."""
        text = json.dumps(authorization.statements(policies))
        (self.folder / "granted.json").write_text(text, encoding="utf-8")

    def authorize(self, actions: Iterable[str], resource: str = "", **context: str) -> None:
        """Raise the error of AWS if the caller lacks a right.

        Args:
            resource: ARN of the resource; if empty, resources in the policies are not compared.
            context: condition keys of the service `iam`, without their prefix.
        """
        self.authorize_targets(actions, [(resource, {f"iam:{key}": value for key, value in context.items()})])

    def authorize_targets(self, actions: Iterable[str], targets: Sequence[Target]) -> None:
        """Raise the error of AWS if the caller may perform an action on none of the resources `targets`."""
        try:
            granted = json.loads((self.folder / "granted.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        missing = [
            each
            for each in actions
            if not any(authorization.is_allowed(granted, each, arn, keys) for arn, keys in targets)
        ]
        if missing:
            resource = targets[0][0]
            on = f" on resource: {resource}" if resource else ""
            listed = ", ".join(sorted(missing))
            raise AwsError(f"AccessDenied: the caller is not authorized to perform: {listed}{on}")

    # --- faults

    @property
    def situation(self) -> Situation:
        """Return what the tests changed in the account."""
        path = self.folder / "situation.json"
        return Situation(**json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def change(self, **fields: Any) -> None:
        """Change fields of the `situation`."""
        text = json.dumps(asdict(replace(self.situation, **fields)))
        (self.folder / "situation.json").write_text(text, encoding="utf-8")

    @property
    def caller(self) -> str:
        """Return the ARN of the caller's role or user, with its path."""
        return f"arn:aws:iam::{self.number}:{self.situation.caller}"

    def fail(
        self, kind: str, operation: str, *, nth: int = 1, message: str = "InternalError: injected"
    ) -> None:
        """Make the nth call from now of `create`, `update`, `delete` or `read` on this type fail, once."""
        with self._database() as database:
            query = "select count(*) from calls where type = ? and operation = ?"
            number = database.execute(query, (kind, operation)).fetchone()[0] + nth
            query = "insert into faults (type, operation, nth, message) values (?,?,?,?)"
            database.execute(query, (kind, operation, number, message))

    def upgrade_control_plane(self, cluster: str, version: str) -> None:
        """Upgrade a control plane, as AWS does at the end of standard support."""
        record = self.get("aws:eks/cluster:Cluster", cluster)
        assert record is not None, cluster
        self.put(replace(record, outputs=record.outputs | {"version": version}))

    def enter(self, kind: str, operation: str, targets: Sequence[Target] = ()) -> None:
        """Record a call of `operation` on the type `kind` before it is carried out, and apply faults to it.

        `targets` are the resources of the request, with its condition keys; without any, resources are not compared.
        The handlers of IAM's types compare the roles of its actions. A call for which the caller lacks a right is not
        recorded.

        Raises:
            AwsError: the caller lacks a right, a test injected a failure of this call, or permissions.yaml has no row
                for `kind`.
        """
        actions = required_actions("every preview" if operation == "invoke" else kind)
        compared = {action for action in actions if targets and not action.startswith("iam:")}
        self.authorize_targets(compared, targets)
        self.authorize(actions - compared)
        with self._database() as database:
            database.execute("begin immediate")
            database.execute("insert into calls values (?,?)", (kind, operation))
            query = "select count(*) from calls where type = ? and operation = ?"
            number = database.execute(query, (kind, operation)).fetchone()[0]
            query = "select message from faults where type = ? and operation = ? and nth = ?"
            fault = database.execute(query, (kind, operation, number)).fetchone()
        if fault is not None:
            raise AwsError(fault[0])


@cache
def _permissions() -> dict[str, dict[str, str]]:
    text = Path(__file__).with_name("permissions.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, str]] = yaml.safe_load(text)
    return loaded


def required_actions(kind: str) -> set[str]:
    """Return the IAM actions that a resource type, or another row of permissions.yaml, requires.

    Raises:
        AwsError: the file has no such row.
    """
    try:
        row = _permissions()[kind]
    except KeyError:
        raise AwsError(
            f"permissions.yaml has no row for {kind}. Fix: add one with the IAM actions that it requires"
        ) from None
    return {f"{service}:{name}" for service, names in row.items() for name in names.split()}


def _hints(kind: str) -> tuple[str, ...]:
    """Return words in the names of fields that refer to this type: `aws:iam/role:Role` → `role`."""
    name = kind.rpartition(":")[2].lower()
    return {
        "placementgroup": ("placement", "groupname"),
        "loggroup": ("loggroup",),
        "instanceprofile": ("instanceprofile",),
    }.get(name, (name,))
