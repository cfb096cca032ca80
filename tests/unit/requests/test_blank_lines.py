"""Blank lines of a CSV file are no rows, as for pandas: answers are joined to its rows by their index."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import InputError
from dray.requests.reading.readers import ReadLimits, files_of, read_rows
from dray.requests.sources import RowDefaults
from tests.support.sources import source_of

pytestmark = pytest.mark.unit


def read(folder: Path, text: str, name: str = "in.csv", **options: str) -> list[tuple[int, str | None]]:
    """The line and the prompt of each row; None for a bad one."""
    (folder / name).write_bytes(text.encode())
    source = source_of(str(folder / name), prompt_column="t", **options)
    return [
        (row.line_no, None if row.envelope is None else row.envelope.body["messages"][0]["content"])
        for row in read_rows(source, files_of(source), RowDefaults(), ReadLimits())
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("t\nfirst\n  \nsecond\n", [(2, "first"), (4, "second")]),
        ("t\nfirst\n\t \r\n\nsecond", [(2, "first"), (5, "second")]),
        ("t,u\nfirst,1\n \nsecond,2\n  ", [(2, "first"), (4, "second")]),
        (" \n\t\nt,u\nfirst,1\n", [(4, "first")]),
        ("sep=,\n  \nt,u\nfirst,1\n", [(4, "first")]),
    ],
)
def test_a_line_of_blanks_is_no_row(tmp_path: Path, text: str, rows: list[tuple[int, str]]) -> None:
    assert read(tmp_path, text) == rows
    if not text.startswith("sep="):
        assert list(pd.read_csv(io.StringIO(text))["t"]) == [row[1] for row in rows]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('t\n"  "\n', [(2, "  ")]),
        ('t\n"a\n  \n "\n', [(2, "a\n  \n ")]),
        ("t\n\u00a0\n", [(2, "\u00a0")]),
    ],
)
def test_what_stands_in_quotes_is_a_row_and_so_are_other_spaces(
    tmp_path: Path, text: str, rows: list[tuple[int, str]]
) -> None:
    assert read(tmp_path, text) == rows


def test_a_line_of_delimiters_is_a_row(tmp_path: Path) -> None:
    assert read(tmp_path, "t\tu\n\t\n  \nx\ty\n", "in.tsv") == [(2, ""), (4, "x")]
    assert read(tmp_path, "t u\n \n\t\nx y\n", delimiter=" ") == [(2, ""), (4, "x")]


def test_a_file_of_blank_lines_has_no_row(tmp_path: Path) -> None:
    assert read(tmp_path, "  \n\t\n ") == []
    with pytest.raises(InputError, match="there is no column 't'"):
        read(tmp_path, '  \n"  "\n')


@given(st.lists(st.lists(st.text(' \t\n,"a', max_size=4), min_size=2, max_size=2), max_size=6), st.data())
def test_rows_are_those_of_pandas_wherever_blank_lines_stand(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], data: st.DataObject
) -> None:
    lines = []
    for row in [["t", "u"], *rows]:
        lines += data.draw(st.lists(st.sampled_from(["", " ", "\t", " \t "]), max_size=2))
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerow(row)
        lines.append(written.getvalue().removesuffix("\n"))
    text = "\n".join(lines) + "\n"
    found = [prompt for _, prompt in read(tmp_path_factory.getbasetemp(), text)]
    assert found == list(pd.read_csv(io.StringIO(text), keep_default_na=False, dtype=str)["t"])
