"""The spool and its cuts."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import JobFailedError
from dray.requests.model import Request
from dray.requests.spool import spool
from dray.requests.spool.marks import Mark, SpoolPart, SpoolRange, Taper, cut_marks
from dray.requests.spool.spool import (
    SpoolWriter,
    _lines,
    decode,
    encode,
    index_of,
    place_of,
    read_shard,
)

pytestmark = pytest.mark.unit

text = st.text(st.characters(exclude_categories=["Cs"]))
requests = st.builds(
    Request,
    index=st.integers(0, 2**60),
    custom_id=text,
    url=st.sampled_from(["/v1/chat/completions", "/v1/embeddings"]),
    body=st.dictionaries(text, st.one_of(text, st.integers(-(2**63), 2**63), st.none(), st.lists(text))),
)


@given(requests, st.integers(0, 2**30), st.integers(0, 2**40))
def test_a_request_survives_the_round_trip(request: Request, file_no: int, line_no: int) -> None:
    line = encode(request, file_no=file_no, line_no=line_no)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == request
    assert index_of(line) == request.index
    assert place_of(line) == (file_no, line_no)


def written(indices: list[int], folder: Path, body: dict[str, Any]) -> tuple[SpoolWriter, str]:
    path = folder / "spool.jsonl"
    with path.open("wb") as file:
        writer = SpoolWriter(file.write)
        for index in indices:
            request = Request(index=index, custom_id=f"id-{index}", url="/v1/completions", body=body)
            writer.add(encode(request))
    return writer, str(path)


def cut_into(ranges: int, writer: SpoolWriter, uri: str, **options: Any) -> list[SpoolRange]:
    """The ranges of a spool of one file."""
    whole = SpoolPart(uri, writer.offset, Mark(0, 0))
    return cut_marks(writer.marks, parts=[whole], rows=writer.rows, ranges=ranges, **options)


@given(
    indices=st.lists(st.integers(0, 10**6), max_size=200, unique=True),
    parts=st.integers(1, 30),
    max_marks=st.integers(2, 64),
    chunk_rows=st.integers(1, 50),
    taper=st.builds(Taper, ranges=st.integers(0, 16), least_rows=st.integers(1, 20)),
    grouped=st.booleans(),
)
def test_cuts_cover_every_row_exactly_once(
    indices: list[int], parts: int, max_marks: int, chunk_rows: int, taper: Taper, grouped: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "MAX_MARKS", max_marks)
        writer, uri = written(indices, Path(folder), {"prompt": "x"})
        ranges = cut_into(parts, writer, uri, taper=taper, grouped=grouped)
        assert len(writer.marks) <= max_marks
        most = min(parts, len(writer.marks))
        assert bool(indices) <= len(ranges) <= most
        assert grouped or 0 < 2 * taper.ranges <= most or len(ranges) == most  # as many as asked, if even
        found: list[int] = []
        for part in ranges:
            chunks = list(read_shard(uri, part.offset, part.length, chunk_rows=chunk_rows))
            assert all(0 < len(chunk) <= chunk_rows for chunk in chunks)
            inside = [index_of(line) for chunk in chunks for line in chunk]
            assert len(inside) == part.rows > 0
            assert part.first_position == len(found)  # in whatever order the spool is
            found += inside
        assert found == indices
        assert [part.number for part in ranges] == list(range(len(ranges)))


def test_small_inputs_can_be_cut_row_by_row(tmp_path: Path) -> None:
    writer, uri = written(list(range(10)), tmp_path, {})
    ranges = cut_into(10, writer, uri)
    assert [part.rows for part in ranges] == [1] * 10


def test_parts_of_a_big_spool_are_about_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_MARKS", 32_768)
    writer, uri = written(list(range(70_000)), tmp_path, {})
    assert spool.MAX_MARKS // 2 <= len(writer.marks) <= spool.MAX_MARKS
    ranges = cut_into(7, writer, uri)
    sizes = [part.rows for part in ranges]
    assert sum(sizes) == 70_000
    assert max(sizes) - min(sizes) <= 8


@pytest.mark.parametrize(("least_rows", "small", "large"), [(1, 246, 985), (400, 457, 914), (900, 800, 800)])
def test_the_last_parts_are_a_quarter_of_the_others_or_of_as_many_rows_as_asked(
    tmp_path: Path, least_rows: int, small: int, large: int
) -> None:
    """12,800 rows in 16 parts: 12 and a quarter of 4 are 13. 400 rows are half of an even part's 800."""
    writer, uri = written(list(range(12_800)), tmp_path, {})
    sizes = [part.rows for part in cut_into(16, writer, uri, taper=Taper(ranges=4, least_rows=least_rows))]
    assert sum(sizes) == 12_800
    assert sizes == [pytest.approx(large, abs=1)] * 12 + [pytest.approx(small, abs=1)] * 4


def test_few_parts_are_all_of_one_size(tmp_path: Path) -> None:
    writer, uri = written(list(range(700)), tmp_path, {})
    sizes = [part.rows for part in cut_into(7, writer, uri, taper=Taper(ranges=4))]
    assert sizes == [100] * 7


def test_chunks_are_bounded_in_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_CHUNK_BYTES", 1000)
    writer, uri = written(list(range(10)), tmp_path, {"prompt": "x" * 600})
    assert [len(chunk) for chunk in read_shard(uri, 0, writer.offset)] == [2] * 5


@given(st.lists(st.binary(max_size=3) | st.sampled_from([b"\n", b"a\n", b"\n\nb"])))
def test_lines_are_the_same_however_they_come_in_blocks(blocks: list[bytes]) -> None:
    *whole, rest = b"".join(blocks).split(b"\n")
    assert list(_lines(iter(blocks))) == [*whole, *([rest] if rest else [])]


def test_a_long_line_takes_the_time_of_its_length() -> None:
    """One of 20 MB, in blocks of 4 KiB: copied whole at each block, it took over 5 s."""
    started = time.thread_time()
    [line] = _lines(iter([b"x" * 4096] * 5000))
    assert len(line) == 4096 * 5000
    assert time.thread_time() - started < 2


def test_a_lost_or_shortened_spool_is_no_empty_one(tmp_path: Path) -> None:
    writer, uri = written(list(range(10)), tmp_path, {})
    with pytest.raises(
        JobFailedError, match="missing; `dray resume JOB` or the same command writes them again"
    ):
        list(read_shard(uri, 0, writer.offset + 1))
    Path(uri).unlink()
    with pytest.raises(JobFailedError, match=r"not there.* writes them again from the input"):
        list(read_shard(uri, 0, writer.offset))
