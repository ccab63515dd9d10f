"""The chart lints and renders, uses each of its values, and its README has the same values."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml
from chart_tools import (
    CHART,
    EXAMPLES,
    KUBE_VERSION,
    ONE_MACHINE,
    SERVING,
    default_values,
    helm_template,
    leaves,
    pinned_helm,
    render,
    run,
    tool,
)

from launcher.settings import DataSettings, TrainSettings, settings_of


@pytest.mark.parametrize(
    "scenario",
    sorted(CHART.parent.glob("paddle-*/ci/*.yaml")),
    ids=lambda path: f"{path.parts[-3]}-{path.stem}",
)
def test_each_scenario_passes_strict_lint_and_renders_alike_with_helm_3_and_4(scenario):
    """Each file in ci/ is a supported combination of values. A large number could render as 1e+06: a float to helm."""
    chart = scenario.parent.parent
    done = run(tool("helm"), "lint", "--strict", chart, "-f", scenario, "--kube-version", KUBE_VERSION)
    assert done.returncode == 0, done.stdout + done.stderr
    large = {"training": {"batchSize": 4000000}, "data": {"seed": 12345678901}} if chart == CHART else None
    helms = map(pinned_helm, (4, 3))
    newer, older = (helm_template(scenario, values=large, chart=chart, helm=helm) for helm in helms)
    assert newer.returncode == older.returncode == 0, newer.stderr + older.stderr
    assert list(yaml.safe_load_all(newer.stdout)) == list(yaml.safe_load_all(older.stdout))
    assert not re.search(r"<no value>|<nil>|%!|[0-9]e\+[0-9]", newer.stdout)
    assert large is None or '"batchSize":4000000' in newer.stdout


def test_helm_3_and_4_reject_wrong_values_with_the_same_message_of_the_chart():
    wrong = {"trainers": 2, "gradientNum": 3}
    newer, older = (helm_template(ONE_MACHINE, values=wrong, helm=helm) for helm in map(pinned_helm, (4, 3)))
    for ended in (newer, older):
        assert ended.returncode == 1
        assert "gradientNum" in ended.stderr.replace("\n", " ")
        assert "Fix:" in ended.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_renders_over_the_values_of_a_stack(example):
    """Documents and other parts refer to an example by its jobName."""
    manifests = render(ONE_MACHINE, example)
    job_name = example.stem.replace("_", "-")
    assert [item["kind"] for item in manifests].count("Job") == 2
    assert all(
        item["metadata"]["name"].startswith(job_name) for item in manifests if item["kind"] == "Job"
    ), "the Jobs are called after jobName"


def test_every_value_is_used_by_a_template_or_the_launcher():
    """A value without effect would mislead users; test_chart_environment.py compares those of the launcher."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    text = re.sub(r"\$(?:root|v)(?:\.Values)?\.|\.root\.Values\.", ".Values.", text)
    text = text.replace("$data.", ".Values.data.").replace("$storage.", ".Values.storage.")
    text = re.sub(r"omit \S+", "", text)
    settings = {one.key for kind in (TrainSettings, DataSettings) for one in settings_of(kind).values()}
    unused = []
    for parts in leaves(default_values()):
        if settings & {".".join(parts[:length]) for length in range(1, len(parts) + 1)}:
            continue
        # A map that is passed on as a whole (toYaml) uses every value in it.
        paths = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        if not any(re.search(rf"\.Values\.{re.escape(path)}(?![\w.])", text) for path in paths):
            unused.append(parts)
    assert not unused


@pytest.mark.parametrize("chart", [CHART, SERVING], ids=lambda path: path.name)
def test_schema_has_exactly_the_values_with_default_and_description(chart):
    """Schema, values.yaml and the README's table must agree."""

    def of_schema(node: dict, path: str = "") -> dict:
        if "default" in node:
            assert node["description"], path
            return {path.lstrip("."): node["default"]}
        assert node["additionalProperties"] is False, f"{path} is open"
        return {
            k: v
            for key, child in node["properties"].items()
            for k, v in of_schema(child, f"{path}.{key}").items()
        }

    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].pop("global")
    found = of_schema(schema)
    for path, default in found.items():
        value = default_values(chart)
        for part in path.split("."):
            value = value[part]
        assert value == default, path
    for leaf in map(".".join, leaves(default_values(chart))):
        assert any(leaf == path or leaf.startswith(f"{path}.") for path in found), (
            f"{leaf} is not in the schema"
        )


@pytest.mark.parametrize("chart", [CHART, SERVING], ids=lambda path: path.name)
def test_readme_equals_the_output_of_helm_docs(tmp_path, chart):
    """The README is generated; this fails when it is out of date."""
    copy = shutil.copytree(chart, tmp_path / chart.name)
    (copy / "README.md").unlink()
    done = run(tool("helm-docs"), "--chart-search-root", copy, "--sort-values-order", "file")
    assert done.returncode == 0, done.stderr
    assert (copy / "README.md").read_text("utf-8") == (chart / "README.md").read_text("utf-8"), (
        "run: make docs"
    )


@pytest.mark.parametrize("chart", [CHART, SERVING], ids=lambda path: path.name)
def test_lookups_only_reject_values_and_never_decide_what_is_rendered(chart):
    """Argo CD and Flux render without a cluster: the manifests must not depend on what exists in one."""
    for file in sorted((chart / "templates").iterdir()):
        text = re.sub(r"\{\{-? */\*.*?\*/ *-?\}\}", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        for block in re.split(r"(?=\{\{-? define )", text):
            for question in (
                r"\blookup\b",
                r"\.Capabilities\.(?!HelmVersion)",
                r"\.Release\.Is",
                r"\brand|\bnow\b",
            ):
                allowed = file.name == "_validate.tpl" and '"paddle-training.validate.cluster"' in block
                assert allowed or not re.search(question, block), f"{file.name}: {question}"


def test_helm_unittest_suites_pass():
    """The suites are in the folder tests/ of each chart."""
    done = run(tool("helm-unittest"), CHART, SERVING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Charts:      2 passed" in done.stdout
