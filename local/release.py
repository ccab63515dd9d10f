"""Commands of the release workflow (.github/workflows/release.yml).

python -m local.release check v1.2.3 --registry HOST/OWNER   versions, CHANGELOG and registry are consistent
python -m local.release charts v1.2.3 …                      package the charts with Artifact Hub's annotations
python -m local.release notes v1.2.3                         print the section of the version in CHANGELOG.md
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from local import console
from local.errors import LocalError
from local.package_charts import CHARTS, NAMES, package_chart
from local.paths import CLONE

TAG = r"v(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)"
"""A semantic version after `v`. Without build metadata (`+…`), which a tag in a registry cannot have."""
REGISTRY = r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+"
PROJECTS = ("pyproject.toml", "served/pyproject.toml")
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""Kinds of a change in `artifacthub.io/changes` (Artifact Hub's documentation, "Helm annotations")."""

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, help="Commands of the release workflow."
)


def version_of(tag: str) -> str:
    """Return the version of a tag, such as `1.2.3` of `v1.2.3`.

    Raises:
        LocalError: the tag is not `v` and a semantic version.
    """
    found = re.fullmatch(TAG, tag)
    if found is None:
        raise LocalError(
            f"tag {tag!r} is not v and a semantic version. Fix: delete it and push one such as v1.2.3 or v1.2.3-rc.1"
        )
    return found[1]


def changelog_section(version: str, clone: Path = CLONE) -> str:
    """Return the section of a version in CHANGELOG.md, without its heading.

    Raises:
        LocalError: CHANGELOG.md has no such section with a date, or the section has no text.
    """
    text = (clone / "CHANGELOG.md").read_text("utf-8")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise LocalError(
            f"CHANGELOG.md has no section with the heading `## [{version}] - YYYY-MM-DD` and text. "
            f"Fix: add the date or the text to the section [{version}] if there is one; else give the section "
            "Unreleased this heading, and start an empty one above it"
        )
    return found[1].strip()


def check_versions(tag: str, registry: str, clone: Path = CLONE) -> None:
    """Check that tag, packages, charts and CHANGELOG.md have one version, and that the registry is usable.

    Raises:
        LocalError: the versions differ, CHANGELOG.md has no section of the version, or `registry` is not `HOST/FOLDER`
            in lower case.
    """
    version = version_of(tag)
    found = {
        name: tomllib.loads((clone / name).read_text("utf-8"))["project"]["version"] for name in PROJECTS
    }
    for chart in NAMES:
        file = f"charts/{chart}/Chart.yaml"
        found[file] = yaml.safe_load((clone / file).read_text("utf-8"))["version"]
    wrong = [f"{name} has version {there}" for name, there in found.items() if there != version]
    if wrong:
        raise LocalError(
            f"tag {tag}, but {', '.join(wrong)}. Fix: set the version {version} there, commit, and tag that commit"
        )
    changelog_section(version, clone)
    if not re.fullmatch(REGISTRY, registry):
        raise LocalError(
            f"the repository variable REGISTRY is {registry!r}; needed: HOST/FOLDER in lower case, without a scheme. "
            "Fix: set it on the repository's page Settings > Secrets and variables > Actions > Variables"
        )


def list_changes(section: str) -> list[dict[str, str]]:
    """Return the list items of a section of CHANGELOG.md as `artifacthub.io/changes` has them.

    The first word of an item's heading gives its kind; other headings than KINDS (`Upgrade notes`) are `changed`.
    Links become their text, because their targets are relative to the repository.
    """
    kind, changes = "changed", []
    for line in section.splitlines():
        if line.startswith("### "):
            word = line.split()[1].lower()
            kind = word if word in KINDS else "changed"
        elif line.startswith("- "):
            text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", line[2:])
            changes.append({"kind": kind, "description": text.replace("**", "")})
    return changes


def release_metadata(
    tag: str, image: str, platforms: list[str], source: str, clone: Path = CLONE
) -> dict[str, Any]:
    """Return the fields and annotations of a released chart's Chart.yaml, in addition to those in the repository.

    `image` is the launcher image with its digest, `platforms` are such as `linux/amd64`, `source` is the repository's
    URL.
    """
    version = version_of(tag)
    changes = list_changes(changelog_section(version, clone))
    images = [{"name": "paddle-training", "image": image, "platforms": platforms}]
    links = [
        {"name": "documentation", "url": f"{source}/blob/{tag}/docs/README.md"},
        {"name": "support", "url": f"{source}/issues"},
    ]
    annotations = {
        "changes": yaml.safe_dump(changes, sort_keys=False, allow_unicode=True),
        "containsSecurityUpdates": str(any(one["kind"] == "security" for one in changes)).lower(),
        "images": yaml.safe_dump(images, sort_keys=False),
        "links": yaml.safe_dump(links, sort_keys=False),
        "prerelease": str("-" in version).lower(),
    }
    return {
        "home": source,
        "sources": [f"{source}/tree/{tag}"],
        "annotations": {f"artifacthub.io/{key}": text for key, text in annotations.items()},
    }


def package_release(chart: Path, metadata: dict[str, Any], to: Path) -> Path:
    """Package a copy of the chart folder with this metadata added to its Chart.yaml, and return the archive."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(chart, Path(folder) / chart.name))
        about = yaml.safe_load((copy / "Chart.yaml").read_text("utf-8"))
        about |= metadata | {"annotations": about["annotations"] | metadata["annotations"]}
        (copy / "Chart.yaml").write_text(yaml.safe_dump(about, sort_keys=False, allow_unicode=True), "utf-8")
        return package_chart(copy, to)


@app.command()
def check(tag: str, registry: Annotated[str, typer.Option(help="The repository variable REGISTRY.")]) -> None:
    """Check that tag, packages, charts, CHANGELOG.md and registry fit together."""
    check_versions(tag, registry)
    console.success(f"{tag}: packages, charts and CHANGELOG.md have this version")


@app.command()
def charts(
    tag: str,
    image: Annotated[str, typer.Option(help="Launcher image with its digest.")],
    platforms: Annotated[str, typer.Option(help="Platforms of the image, separated by commas.")],
    source: Annotated[str, typer.Option(help="URL of the repository.")],
    to: Annotated[Path, typer.Option(help="Folder for the archives.")],
) -> None:
    """Package the charts with Artifact Hub's annotations, and print the archives."""
    if not re.search(r"@sha256:[0-9a-f]{64}$", image):
        raise LocalError(f"--image {image!r} has no digest. Fix: give REGISTRY/NAME@sha256:…")
    metadata = release_metadata(tag, image, platforms.split(","), source)
    for name in NAMES:
        typer.echo(package_release(CHARTS / name, metadata, to))


@app.command()
def notes(tag: str) -> None:
    """Print the section of the version in CHANGELOG.md."""
    typer.echo(changelog_section(version_of(tag)))


if __name__ == "__main__":
    try:
        app(prog_name="python -m local.release")
    except LocalError as problem:
        console.error(str(problem))
        sys.exit(1)
