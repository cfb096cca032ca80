"""CSV whose quotes let a row go on: it is bounded, as a line is."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.errors import InputError
from dray.kinds import Kind
from dray.requests.reading import tables
from dray.requests.reading.readers import ReadLimits
from dray.requests.sources import Rows
from dray.storage.files import open_lines
from tests.support.sources import source_of
from tests.unit.requests.taking import asked, problems, take

pytestmark = pytest.mark.unit

LIMIT = 1 << 20
ENDS_A_VALUE_AND_BEGINS_ONE = b'","a\n'


def test_a_row_without_an_end_ends_the_file_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 MB in all, of 5 KB compressed: each value has two characters, each line five."""
    path = tmp_path / "in.csv.gz"
    path.write_bytes(gzip.compress(b'id,text\n1,good\n"a\n' + ENDS_A_VALUE_AND_BEGINS_ONE * LIMIT + b'"\n'))
    taken = 0

    def counting(*arguments: Any, **options: Any) -> Iterator[Any]:
        nonlocal taken
        for line in open_lines(*arguments, **options):
            taken += 1
            yield line

    monkeypatch.setattr("dray.requests.reading.tables.open_lines", counting)
    source = source_of(str(path), kind=Kind.COMPLETION, prompt_column="text")
    assert isinstance(source, Rows)
    rows = tables.file_rows(str(path), source, LIMIT, None)
    assert next(rows)[1] == {"id": "1", "text": "good"}
    with pytest.raises(InputError) as caught:
        next(rows)
    [problem] = caught.value.problems
    assert (problem.code, problem.line) == ("invalid_csv", 3)
    assert "together longer than a line may be" in problem.message
    assert "no row after it" in problem.message
    assert taken < LIMIT // 4


def test_rows_of_several_lines_within_the_limit_are_read(tmp_path: Path) -> None:
    """The limit is each row's, and not the file's; and one line alone has its own."""
    path = tmp_path / "in.csv"
    text = "x" * 90
    path.write_text("id,text\n" + f'1,"{text}\n{text}"\n' * 50 + "2," + "y" * 197 + "\n")
    source = source_of(str(path), kind=Kind.COMPLETION, prompt_column="text")
    found = asked(take(tmp_path, source, limits=ReadLimits(line_bytes=200)))
    assert [prompt for _, prompt in found] == [f"{text}\n{text}"] * 50 + ["y" * 197]
    path.write_text("id,text\n" + f'1,"{text}\n{text}\n{text}"\n')
    other = tmp_path / "other"
    other.mkdir()
    [problem] = problems(other, str(path), prompt_column="text", limits=ReadLimits(line_bytes=200))
    assert (problem.code, problem.line) == ("invalid_csv", 2)
