"""Read a stack's configuration into `Settings`, and report every mistake in one `SettingsError`.

The configuration comes from the engine, or from `Pulumi.<stack>.yaml` (`read_stack_config`).
"""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from infra.chart_values import merge_values, read_yaml
from infra.setting_types import Help
from infra.settings import Settings
from infra.settings_errors import PROJECT, Problem, SettingsError, setting_problem
from infra.settings_rules import secret_problems, settings_problems

_TEXT_KEYS = {"target", "compute", "image"}
# Spellings of on and off in other tools and in YAML 1.1.
_COMPUTE_ALIASES = {"true": "on", "false": "off"}


def read_stack_config(folder: Path, stack: str, changes: Sequence[str] = ()) -> dict[str, str]:
    """Return `namespace:key` → text of a stack's file, with `changes` such as `nodes.desired=1` applied.

    Encrypted values of other namespaces, such as `aws`, are omitted.

    Raises:
        SettingsError: the file does not exist or is not YAML, a setting is encrypted, or a change has no `=`.
    """
    stacks = sorted(path.name.split(".")[1] for path in folder.glob("Pulumi.*.yaml"))
    if stack not in stacks:
        limit, why = f"one of {', '.join(stacks)}", f"there is no Pulumi.{stack}.yaml"
        fix = "copy Pulumi.dev.yaml, or use STACK=dev"
        raise SettingsError([Problem("STACK", stack, limit, why, fix)])
    config = read_yaml(folder / f"Pulumi.{stack}.yaml", "STACK").get("config") or {}
    found = {_with_namespace(key): value for key, value in config.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        if "" in (name, equals):
            why, fix = "a change has a key and a value", "write for example nodes.desired=1"
            raise SettingsError([Problem("SET", change, "KEY=VALUE", why, fix)])
        first, *below = name.split(".")
        value = yaml.safe_load(text)
        for key in reversed(below):
            value = {key: value}
        found = merge_values(found, {_with_namespace(first): value})
    if hidden := list(
        secret_problems((key for key, value in found.items() if _is_encrypted(value)), PROJECT)
    ):
        raise SettingsError(hidden)
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
        if not _is_encrypted(value)
    }


def _is_encrypted(value: object) -> bool:
    """Return whether a value of the stack's file contains a Pulumi secret: an object with the one key `secure`."""
    if isinstance(value, list):
        return any(map(_is_encrypted, value))
    return isinstance(value, dict) and (set(value) == {"secure"} or any(map(_is_encrypted, value.values())))


def _with_namespace(key: str) -> str:
    return key if ":" in key else f"{PROJECT}:{key}"


def load_settings(config: Mapping[str, str], project: str = PROJECT, secrets: Iterable[str] = ()) -> Settings:
    """Return the validated settings of a stack.

    Args:
        config: `namespace:key` → text (objects and lists as JSON), as the engine passes it.
        project: namespace of the stack's own keys.
        secrets: the keys of `config` that contain a Pulumi secret.

    Raises:
        SettingsError: a key is unknown, a value has the wrong type, or a rule is violated.
    """
    if hidden := list(secret_problems(secrets, project)):
        raise SettingsError(hidden)  # alone: a message about another mistake could show the secret
    settings, problems = _validate(_decode(config, project))
    # An invalid section was replaced by its defaults, so rules that involve it would report nonsense.
    invalid = {_section(problem) for problem in problems}
    between = settings_problems(settings, config.get("aws:region", ""))
    problems += [problem for problem in between if _section(problem) not in invalid]
    problems += credential_problems(config)
    if problems:
        raise SettingsError(problems)
    return settings


def _decode(config: Mapping[str, str], project: str) -> dict[str, Any]:
    """Return the settings of the namespace `project`: key without namespace → value decoded from JSON."""
    found: dict[str, Any] = {}
    for full_key, text in config.items():
        namespace, _, key = full_key.partition(":")
        if namespace != project:
            continue
        if key in _TEXT_KEYS:
            found[key] = _COMPUTE_ALIASES.get(text, text) if key == "compute" else text
            continue
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _section(problem: Problem) -> str:
    return problem.key.removeprefix(f"{PROJECT}:").partition(".")[0]


def _validate(config: Mapping[str, Any]) -> tuple[Settings, list[Problem]]:
    """Return the settings and their problems; a top-level key with a problem has its default value in the settings."""
    try:
        return Settings.model_validate_json(json.dumps(config)), []
    except ValidationError as error:
        # pydantic adds this error for a default that depends on an invalid field.
        errors = [one for one in error.errors() if one["type"] != "default_factory_not_called"]
    invalid = {error["loc"][0] for error in errors}
    # An item of a list is reported as its list, once.
    problems = {problem.key: problem for problem in (_problem(config, error) for error in errors)}
    valid = {key: value for key, value in config.items() if key not in invalid}
    return Settings.model_validate_json(json.dumps(valid)), list(problems.values())


def _problem(config: Mapping[str, Any], error: ErrorDetails) -> Problem:
    model: type[BaseModel] = Settings
    value: Any = config
    path: list[str] = []
    for part in map(str, error["loc"]):
        fields = {field.alias: field for field in model.model_fields.values()}
        path.append(part)
        key, value = ".".join(path), value[part]
        if part not in fields:
            near = difflib.get_close_matches(part, map(str, fields), n=1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            limit = f"one of {', '.join(sorted(map(str, fields)))}"
            return setting_problem(key, value, limit, "an unknown key would have no effect", fix)
        field = fields[part]
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        model = field.annotation
    in_item = len(error["loc"]) > len(path)
    wrong_type = error["type"].endswith("_type") and not in_item
    found = None if wrong_type else next(_helps(field), None)
    if found is not None:
        return setting_problem(key, value, found.limit, found.reason, found.fix)
    limit = error["msg"].removeprefix("Input should be ")
    if in_item:
        limit = f"items, each of which is {limit}"
    reason = "no other value is supported"
    if error["type"] != "literal_error":
        reason = f"{error['input']!r} is of type {type(error['input']).__name__}"
    return setting_problem(key, value, limit, reason, f"write {key} as {limit} in the stack's file")


def _helps(field: FieldInfo) -> Iterator[Help]:
    """Yield the `Help` annotations of a field's type and, for lists and mappings, of its items' types."""
    item_metadata = [getattr(item, "__metadata__", ()) for item in typing.get_args(field.annotation)]
    for metadata in (field.metadata, *item_metadata):
        yield from (one for one in metadata if isinstance(one, Help))


# Settings of the AWS provider that select its credentials; only the provider reads them.
_PROVIDER_CREDENTIALS = (
    *("profile", "accessKey", "secretKey", "token", "assumeRole", "assumeRoles", "assumeRoleWithWebIdentity"),
    *("sharedConfigFiles", "sharedCredentialsFile", "sharedCredentialsFiles"),
)


def credential_problems(config: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem for each credential in `aws:` settings; all tools take the credentials of the environment.

    A profile has its name only on the machine of one user, and the file of the stack is for all users and for CI.
    """
    for name in _PROVIDER_CREDENTIALS:
        if config.get(f"aws:{name}"):
            why = "only Pulumi's AWS provider would use it, but not `pulumi login`, kubectl and `make push`"
            fix = f"pulumi config rm aws:{name}, write a profile to ~/.aws/config, and export AWS_PROFILE=its name"
            yield Problem(f"aws:{name}", "(not shown)", "not set", why, fix)
