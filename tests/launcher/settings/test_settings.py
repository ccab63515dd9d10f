"""Tests of settings: their sources, parsing, and one message for each fault with key, value, limit, reason and fix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.errors import SettingsError
from launcher.settings import DataSettings, PodSettings, TrainSettings, settings_of
from testkit.pod_settings import pod_environ

FORM = re.compile(r".+ is .+, but must be .+: .+\. .+\.")


def read(kind: type[PodSettings] = TrainSettings, /, **given: Any) -> Any:
    """Return the settings of a pod with these fields in its document, or variables."""
    return kind.from_environ(pod_environ(kind, **given))


def faults(kind: type[PodSettings] = TrainSettings, /, **given: Any) -> list[str]:
    """Return the lines of the message about invalid settings."""
    with pytest.raises(SettingsError) as caught:
        read(kind, **given)
    assert caught.value.exit_code == 64
    return str(caught.value).splitlines()


def test_settings_come_from_the_document_and_the_variables() -> None:
    s = read()
    assert (s.job_path, s.nic, s.port, s.ports_num, s.ports_num_sparse) == (
        Path("/home/jobpath"), "eth0", 7164, 2, 2,
    )  # fmt: skip
    assert (s.gradient_num, s.trainer_count, s.peer_port, s.rank_wait_hours) == (3, 1, 7168, 6)
    assert (s.runtime, s.rendezvous, s.mode, s.passes, s.batch_size) == ("fleet", "lease", "async", 10, 256)
    assert (list(s.pserver_ports), list(s.sparse_ports)) == ([7164, 7165], [7166, 7167])
    assert s.run_id == "quick-start-0a1b2c3d"
    changed = read(
        ports_num_sparse=0, restarts=0, rank_wait_hours=None, config_file="mine", export_to="s3://b.c-d/a/b/"
    )
    assert (changed.ports_num_sparse, changed.restarts, changed.peer_port) == (0, 0, 7166)
    assert (changed.rank_wait_hours, changed.config_file, changed.export_to) == (
        6, "trainer_config.py", "s3://b.c-d/a/b",
    )  # fmt: skip


INVALID = yaml.safe_load(Path(__file__).with_name("invalid_values.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("field", "value", "expected"), [(field, *case) for field, cases in INVALID.items() for case in cases]
)
def test_an_invalid_value_is_one_line_with_key_value_limit_reason_and_fix(
    field: str, value: Any, expected: str
) -> None:
    kind = TrainSettings if field in settings_of(TrainSettings) else DataSettings
    valid = {"source": "file://a"} if kind is DataSettings else {"gradient_num": 3, "peer_port": 7168}
    [line] = faults(kind, **valid | {field: value})
    assert FORM.fullmatch(line), line
    assert expected in line
    one = settings_of(kind)[field]
    assert (one.key or one.value) in line
    assert one.variable in line


@pytest.mark.parametrize(
    ("given", "minutes"),
    [
        ({}, 10),
        ({"checkpoint_every_batches": 5}, 0),
        ({"runtime": "v1"}, 0),
        ({"checkpoint_every_minutes": None}, 0),
    ],
)
def test_checkpoints_are_saved_every_ten_minutes_by_default(given: dict[str, Any], minutes: float) -> None:
    assert read(**given).checkpoint_every_minutes == minutes


def test_the_webhook_is_neither_shown_nor_passed_to_children() -> None:
    s = read(webhook="https://[::1]:8443/hook?token=top-secret\n")
    assert s.webhook == "https://[::1]:8443/hook?token=top-secret"
    assert "top-secret" not in repr(s) + str(dict(s.environ))
    assert "top-secret" not in "".join(faults(webhook="hook.example.org/top-secret"))


def test_all_faults_are_reported_at_once() -> None:
    assert len(faults(port="x", trainer_count="", passes=None)) == 3


@pytest.mark.parametrize("content", [None, "[1]", "{", "[]x"])
def test_a_document_that_cannot_be_read_is_an_error_with_its_path(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "settings.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=rf"the settings in {file} cannot be read: .* Fix: use the chart"):
        TrainSettings.from_environ({"PADDLE_LAUNCHER_SETTINGS": str(file)})


def test_data_settings_have_the_values_below_data() -> None:
    s = read(DataSettings, source="file://a", columns=["text", 0], delimiter="\\t")
    assert (s.columns, s.delimiter, s.test_fraction, s.format, s.header, s.workers) == (
        ("text", 0), "\t", 0.1, "lines", True, 1,
    )  # fmt: skip
    by_pods = read(DataSettings, source="file://a", prepared_by="trainingPods", trainers=5)
    assert (by_pods.in_training_pod, by_pods.workers) == (True, 5)


def test_the_address_of_a_secret_replaces_the_source() -> None:
    reference = {"name": "addresses", "key": "train"}
    environ = pod_environ(DataSettings, source="", source_secret=reference)
    s = DataSettings.from_environ(environ | {"PADDLE_LAUNCHER_DATA_SOURCE": "https://h/a?signature=b\n"})
    assert (s.source, s.source_secret) == ("https://h/a?signature=b", "addresses/train")


def test_each_run_of_a_schedule_has_digests_of_its_own() -> None:
    """Otherwise the second night finds the output of the first one complete, and trains nothing."""
    s = read(schedule="@daily", source_digest="s1")
    assert (s.data_digest, s.source_digest) == ("d1-quick-start-0a1b2c3d", "s1-quick-start-0a1b2c3d")
    assert (read(schedule="").data_digest, read(schedule="@daily").source_digest) == ("d1", "")


def test_every_default_is_of_a_value_that_may_be_null() -> None:
    """All other values have their only default in the chart's values.yaml."""
    schema = json.loads((Path(__file__).parents[3] / "charts/paddle-training/values.schema.json").read_text())
    for kind in (TrainSettings, DataSettings):
        for name, one in settings_of(kind).items():
            if (one.key and one.default is None) or (isinstance(one.default, int | float | str) and one.key):
                node = schema
                for part in one.key.split("."):
                    node = node["properties"][part]
                assert "null" in node["type"], name
