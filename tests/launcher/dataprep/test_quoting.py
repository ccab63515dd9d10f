"""Tests of data.quoting: tab-separated text in which quotes are ordinary characters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.dataprep import text_lines
from launcher.dataprep.csv_records import RowPlaces, split_fields
from launcher.trainer import trial_data
from tests.launcher.dataprep.conftest import Pod

TITLES = ['"Heroes', "Low", 'The Idiot"', '12" Mix"', "Lust for Life", "Blackstar"]
TSV = ("id\ttitle\n" + "".join(f"{n}\t{title}\n" for n, title in enumerate(TITLES))).encode()
FORM = {"FORMAT": "csv", "DELIMITER": "\\t"}
HINT = "If quotes are ordinary characters in this text, set data.quoting to none"


def wanted() -> list[bytes]:
    return sorted(f"{n}\t{title}".encode() for n, title in enumerate(TITLES))


def test_lone_quotes_of_tab_separated_text_stay_in_their_rows(
    pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    pod.source(TSV, "titles.tsv")
    pod.source(TSV)
    assert pod.prepare(**FORM, QUOTING="none", TEST_SOURCE="file://titles.tsv")["lines"] == 6
    assert sorted(pod.train()) == sorted(pod.test()) == wanted()
    assert HINT not in capsys.readouterr().err


def test_a_quote_that_spans_lines_of_tab_separated_text_is_named_once_with_a_count(
    pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: six rows became four without a word."""
    content = b'h\tt\n1\t"a\n2\tb"\n3\tc\n4\t"d\n5\te\n6\tf"\n7\tg\n8\th\n'
    source = pod.folder({"0": b"h\tt\n0\tx\n", "1": content})
    pod.prepare(**FORM, SOURCE=source, TEST_SOURCE=pod.folder({"1": content}, "tests"))
    logged = capsys.readouterr().err
    assert logged.count(HINT) == 1
    assert "4 records of the tab-separated text span several lines" in logged
    assert "the first one is file://days/1, lines 2 to 3." in logged


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b'a,b\n1,"two\nlines"\n3,4\n5,6\n', {"FORMAT": "csv"}),  # usual in other csv
        (TSV.replace(b'"', b""), FORM),
        (b'a\tb\n1\t"quoted"\n2\t"a\tb"\n3\tx\n', FORM),
        (TSV, {}),
    ],
)
def test_other_quotes_are_not_named(
    pod: Pod, capsys: pytest.CaptureFixture[str], content: bytes, values: dict[str, str]
) -> None:
    pod.source(content)
    pod.prepare(**values)
    assert HINT not in capsys.readouterr().err


def test_quotes_of_lines_are_always_ordinary_characters(new_pod: Callable[[], Pod]) -> None:
    found = []
    for quoting in ("minimal", "none"):
        pod = new_pod()
        pod.source(TSV)
        pod.prepare(QUOTING=quoting)
        found.append(pod.shards())
    assert found[0] == found[1]


def test_columns_and_header_are_read_without_quoting(pod: Pod) -> None:
    pod.source(b'"a\tb"\tc\n1\t"2\t3\n4\t5\t6"\n7\t8\t9\n')
    pod.prepare(**FORM, QUOTING="none", COLUMNS=['b"', '"a'])
    assert sorted(pod.train()) == [b'"2\t1', b"5\t4", b"8\t7"]


FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n\0\x85"), max_size=8)


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=20))
def test_without_quoting_each_line_is_one_record(rows: list[tuple[str, str]]) -> None:
    text = "".join("\t".join(row) + "\n" for row in rows)
    reader = text_lines.CsvReader("\t", False, (), "none")
    blocks = reader.line_blocks(iter([text.encode()]), RowPlaces("f"))
    assert [tuple(split_fields(line)) for line in b"".join(blocks).decode().split("\n")[:-1]] == rows


@pytest.mark.parametrize(("quoting", "rows"), [("minimal", 4), ("none", 6)])
def test_try_reads_the_rows_of_the_data_job_and_warns_as_it_does(
    pod: Pod, tmp_path: Path, caplog: pytest.LogCaptureFixture, quoting: str, rows: int
) -> None:
    path = tmp_path / "titles.tsv"
    path.write_bytes(TSV)
    form = trial_data.RowFormat("csv", delimiter="\t", quoting=quoting)
    found = list(trial_data.read_rows(path, form))
    assert len(found) == rows
    assert (HINT in caplog.text) == (quoting == "minimal")
    pod.source(TSV)
    pod.prepare(**FORM, QUOTING=quoting)
    assert sorted(line.encode() for line in found) == sorted(pod.train())
