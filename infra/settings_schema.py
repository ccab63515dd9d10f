"""The settings as rows of documentation and as the `config:` section of Pulumi.yaml.

`pulumi config` and editors read that section: keys, types, descriptions and defaults. Pulumi has no way to
declare the keys inside an object. `python -m infra.settings_schema` writes the section.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

from infra.settings import Settings

PULUMI_YAML = Path(__file__).resolve().parent.parent / "Pulumi.yaml"
_MARKER = "# The section below is written by `python -m infra.settings_schema`.\n"


def describe_settings() -> Iterator[tuple[str, str, Any]]:
    """Yield key, description and default (as a value for YAML) of each top-level setting."""
    defaults = Settings().model_dump(mode="json", by_alias=True)
    for name, field in Settings.model_fields.items():
        text = field.description or getattr(field.annotation, "__doc__", None) or ""
        yield to_camel(name), " ".join(text.split()), defaults[to_camel(name)]


def pulumi_config() -> dict[str, dict[str, Any]]:
    """Return the `config:` section. Every key has a default: Pulumi treats a key without one as required."""
    properties = Settings.model_json_schema()["properties"]
    section = {}
    for key, description, default in describe_settings():
        kind = properties[key].get("type", "object")  # a section is a reference to its own schema
        items = {"items": {"type": properties[key]["items"]["type"]}} if kind == "array" else {}
        section[key] = {"type": kind, **items, "description": description, "default": default}
    return section


def pulumi_yaml() -> str:
    """Return the text of Pulumi.yaml with the generated section."""
    text = PULUMI_YAML.read_text(encoding="utf-8").partition(_MARKER)[0] + _MARKER
    return text + yaml.safe_dump({"config": pulumi_config()}, sort_keys=False, width=100)


if __name__ == "__main__":
    PULUMI_YAML.write_text(pulumi_yaml(), encoding="utf-8")
