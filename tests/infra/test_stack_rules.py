"""The rules of rules/*.yaml: what the program registers, warns about or rejects for given settings and accounts.

Each row runs the program with mocks; rows with the same settings and account share one run. The fields of a row:

- `rule`: what holds, as one sentence.
- `settings`: changes of the settings `AWS` of recording_mocks.py, or with `base: everything` of those with all
  compatible options, or with `target: kubeconfig` of `LOCAL`. `stack`: the stack's name. `preview`: whether this is a
  preview.
- `account`: answers of functions such as `ec2/getVpc`: changes of the usual answer, or a text, which is an error.
- `running`: version of a cluster that exists, and its node group, as in `recording_mocks.mocked_account`.
- `rejects`, `fails`: pattern in the error about the settings, or in another error.
- `warns`, `silent`: patterns of some warning, and of none. `outputs`: texts in the stack's outputs.
- `has`: resource → JMESPath expression of its inputs → value.
- `names`: kind → names of all resources of this kind. `kinds`: the kinds of all resources.
- `after`, `not_after`: resource → resources that must, or must not, exist before it.
- `ignored`: resource → inputs whose changes the engine ignores. `imports`: name of a resource → id of its import.
- `retained`: kinds of the resources that a destroy keeps.
- `before`, `changes`: other settings, and resource → inputs that differ from a stack with these. Other resources that
  both stacks have do not differ.

A resource is its kind and its name without the stack's prefix, such as `NodeGroup nodes`. `NodeGroup *` are all node
groups, ordered by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jmespath
import pulumi
import pytest
import yaml
from pulumi.runtime.mocks import MockResourceArgs

from infra import naming
from infra.settings import SettingsError

from .recording_mocks import EVERYTHING, aws_stack, local_stack, mocked_account

ROWS = [
    {"file": path.stem, **row}
    for path in sorted((Path(__file__).parent / "rules").glob("*.yaml"))
    for row in yaml.safe_load(path.read_text(encoding="utf-8"))["rules"]
]
# The fields that decide what the program does.
GIVEN = ("target", "base", "settings", "stack", "account", "running", "preview")


def _decoded(value: Any) -> Any:
    """Return a value with the JSON documents in it decoded."""
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_decoded(item) for item in value]
    return _decoded(json.loads(value)) if isinstance(value, str) and value.startswith("{") else value


class Registered:
    """What the program registered for the fields `GIVEN` of a row, with a check for each of the other fields."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.warnings: list[str] = []
        self.prefix = naming.prefix("paddle-training", row.get("stack", "dev"))
        settings = (EVERYTHING if "base" in row else {}) | row.get("settings", {})
        account = mocked_account(row.get("account", {}), row.get("running", {}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pulumi.log, "warn", self.warnings.append)
            patch.setattr(pulumi.runtime, "is_dry_run", lambda: row.get("preview", False))
            if row.get("target") == "kubeconfig":
                self.made = local_stack(**settings)
                assert self.made.calls == [], "target kubeconfig must not call AWS"
            else:
                self.made = aws_stack(account=account, name=row.get("stack", "dev"), **settings)
        listed = sorted(self.made.resources, key=lambda args: args.name)
        self.resources: dict[str, MockResourceArgs] = {
            self.label(args.typ, args.name): args for args in listed if not args.typ.startswith("paddle:")
        }
        self.inputs = {label: _decoded(args.inputs) for label, args in self.resources.items()}

    def label(self, type_: str, name: str) -> str:
        """Return the kind and the short name of a resource."""
        return f"{type_.rpartition(':')[2]} {name.removeprefix(self.prefix).removeprefix('-')}".strip()

    def labels(self, wanted: str) -> list[str]:
        """Return the resource `wanted`, or all of its kind if its name is `*`."""
        kind, _, name = wanted.partition(" ")
        return [label for label in self.resources if label.split()[0] == kind] if name == "*" else [wanted]

    def has(self, expected: dict[str, Any]) -> None:
        for wanted, values in expected.items():
            found = [self.inputs[label] for label in self.labels(wanted)]
            for expression, value in values.items():
                seen = jmespath.search(expression, found if wanted.endswith(" *") else found[0])
                assert seen == value, f"{wanted}: {expression}"

    def kinds(self, expected: list[str]) -> None:
        assert [args.typ.rpartition(":")[2] for args in self.resources.values()] == expected

    def names(self, expected: dict[str, list[str]]) -> None:
        for kind, names in expected.items():
            assert [label.partition(" ")[2] for label in self.labels(f"{kind} *")] == names, kind

    def _earlier(self, label: str, others: Iterable[str]) -> tuple[set[str], set[str]]:
        wanted = {one for other in others for one in self.labels(other)}
        assert wanted, "a rule about resources that do not exist"
        assert wanted <= self.resources.keys(), "a rule about resources that do not exist"
        before = self.made.before(self.resources[label])
        return wanted, {self.label(*name.split("::")) for name in before}

    def after(self, expected: dict[str, list[str]]) -> None:
        for label, others in expected.items():
            wanted, earlier = self._earlier(label, others)
            assert wanted - earlier == set(), f"{label} must wait for these"

    def not_after(self, expected: dict[str, list[str]]) -> None:
        for label, others in expected.items():
            wanted, earlier = self._earlier(label, others)
            assert wanted & earlier == set(), f"{label} must not wait for these"

    def ignored(self, expected: dict[str, list[str]]) -> None:
        for label, names in expected.items():
            assert self.made.ignored.get(self.resources[label].name, []) == names, label

    def imports(self, expected: dict[str, str]) -> None:
        assert self.made.imports == {f"{self.prefix}-{part}": id_ for part, id_ in expected.items()}

    def retained(self, kinds: list[str]) -> None:
        assert {name.partition("::")[0].rpartition(":")[2] for name in self.made.retained} == set(kinds)

    def warns(self, patterns: list[str]) -> None:
        for pattern in patterns:
            assert [text for text in self.warnings if re.search(pattern, text)], self.warnings

    def silent(self, patterns: list[str]) -> None:
        for pattern in patterns:
            assert not [text for text in self.warnings if re.search(pattern, text)]

    def outputs(self, expected: dict[str, str]) -> None:
        for name, text in expected.items():
            assert text in self.made.outputs[name]

    def changes(self, before: Registered, expected: dict[str, list[str]]) -> None:
        changed = {
            label: sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            for label, old in before.inputs.items()
            if (new := self.inputs.get(label, old)) != old
        }
        assert changed == expected


@cache
def _run(given: str) -> Registered:
    return Registered(json.loads(given))


def _registered(row: dict[str, Any]) -> Registered:
    return _run(json.dumps({key: row[key] for key in GIVEN if key in row}, sort_keys=True))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['file']}: {row['rule']}")
def test_program_follows_the_rule(row: dict[str, Any]) -> None:
    for field, error in (("rejects", SettingsError), ("fails", Exception)):
        if field in row:
            with pytest.raises(error, match=row[field]):
                _registered(row)
            return
    made = _registered(row)
    if "changes" in row:
        made.changes(_registered({**row, "settings": row["before"]}), row["changes"])
    checks = row.keys() - {*GIVEN, "file", "rule", "before", "changes"}
    assert checks | row.keys() & {"changes"}, "a row without a check"
    for field in sorted(checks):
        getattr(made, field)(row[field])
