"""The generic model of all resource types: names, tags, checks, differences, outputs and lifecycle."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from botocore.exceptions import BotoCoreError, ClientError

from testkit.aws_emulator import (
    eks_handlers,
    input_checks,
    moto_handlers,
    sdk_schema,
)
from testkit.aws_emulator.account import Account, AwsError, Record, Target
from testkit.aws_emulator.handler import HANDLERS, Handler, MotoCloud, handler_of
from testkit.aws_emulator.property_values import UNKNOWN, Props, all_strings, diff_values, has_unknown

MODULES = (eks_handlers, moto_handlers)  # importing them fills HANDLERS

_TABLE = Path(__file__).with_name("resource_types.yaml").read_text(encoding="utf-8")
TYPES: dict[str, Props] = yaml.safe_load(_TABLE)
"""The rows of resource_types.yaml, which explains their fields."""

# Inputs that AWS does not return, so an import cannot read them.
UNREADABLE = ("deletionWindowInDays", "forceDelete", "forceDestroy")

# Services whose name in ARNs is not that of the module of pulumi_aws.
_SERVICES = {"efs": "elasticfilesystem", "cloudwatch": "logs", "vpc": "ec2"}

_GONE = re.compile(r"not.?found|NoSuch|does not exist", re.IGNORECASE)


def is_replaced(kind: str, path: str) -> bool:
    """Return whether a change of the input at `path` replaces a resource of the type `kind`."""
    plain = re.sub(r"\[\d+\]", "", path)
    fields = [
        "region",
        *TYPES.get(kind, {}).get("replaced", ()),
    ]  # TF region: of every resource, since version 6
    return any(plain == field or plain.startswith(f"{field}.") for field in fields)


@dataclass
class Difference:
    """The difference between two versions of a resource's inputs.

    `paths` maps the path of each changed input to `add`, `delete` or `update`. `replaces` are the paths whose
    change requires a new resource. `delete_first` says whether the old one is deleted before the new one is created.
    """

    paths: dict[str, str] = field(default_factory=dict)
    replaces: list[str] = field(default_factory=list)
    delete_first: bool = False


class Model:
    """All operations on the resources of one account, for one configured provider."""

    def __init__(
        self, account: Account, region: str, default_tags: dict[str, str], project: Path | None = None
    ) -> None:
        self.cloud = MotoCloud(account, region, project)
        self.account = account
        self.default_tags = default_tags

    # --- checks and previews

    def check(
        self, kind: str, name: str, old: Props, new: Props, seed: bytes
    ) -> tuple[Props, list[input_checks.Failure]]:
        """Return (the inputs with a generated name and the default tags added, their invalid fields).

        `old` are the inputs in the state, whose generated name is kept; `seed` are random bytes for a new name.
        """
        shape = sdk_schema.read_shape(kind)
        inputs = dict(new)
        found = input_checks.find_failures(shape, inputs)
        about = TYPES.get(kind, {})
        naming = about.get("name")
        prefix = inputs.get(f"{naming}Prefix")
        if naming and inputs.get(naming) is None:
            if naming in old.get("__defaults", []) and (
                prefix is None or old.get(f"{naming}Prefix") == prefix
            ):
                inputs[naming] = old[naming]
            else:
                ending = seed.hex()[:7] or uuid.uuid4().hex[:7]
                start = (
                    f"{'alias/' if kind.startswith('aws:kms') else ''}{name}-" if prefix is None else prefix
                )
                inputs[naming] = UNKNOWN if has_unknown(start) else f"{start}{ending}"
            inputs["__defaults"] = [naming]
        else:
            inputs["__defaults"] = []
        name_given = str(inputs.get(naming) or "") if naming else ""
        if len(name_given) > (longest := about.get("longest", len(name_given))):
            found.append((naming, f"{name_given} is longer than the {longest} characters of {kind}"))
        if (
            "tags" in shape.inputs
            and "tagsAll" in shape.state
            and not has_unknown(inputs.get("tags") == UNKNOWN)
        ):
            tags = self.default_tags | (inputs.get("tags") or {})
            if tags:
                inputs["tags"] = tags
        return inputs, found

    def diff(self, kind: str, old: Props, new: Props, ignored: list[str], region: str | None) -> Difference:
        """Return the difference between the old inputs and the new ones."""
        paths = {
            path: what
            for path, what in diff_values(_plain(old), _plain(new)).items()
            if not any(path == skip or path.startswith((f"{skip}.", f"{skip}[")) for skip in ignored)
        }
        if region and (new.get("region") or self.cloud.region) != region:
            paths["region"] = "update"
        replaces = [path for path in paths if is_replaced(kind, path)]
        naming = TYPES.get(kind, {}).get("name")
        given = naming is not None and naming not in new.get("__defaults", [])
        return Difference(paths, replaces, bool(replaces) and given and old.get(naming) == new.get(naming))

    def preview(self, kind: str, new: Props) -> Props:
        """Return the outputs in the preview of a creation: everything that the program does not set is unknown."""
        unknown: Props = dict.fromkeys(sdk_schema.read_shape(kind).state, UNKNOWN)
        given = self._outputs(kind, new)
        for name, parts in TYPES.get(kind, {}).get("filled", {}).items():
            if isinstance(given.get(name), dict):
                given[name] = dict.fromkeys(parts, UNKNOWN) | given[name]
        return unknown | given

    def preview_update(self, kind: str, old: Props, new: Props, state: Props) -> Props:
        """Return the outputs in the preview of an update; `state` are the present outputs."""
        later = dict.fromkeys(handler_of(kind).volatile if old != new else (), UNKNOWN)
        return self._overlay(kind, state, old, new) | later

    # --- lifecycle

    def create(self, kind: str, urn: str, p: Props) -> tuple[str, Props]:
        """Create a resource and save it."""
        self.account.enter(kind, "create", self.targets(kind, p, p))
        handler = handler_of(kind)
        rid, made = self._call("creating", kind, "", lambda: handler.create(self.cloud, _plain(p)))
        self._update_tags(handler, rid, {}, p)
        outputs = self._computed(kind, rid) | self._outputs(kind, p) | made
        self.account.put(Record(kind, rid, urn, p, outputs, handler.owned(outputs)))
        return rid, outputs

    def read(self, kind: str, urn: str, rid: str, known: Props) -> tuple[Props, Props] | None:
        """Return the present (inputs, outputs) of a resource, or None if it does not exist.

        `known` are its inputs in Pulumi's state; empty when Pulumi imports the resource.
        """
        record, handler = self.account.get(kind, rid), handler_of(kind)
        now = record.inputs if record else {}
        self.account.enter(kind, "read", self.targets(kind, now, now) if record else ())
        if record is None and (known or kind not in HANDLERS):
            return None
        before = dict(record.inputs if record else {})
        if not known:
            before = {key: value for key, value in before.items() if key not in UNREADABLE}
        try:
            seen = handler.read(self.cloud, rid, before)
        except (ClientError, AwsError) as error:
            if _GONE.search(str(error)):
                return None
            raise AwsError(f"reading {kind} ({rid}): {error}") from error
        if seen is None:
            return None
        inputs = before | _find_changed_inputs(seen, before, imported=record is None)
        outputs = self._overlay(kind, record.outputs if record else self._computed(kind, rid), before, inputs)
        urn = record.urn if record else urn
        self.account.put(Record(kind, rid, urn, inputs, outputs, handler.owned(outputs)))
        return inputs, outputs

    def update(self, kind: str, urn: str, rid: str, old: Props, new: Props) -> Props:
        """Change a resource in place."""
        record = self.account.get(kind, rid)
        own = record.inputs if record else {}
        self.account.enter(kind, "update", self.targets(kind, own, new) if record else ())
        if record is None:
            raise AwsError(
                f"updating {kind} ({rid}): ResourceNotFound: it does not exist; run `pulumi refresh`"
            )
        handler = handler_of(kind)
        changed = self._call(
            "updating", kind, rid, lambda: handler.update(self.cloud, rid, _plain(old), _plain(new))
        )
        self._update_tags(handler, rid, old, new)
        outputs = self._overlay(kind, record.outputs, old, new) | changed
        self.account.put(Record(kind, rid, urn, new, outputs, record.owned))
        return outputs

    def delete(self, kind: str, urn: str, rid: str, p: Props) -> None:
        """Delete a resource unless another one refers to it; a missing one counts as deleted."""
        record = self.account.get(kind, rid)
        own = record.inputs if record else {}
        self.account.enter(kind, "delete", self.targets(kind, own, own) if record else ())
        if record is None:
            return
        users = self.account.users_of(record)
        if users:
            names = ", ".join(f"{user.type} {user.id}" for user in users[:3])
            raise AwsError(
                f"deleting {kind} ({rid}): DependencyViolation: it has a dependent object: {names}"
            )
        handler = handler_of(kind)
        try:
            self._call("deleting", kind, rid, lambda: handler.delete(self.cloud, rid, _plain(record.inputs)))
        except AwsError as error:
            if not _GONE.search(str(error)):
                raise
        self.account.drop(kind, rid)

    def targets(self, kind: str, own: Props, asked: Props) -> list[Target]:
        """Return what a request on a resource concerns: the resource, the ones that it refers to, a network interface.

        AWS compares each action with the resource that it is about. Here an action is allowed if it is allowed on one
        of them, so a request is denied only if none of them is the caller's.

        Args:
            own: inputs of the resource; those of the request for a new one, whose tags AWS sets first.
            asked: inputs of the request.
        """
        service = _service(kind)
        common = {f"aws:RequestTag/{key}": str(text) for key, text in (asked.get("tags") or {}).items()}
        if service != "eks":  # "Encrypt Kubernetes secrets with KMS" in the EKS user guide
            common["kms:GrantIsForAWSResource"] = "true"
        if service != "kms":
            common["kms:ViaService"] = f"{service}.{self.cloud.region}.amazonaws.com"
        if kind == "aws:route53/record:Record":
            common["route53:ChangeResourceRecordSetsNormalizedRecordNames"] = str(own["name"])
            common["route53:ChangeResourceRecordSetsRecordTypes"] = str(own["type"])

        def target(arn: str, tags: Props | None) -> Target:
            return arn, common | {f"aws:ResourceTag/{key}": str(text) for key, text in (tags or {}).items()}

        found = [target(self._arn(kind, own), own.get("tags"))]
        names = all_strings({key: value for key, value in own.items() if key not in ("tags", "name")})
        found += [
            target(self._arn(other.type, other.inputs), other.inputs.get("tags"))
            for other in self.account.all()
            if {other.id, other.outputs.get("arn")} & names
        ]
        return [*found, target(self.cloud.arn("ec2", "network-interface/eni-1"), None)]

    def _arn(self, kind: str, p: Props) -> str:
        """Return the ARN of a resource, with its name where the service's ARNs have one."""
        name = p.get("bucket") if kind.startswith("aws:s3") else p.get("name")
        if kind.startswith("aws:s3"):
            return f"arn:aws:s3:::{name}"
        service = _service(kind)
        return self.cloud.arn(
            service, f"{TYPES.get(kind, {}).get('arn', '')}{name}", region=service != "budgets"
        )

    def _update_tags(self, handler: Handler, rid: str, old: Props, new: Props) -> None:
        before, after = old.get("tags") or {}, new.get("tags") or {}
        added = {key: value for key, value in after.items() if before.get(key) != value}
        removed = [key for key in before if key not in after]
        if added:
            handler.set_tags(self.cloud, rid, added)
        if removed:
            handler.remove_tags(self.cloud, rid, removed)

    # --- outputs

    def _outputs(self, kind: str, inputs: Props) -> Props:
        shape = sdk_schema.read_shape(kind)
        outputs = _plain(inputs)
        if "tagsAll" in shape.state:
            outputs["tagsAll"] = dict(inputs["tags"]) if isinstance(inputs.get("tags"), dict) else {}
        if "region" in shape.state:
            outputs["region"] = inputs.get("region") or self.cloud.region
        return outputs

    def _overlay(self, kind: str, outputs: Props, old: Props, new: Props) -> Props:
        """Return `outputs` after a change of the inputs from `old` to `new`.

        Fields that AWS itself adds to an object (`filled` of its type) keep their values in `outputs`.
        """
        later = self._outputs(kind, new)
        for name, parts in TYPES.get(kind, {}).get("filled", {}).items():
            if isinstance(later.get(name), dict):
                kept = {part: (outputs.get(name) or {}).get(part) for part in parts}
                later[name] = {key: value for key, value in kept.items() if value is not None} | later[name]
        removed = old.keys() - later.keys()
        return {key: value for key, value in outputs.items() if key not in removed} | later

    def _computed(self, kind: str, rid: str) -> Props:
        """Return the output `arn` as most services form it; handlers return that of the others."""
        if "arn" not in sdk_schema.read_shape(kind).computed:
            return {}
        label = re.sub(r"(?<!^)(?=[A-Z])", "-", kind.rpartition(":")[2]).lower()
        return {"arn": self.cloud.arn(_service(kind), f"{label}/{rid}")}

    @staticmethod
    def _call(doing: str, kind: str, rid: str, call: Any) -> Any:
        try:
            return call()
        except (ClientError, BotoCoreError, AwsError, KeyError, ValueError) as error:
            where = f" ({rid})" if rid else ""
            text = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise AwsError(f"{doing} {kind}{where}: {text}") from error


def _service(kind: str) -> str:
    """Return the name of a type's service in ARNs and IAM actions."""
    module = kind.split(":")[1].partition("/")[0]
    return _SERVICES.get(module, module)


def _plain(p: Props) -> Props:
    return {key: value for key, value in p.items() if not key.startswith("__") and value is not None}


def _find_changed_inputs(seen: Props, before: Props, *, imported: bool) -> Props:
    """Return the inputs, by name, whose value in the cloud (`seen`) differs from the one in the state (`before`).

    An input that the program never set is left out, because its value in the cloud is a default of AWS and no
    manual change. Tags are compared even if the program set none. With `imported`, all inputs are compared.
    """
    changed: Props = {}
    for name, value in seen.items():
        asked = name in before or imported or (name == "tags" and value)
        if asked and diff_values(before.get(name), value):
            changed[name] = value
    return changed
