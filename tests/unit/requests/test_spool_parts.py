"""A spool in parts: the same rows in the same order as in one file, and no file too many."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import JobFailedError
from dray.requests.pulse import ReadingPulse
from dray.requests.spool import spool
from dray.requests.spool.marks import SpoolPart, SpoolRange, cut_marks
from dray.requests.spool.parts import SpoolParts, part_uri
from dray.requests.spool.spool import read_shard
from dray.storage.files import AtomicFile

pytestmark = pytest.mark.unit

sizes = st.lists(st.integers(3, 60), min_size=1, max_size=60)
"""Bytes of each line, its end included."""


def lines_of_sizes(found: list[int]) -> list[bytes]:
    return [(b"%d" % (number % 100)).rjust(size - 1, b".") + b"\n" for number, size in enumerate(found)]


def write(
    folder: Path, lines: list[bytes], part_bytes: int | None
) -> tuple[SpoolParts, tuple[SpoolPart, ...]]:
    with SpoolParts(str(folder / "spool.jsonl"), part_bytes) as parts:
        for line in lines:
            parts.writer.add(line)
        return parts, parts.finish()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def cuts(parts: SpoolParts, named: tuple[SpoolPart, ...], ranges: int) -> list[SpoolRange]:
    return cut_marks(parts.writer.marks, parts=named, rows=parts.writer.rows, ranges=ranges)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@given(sizes=sizes, part_bytes=st.integers(1, 200), ranges=st.integers(1, 30), max_marks=st.integers(2, 64))
@settings(max_examples=60)
def test_any_cut_of_rows_in_parts_gives_each_row_once_and_in_order(
    sizes: list[int], part_bytes: int, ranges: int, max_marks: int
) -> None:
    lines = lines_of_sizes(sizes)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "MAX_MARKS", max_marks)
        folder = Path(place)
        (folder / "one").mkdir()
        whole, [one] = write(folder / "one", lines, None)
        written, parts = write(folder, lines, part_bytes)
        for part in parts:
            text = Path(part.uri).read_bytes()
            assert part.size == len(text) > 0  # also where the first line is longer than a part
            assert len(text) <= part_bytes or text.count(b"\n") == 1
        several = cuts(written, parts, ranges)
        read = [
            [line for chunk in read_shard(one.uri, one.offset, one.length) for line in chunk]
            for one in several
        ]
        assert [line + b"\n" for rows in read for line in rows] == lines
        assert [len(rows) for rows in read] == [one.rows for one in several]
        assert [one.first_position for one in several] == [0, *itertools.accumulate(map(len, read))][:-1]
        assert [one.number for one in several] == list(range(len(several)))
        # As of one file, with one more cut where a part begins.
        starts = {part.start.position for part in parts}
        in_one = {one.first_position for one in cuts(whole, (one,), ranges)}
        assert {one.first_position for one in several} == in_one | starts
        assert len(several) <= min(ranges, len(whole.writer.marks)) + len(parts) - 1


@pytest.mark.heavy(one_of=3)
@given(sizes=sizes, part_bytes=st.integers(1, 200), kept=st.data())
@settings(max_examples=60)
def test_rewriting_gives_what_the_kept_lines_alone_would(
    sizes: list[int], part_bytes: int, kept: st.DataObject
) -> None:
    lines = lines_of_sizes(sizes)
    keep = kept.draw(st.lists(st.booleans(), min_size=len(lines), max_size=len(lines)))
    with tempfile.TemporaryDirectory() as place:
        for name in ("alone", "rewritten"):
            (Path(place) / name).mkdir()
        alone, _ = write(Path(place) / "alone", list(itertools.compress(lines, keep)), part_bytes)
        with SpoolParts(str(Path(place) / "rewritten" / "spool.jsonl"), part_bytes) as rewritten:
            for line in lines:
                rewritten.writer.add(line)
            with rewritten.rewriting() as old:
                for line in itertools.compress(old, keep):
                    rewritten.writer.add(line + b"\n")
            rewritten.finish()
        assert contents(Path(place) / "rewritten") == contents(Path(place) / "alone")
        assert rewritten.sha256 == alone.sha256
        assert list(rewritten.writer.marks) == list(alone.writer.marks)


def test_the_first_part_has_the_name_of_the_one_file(tmp_path: Path) -> None:
    parts, [one] = write(tmp_path, [b"a\n", b"b\n"], 4)
    assert (one.uri, one.size) == (str(tmp_path / "spool.jsonl"), 4)
    assert parts.sha256 == hashlib.sha256(b"a\nb\n").hexdigest()  # as of a spool without a bound
    _, several = write(tmp_path, [b"a\n", b"b\n", b"c\n"], 4)
    assert [Path(part.uri).name for part in several] == ["spool.jsonl", "spool-00001.jsonl"]
    assert contents(tmp_path) == {"spool.jsonl": b"a\nb\n", "spool-00001.jsonl": b"c\n"}
    assert part_uri("s3://b.c/spool", 12) == "s3://b.c/spool-00012"


def test_equal_rows_in_other_parts_have_another_digest(tmp_path: Path) -> None:
    lines = [b"a\n", b"b\n", b"c\n"]
    digests = [write(tmp_path, lines, bound)[0].sha256 for bound in (2, 4, 6)]
    assert len(set(digests)) == 3


def test_all_lines_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with SpoolParts(str(tmp_path / "spool.jsonl"), 4) as parts:
        for line in (b"a\n", b"b\n", b"c\n"):
            parts.writer.add(line)
        assert [line.rstrip(b"\n") for line in parts.lines()] == [b"a", b"b", b"c"]
        parts.writer.add(b"d\n")
        parts.writer.add(b"e\n")
        parts.finish()
    assert b"".join(contents(tmp_path).values()).count(b"\n") == 5


@pytest.mark.parametrize("lines", [0, 1, 3, 5])
def test_an_error_leaves_no_file(tmp_path: Path, lines: int) -> None:
    with pytest.raises(KeyError), SpoolParts(str(tmp_path / "spool.jsonl"), 4) as parts:
        for _ in range(lines):
            parts.writer.add(b"a\n")
        raise KeyError
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("after", [False, True])
def test_an_error_while_it_is_written_anew_leaves_no_file(tmp_path: Path, after: bool) -> None:
    with pytest.raises(KeyError), SpoolParts(str(tmp_path / "spool.jsonl"), 4) as parts:
        for _ in range(9):
            parts.writer.add(b"a\n")
        with parts.rewriting() as old:
            for line in itertools.islice(old, 5):
                parts.writer.add(line + b"\n")
            if not after:
                raise KeyError
        raise KeyError
    assert contents(tmp_path) == {}


def test_a_part_that_gets_no_name_stops_the_rows(tmp_path: Path) -> None:
    """Its folder is gone: what the thread could not do is raised where rows come."""
    work, moved = tmp_path / "work", tmp_path / "moved"

    def rows() -> Iterator[bytes]:
        yield from [b"a\n"] * 2
        work.rename(moved)
        work.write_text("a file where the folder was")
        yield from [b"a\n"] * 1000

    with (
        pytest.raises(JobFailedError, match=r"spool.*cannot be written"),
        SpoolParts(str(work / "spool.jsonl"), 4) as parts,
    ):
        for line in rows():
            parts.writer.add(line)
    assert [path.name for path in moved.iterdir() if not path.name.startswith(".")] == []


def test_rows_wait_for_the_part_before_and_are_not_missed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts are under way at most: one that gets its name, and one that is written."""
    go_on, pulse = threading.Event(), ReadingPulse()
    sync = AtomicFile.sync

    def slow(file: AtomicFile) -> None:
        assert go_on.wait(60)
        sync(file)

    def rows() -> None:
        with SpoolParts(str(tmp_path / "spool.jsonl"), 4, pulse=pulse) as parts:
            for _ in range(20):
                pulse.row()
                parts.writer.add(b"a\n")
            parts.finish()

    monkeypatch.setattr(AtomicFile, "sync", slow)
    thread = threading.Thread(target=rows)
    thread.start()
    wait_until(lambda: len(contents(tmp_path)) == 2)
    thread.join(0.2)  # it would go on now, if it did
    assert thread.is_alive()
    assert [name.rsplit(".", 2)[0] for name in contents(tmp_path)] == [".spool-00001.jsonl", ".spool.jsonl"]
    assert pulse.silent() == 0.0
    go_on.set()
    thread.join(60)
    assert len(contents(tmp_path)) == 10


def test_a_row_is_missed_again_after_a_wait() -> None:
    pulse = ReadingPulse()
    with pulse.paused():
        assert pulse.silent() == 0.0
    assert 0.0 < pulse.silent() < 10.0
    pulse.end()
    with pulse.paused():
        pass
    assert pulse.silent() == 0.0
