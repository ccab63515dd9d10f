"""Tests of settings: defaults, parsing, and one message for each fault with key, value, limit, reason and fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.errors import SettingsError
from launcher.settings import DataSettings, TrainSettings
from tests.launcher.supervisor.loopback_gang import pod_environ

DATA = {
    "JOB_NAME": "quick-start",
    "JOB_NAMESPACE": "paddle",
    "PADDLE_LAUNCHER_RELEASE": "r",
    "PADDLE_LAUNCHER_K8S_JOB": "quick-start-data-0a1b2c3d",
    "PADDLE_LAUNCHER_DATA_DIGEST": "d1",
    "PADDLE_LAUNCHER_DATA_SOURCE": "file://corpus.whl",
}
FORM = re.compile(r".+ is .+, but must be .+: .+\. .+\.")


def test_the_smallest_environment_gets_the_defaults_of_the_chart() -> None:
    s = TrainSettings.from_environ(pod_environ())
    assert (s.job_path, s.nic, s.port, s.ports_num, s.ports_num_sparse) == (
        Path("/home/jobpath"), "eth0", 7164, 2, 2,
    )  # fmt: skip
    assert (s.gradient_num, s.trainer_count, s.peer_port) == (3, 1, 7168)
    assert (s.runtime, s.rendezvous, s.mode, s.passes, s.batch_size) == ("fleet", "lease", "async", 10, 256)
    assert (list(s.pserver_ports), list(s.sparse_ports)) == ([7164, 7165], [7166, 7167])
    assert s.run_id == "quick-start-0a1b2c3d"


@pytest.mark.parametrize(
    ("given", "parsed"), [("", ""), ("s3://abc", "s3://abc"), ("s3://b.c-d/a/b/", "s3://b.c-d/a/b")]
)
def test_export_to_is_empty_or_a_prefix_without_a_slash_at_its_end(given: str, parsed: str) -> None:
    assert TrainSettings.from_environ(pod_environ(PADDLE_LAUNCHER_EXPORT_TO=given)).export_to == parsed


def test_zero_and_empty_values_differ_from_absent_ones() -> None:
    s = TrainSettings.from_environ(
        pod_environ(
            CONF_PADDLE_PORTS_NUM_SPARSE="0", PADDLE_LAUNCHER_RESTARTS="0", CONF_PADDLE_GRADIENT_NUM=""
        )
    )
    assert (s.ports_num_sparse, s.restarts, s.peer_port, s.gradient_num) == (0, 0, 7166, 3)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PADDLE_LAUNCHER_TRAINERS", "0", "from 1 to 1000"),
        ("PADDLE_LAUNCHER_TRAINERS", "three", "not an integer"),
        ("PADDLE_LAUNCHER_TRAINERS", "1_0", "not an integer"),
        ("CONF_PADDLE_PORT", "70000", "1 to 65535"),
        ("JOB_NAME", "Quick_Start", "DNS label of at most 45"),
        ("JOB_NAME", "a" * 46, "DNS label of at most 45"),
        ("JOB_NAME", "", "no default"),
        ("PADDLE_LAUNCHER_RUNTIME", "v2", "one of fleet, v1"),
        ("PADDLE_LAUNCHER_MODE", "fast", "one of sync, async"),
        ("TRAIN_CONFIG_DIR", "../etc", "a file name"),
        ("PADDLE_LAUNCHER_EXTRA_ARGS", '["lr=1"]', "does not have the form --key=value"),
        ("PADDLE_LAUNCHER_EXTRA_ARGS", '["--lr=1", "--lr=2"]', "--lr is a duplicate"),
        ("PADDLE_LAUNCHER_EXTRA_ARGS", "--lr=1", "not JSON"),
        ("JOB_PATH", "home", "absolute path"),
        ("PADDLE_LAUNCHER_PROGRESS_DEADLINE_SECONDS", "0", "cannot be turned off"),
        ("PADDLE_LAUNCHER_RANK_WAIT_HOURS", "169", "the pods that wait hold their machines"),
        ("PADDLE_LAUNCHER_KEEP_CHECKPOINTS", "0", "starts the training from scratch"),
        ("PADDLE_LAUNCHER_INCREMENTAL_CHECKPOINTS", "101", "one after the other"),
        ("PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES", "-1", "it counts minutes"),
        ("PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES", "nan", "0 to 10080"),
        ("PADDLE_LAUNCHER_INIT_MODEL_PATH", "/srv/other", "without '/' at its start"),
        ("PADDLE_LAUNCHER_INIT_MODEL_PATH", "a/../b", "without '/' at its start"),
        ("PADDLE_LAUNCHER_INIT_MODEL_PATH", "a//b", "without '/' at its start"),
        ("PADDLE_LAUNCHER_INIT_MODEL_PATH", "s3:/b", "an export is in a bucket"),
        ("PADDLE_LAUNCHER_INIT_MODEL_PATH", "s3://bucket/", "the address has no folder after the bucket"),
        ("PADDLE_LAUNCHER_INIT_MODEL_PATH", "s3://bucket/a/../b", "is not a folder"),
        ("PADDLE_LAUNCHER_WEBHOOK", "ftp://example.org", "messages are posted there"),
        ("PADDLE_LAUNCHER_WEBHOOK", "https://me:pass@example.org/", "without a user"),
        ("PADDLE_LAUNCHER_WEBHOOK", "https://example.org/a b", "messages are posted there"),
        ("PADDLE_LAUNCHER_LOG_FORMAT", "xml", "one of text, json"),
        ("PADDLE_LAUNCHER_EXPORT_TO", "/models", "s3://BUCKET/PREFIX"),
        ("PADDLE_LAUNCHER_EXPORT_TO", "s3://Models/a", "names have 3 to 63"),
        ("PADDLE_LAUNCHER_EXPORT_TO", "s3://ab", "names have 3 to 63"),
        ("PADDLE_LAUNCHER_EXPORT_TO", "s3://bucket/a b", "s3://BUCKET/PREFIX"),
        ("PADDLE_LAUNCHER_EXPORT_TO", "s3://bucket/a/../b", "is not a folder"),
        ("PADDLE_LAUNCHER_EXPORT_TO", "s3://bucket//a//b", "is not a folder"),
    ],
)
def test_an_invalid_value_is_one_line_with_key_value_limit_reason_and_fix(
    name: str, value: str, expected: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        TrainSettings.from_environ(pod_environ(**{name: value}))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert FORM.fullmatch(lines[0]), lines[0]
    assert expected in lines[0]
    assert name in lines[0]
    assert caught.value.exit_code == 64


@pytest.mark.parametrize(
    ("given", "minutes"),
    [({}, 10.0), ({"CHECKPOINT_EVERY_BATCHES": "5"}, 0.0), ({"RUNTIME": "v1"}, 0.0)],
)
def test_checkpoints_are_saved_every_ten_minutes_by_default(given: dict[str, str], minutes: float) -> None:
    environ = pod_environ(**{f"PADDLE_LAUNCHER_{name}": value for name, value in given.items()})
    assert TrainSettings.from_environ(environ).checkpoint_every_minutes == minutes


def test_the_webhook_is_neither_shown_nor_passed_to_children() -> None:
    s = TrainSettings.from_environ(
        pod_environ(PADDLE_LAUNCHER_WEBHOOK="https://[::1]:8443/hook?token=top-secret\n")
    )
    assert s.webhook == "https://[::1]:8443/hook?token=top-secret"
    assert "top-secret" not in repr(s) + str(dict(s.environ))
    with pytest.raises(SettingsError) as caught:
        TrainSettings.from_environ(pod_environ(PADDLE_LAUNCHER_WEBHOOK="hook.example.org/top-secret"))
    assert "top-secret" not in str(caught.value)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        TrainSettings.from_environ(
            pod_environ(CONF_PADDLE_PORT="x", TRAINER_COUNT="0", PADDLE_LAUNCHER_PASSES="-1")
        )
    assert len(str(caught.value).splitlines()) == 3


def test_data_settings_have_their_defaults_and_read_json_arrays() -> None:
    s = DataSettings.from_environ(
        {**DATA, "PADDLE_LAUNCHER_DATA_COLUMNS": '["text", 0]', "PADDLE_LAUNCHER_DATA_DELIMITER": "\\t"}
    )
    assert (s.columns, s.delimiter, s.test_fraction, s.format, s.header) == (
        ("text", 0),
        "\t",
        0.1,
        "lines",
        True,
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SPLIT_COUNT", "0", "from 1 to 1000"),
        ("PADDLE_LAUNCHER_DATA_SHA256", "abc", "64 hex digits"),
        ("PADDLE_LAUNCHER_DATA_TEST_FRACTION", "0.6", "0 to 0.5"),
        ("PADDLE_LAUNCHER_DATA_TEST_FRACTION", "nan", "0 to 0.5"),
        ("PADDLE_LAUNCHER_DATA_DELIMITER", "ab", "one character"),
        ("PADDLE_LAUNCHER_DATA_QUOTING", "all", "one of minimal, none"),
        ("PADDLE_LAUNCHER_DATA_HEADER", "yes", "true or false"),
        ("PADDLE_LAUNCHER_DATA_ENCODING", "utf-99", "text encoding"),
        ("PADDLE_LAUNCHER_DATA_ENCODING", "hex", "text encoding"),
        ("PADDLE_LAUNCHER_DATA_ENCODING", "undefined", "text encoding"),
        ("PADDLE_LAUNCHER_DATA_COLUMNS", "[-1]", "column names"),
        ("PADDLE_LAUNCHER_DATA_TABLES", "[1]", "array of strings"),
    ],
)
def test_an_invalid_data_value_has_a_message_of_the_same_form(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        DataSettings.from_environ({**DATA, name: value})
    assert FORM.fullmatch(str(caught.value))
    assert expected in str(caught.value)
    assert name in str(caught.value)
