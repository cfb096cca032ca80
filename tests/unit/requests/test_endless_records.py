"""CSV whose quotes let a row go on: it is bounded, as a line is."""

from __future__ import annotations

import csv
import gzip
import tracemalloc
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from dray.errors import InputError
from dray.kinds import Kind
from dray.requests.reading import tables
from dray.requests.reading.csv_record import EndlessRecordError, Record, RecordTooLongError
from dray.requests.reading.readers import ReadLimits
from dray.requests.sources import Rows
from dray.requests.validate import BadRow
from dray.storage.files import open_lines
from tests.support.sources import source_of
from tests.unit.requests.taking import asked, problems, take

pytestmark = pytest.mark.unit

LIMIT = 1 << 14
ENDS_A_VALUE_AND_BEGINS_ONE = b'","a\n'
TEXT = "x" * 90


def rows_of(path: Path, limit: int, **options: Any) -> Iterator[tuple[int, Any]]:
    source = source_of(str(path), kind=Kind.COMPLETION, prompt_column="text", **options)
    assert isinstance(source, Rows)
    return tables.file_rows(str(path), source, limit, None)


def test_a_row_without_an_end_ends_the_file_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 MB in all, of 5 KB compressed: each value has two characters, each line five."""
    path = tmp_path / "in.csv.gz"
    path.write_bytes(gzip.compress(b'id,text\n1,good\n"a\n' + ENDS_A_VALUE_AND_BEGINS_ONE * 64 * LIMIT))
    taken = 0

    def counting(*arguments: Any, **options: Any) -> Iterator[Any]:
        nonlocal taken
        for line in open_lines(*arguments, **options):
            taken += 1
            yield line

    monkeypatch.setattr("dray.requests.reading.tables.open_lines", counting)
    rows = rows_of(path, LIMIT)
    assert next(rows)[1] == {"id": "1", "text": "good"}
    with pytest.raises(InputError) as caught:
        next(rows)
    [problem] = caught.value.problems
    assert (problem.code, problem.line) == ("invalid_csv", 3)
    assert f"no end within {64 * LIMIT:,} characters" in problem.message
    assert "no row after it" in problem.message
    assert 12 * LIMIT < taken < 13 * LIMIT  # five characters each


def test_what_is_passed_over_is_not_kept() -> None:
    limit = 1 << 12
    record = Record(chain(['"a\n'], repeat(ENDS_A_VALUE_AND_BEGINS_ONE.decode())), limit)
    with pytest.raises(RecordTooLongError):
        next(csv.reader(record))
    tracemalloc.start()
    try:
        with pytest.raises(EndlessRecordError):
            record.pass_over(csv.reader)
        assert tracemalloc.get_traced_memory()[1] < 8 * limit  # kept, its lines alone come to 700
    finally:
        tracemalloc.stop()


LARGE = f"{TEXT}\n" * 29 + TEXT


@pytest.mark.parametrize(
    ("large", "lines"),
    [
        pytest.param(f'2,b,"{LARGE}"', 30, id="one value"),
        pytest.param(f'2,"{LARGE}\n","{LARGE}"', 60, id="values one after another"),
        pytest.param(f'2,5" disk,"{LARGE}"', 30, id="a plain quote before"),
        pytest.param(f'2,"{LARGE}",5" disk', 30, id="a plain quote behind"),
        pytest.param(f'2,"{LARGE}\n""said"" ""\n""","b ""\n""\n"', 34, id="quotes in it"),
        pytest.param(f'2,"{LARGE}\n"",""\n",b', 32, id="what looks like an end"),
        pytest.param(f'2,b,"{LARGE}\n' + "y" * 5000 + '\n"', 32, id="a line above the limit in it"),
    ],
)
def test_a_row_above_the_limit_costs_itself_alone(tmp_path: Path, large: str, lines: int) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f'id,text,html\n1,a,"{TEXT}\n{TEXT}"\n{large}\n3,c,"{TEXT}\n"\n4,d,e\n')
    found = list(rows_of(path, 2000))
    told = [(number, row.code if isinstance(row, BadRow) else row["text"]) for number, row in found]
    after = 4 + lines
    assert told == [(2, "a"), (4, "line_too_long"), (after, "c"), (after + 2, "d")]
    (tmp_path / "kept").mkdir()
    source = source_of(str(path), kind=Kind.COMPLETION, prompt_column="text")
    kept = take(tmp_path / "kept", source, limits=ReadLimits(line_bytes=2000), skip_invalid=True)
    assert [prompt for _, prompt in asked(kept)] == ["a", "c", "d"]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (f'2,b,"{LARGE}\n3,c,d\n', "unexpected end of data"),
        (f'2,b,"{LARGE}\n3,"c",d\n', "',' expected after '\"'"),
    ],
    ids=["no end", "an end too soon"],
)
def test_a_quote_without_an_end_is_told_above_the_limit_as_below(
    tmp_path: Path, rows: str, told: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f"id,text,html\n1,a,b\n{rows}")
    for limit in (2000, 200_000):
        with pytest.raises(InputError) as caught:
            list(rows_of(path, limit))
        [problem] = caught.value.problems
        assert (problem.code, problem.line) == ("invalid_csv", 3)
        assert f"({told}), and no row after it can be told" in problem.message


def test_tabs_whose_quotes_are_in_doubt_are_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text(f'id\ttext\n1\ta\n2\t"{LARGE}"\n3\tc\n')
    with pytest.raises(InputError, match="--quoting none where quotes are plain"):
        list(rows_of(path, 2000))
    assert [number for number, _ in rows_of(path, 2000, quoting="csv")] == [2, 3, 33]


def test_a_header_above_the_limit_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f'\nid,"{LARGE}"\n1,a\n')
    with pytest.raises(InputError) as caught:
        list(rows_of(path, 2000))
    assert [(one.code, one.line) for one in caught.value.problems] == [("line_too_long", 2)]


def test_rows_of_several_lines_within_the_limit_are_read(tmp_path: Path) -> None:
    """The limit is each row's, and not the file's; and one line alone has its own."""
    path = tmp_path / "in.csv"
    path.write_text("id,text\n" + f'1,"{TEXT}\n{TEXT}"\n' * 50 + "2," + "y" * 197 + "\n")
    source = source_of(str(path), kind=Kind.COMPLETION, prompt_column="text")
    found = asked(take(tmp_path, source, limits=ReadLimits(line_bytes=200)))
    assert [prompt for _, prompt in found] == [f"{TEXT}\n{TEXT}"] * 50 + ["y" * 197]
    path.write_text("id,text\n" + f'1,"{TEXT}\n{TEXT}\n{TEXT}"\n')
    other = tmp_path / "other"
    other.mkdir()
    [problem] = problems(other, str(path), prompt_column="text", limits=ReadLimits(line_bytes=200))
    assert (problem.code, problem.line) == ("line_too_long", 2)
