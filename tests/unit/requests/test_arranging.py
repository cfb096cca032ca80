"""Rows that get an order on their way to the spool: each is there once, and groups stay whole."""

from __future__ import annotations

import errno
import json
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import CancelledError, JobFailedError, JobPausedError
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.pulse import ReadingPulse
from dray.requests.sources import source_of
from dray.requests.spool import arranging, spool
from dray.requests.spool.arranging import Arrange, Arrangement, Arranging
from dray.requests.spool.parts import SpoolParts
from dray.requests.spool.spool import index_of, read_shard

pytestmark = pytest.mark.unit


def shuffled(seed: int, group: int, *, families: bool = False) -> Arrange:
    """An order at random, the same each time for as many lines, in groups of some rows."""

    def arrange(lines: Iterable[bytes]) -> Arrangement:
        count = sum(1 for _ in lines)
        rows = np.random.default_rng(seed).permutation(count).astype(np.uint32)
        starts = np.arange(0, count, group, dtype=np.uint32)
        names = (
            np.arange(len(starts), dtype=np.int64) // 2 + 1 if families else np.zeros(len(starts), np.int64)
        )
        return Arrangement(rows=rows, starts=starts, families=names)

    return arrange


def write_input(folder: Path, ids: list[str]) -> Path:
    path = folder / "in.jsonl"
    with path.open("w") as file:
        for name in ids:
            body = {"messages": [{"role": "user", "content": "say " + name}]}
            row = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(row) + "\n")
    return path


def taken_in(folder: Path, ids: list[str], arrange: Arrange | None, **options: Any) -> Ingested:
    source = source_of([str(write_input(folder, ids))])
    return ingest(
        source, spool_uri=str(folder / "spool.jsonl"), arrange=arrange, skip_invalid=True, **options
    )


def indexes(ingested: Ingested, ranges: int) -> list[list[int]]:
    return [
        [index_of(line) for chunk in read_shard(one.uri, one.offset, one.length) for line in chunk]
        for one in cut(ingested, target_rows=1, max_shards=ranges)
    ]


@given(
    rows=st.integers(1, 60),
    window=st.integers(1, 70),
    group=st.integers(1, 9),
    part_bytes=st.none() | st.integers(1500, 4000),
    ranges=st.integers(1, 20),
    repeated=st.sets(st.integers(1, 59)),
    seed=st.integers(0, 9),
    max_marks=st.integers(2, 64),
)
@settings(max_examples=20, deadline=None)
def test_any_order_in_any_windows_and_parts_has_each_row_once(
    rows: int,
    window: int,
    group: int,
    part_bytes: int | None,
    ranges: int,
    repeated: set[int],
    seed: int,
    max_marks: int,
) -> None:
    """Rows that repeat an id are error rows, in the order of the input."""
    ids = [f"id-{0 if number in repeated else number}" for number in range(rows)]
    kept = [number for number in range(rows) if number not in repeated]
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(arranging, "WINDOW_ROWS", window)
        patch.setattr(spool, "MAX_MARKS", max_marks)
        folder = Path(place)
        found = taken_in(folder, ids, shuffled(seed, group), part_bytes=part_bytes)
        shards = indexes(found, ranges)
        again = taken_in(folder, ids, shuffled(seed, group), part_bytes=part_bytes)
        assert again.spool_sha256 == found.spool_sha256
        assert [outcome.index for batch in found.rejects() for outcome in batch] == sorted(
            repeated & set(range(rows))
        )
        assert sorted(row for shard in shards for row in shard) == kept
        assert all(shards)
        assert len(shards) <= ranges + len(found.parts) - 1
        assert found.requests == len(kept)


@given(rows=st.integers(1, 200), group=st.integers(1, 60), ranges=st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_groups_are_whole_in_every_cut(rows: int, group: int, ranges: int) -> None:
    arrange = shuffled(1, group)
    order = arrange([b""] * rows)
    assert order is not None
    whole = [order.rows[start : start + group].tolist() for start in order.starts]
    with tempfile.TemporaryDirectory() as place:
        shards = indexes(taken_in(Path(place), [f"id-{n}" for n in range(rows)], arrange), ranges)
    assert [row for shard in shards for row in shard] == order.rows.tolist()
    begins = {shard[0] for shard in shards}
    assert begins <= {rows[0] for rows in whole}
    assert len(shards) >= min(ranges, len(whole)) // 2
    assert max(map(len, shards)) <= rows / ranges + 2 * group


def test_a_shard_is_of_a_family_where_all_its_groups_are(tmp_path: Path) -> None:
    found = taken_in(tmp_path, [f"id-{n}" for n in range(80)], shuffled(1, 10, families=True))
    ranges = cut(found, target_rows=10)
    assert [one.family for one in ranges] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [one.family for one in cut(found, target_rows=20)] == [1, 2, 3, 4]
    assert [one.family for one in cut(found, target_rows=40)] == [0, 0]


def test_an_order_that_leaves_rows_as_they_are_changes_nothing(tmp_path: Path) -> None:
    ids = [f"id-{n}" for n in range(30)]
    plain = taken_in(tmp_path, ids, None)
    left = taken_in(tmp_path, ids, lambda _: None)
    assert (left.spool_sha256, list(left.marks), left.grouped) == (
        plain.spool_sha256, list(plain.marks), False,
    )  # fmt: skip


def test_lines_are_given_as_they_were_written(tmp_path: Path) -> None:
    given: list[bytes] = []

    def look(lines: Iterable[bytes]) -> None:
        given.extend(lines)

    found = taken_in(tmp_path, ["a", "b", "c"], look)
    assert given == (tmp_path / "spool.jsonl").read_bytes().splitlines()
    assert found.requests == 3


def test_many_rows_that_are_put_in_order_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arranging, "TOLD_ROWS", 3)
    monkeypatch.setattr(arranging, "WINDOW_ROWS", 4)
    told: list[str] = []
    taken_in(tmp_path, list("abcdef"), shuffled(1, 1), say=told.append)
    assert told == ["ordering 4 rows by their prefixes"]  # the last two are no matter


def test_an_order_to_stop_is_heard_while_rows_are_put_in_order(tmp_path: Path, rng: random.Random) -> None:
    pulse = ReadingPulse()

    def slow(lines: Iterable[bytes]) -> Arrangement | None:
        next(iter(lines))
        pulse.stop()
        return shuffled(1, 1)(lines)

    with pytest.raises(CancelledError):
        taken_in(tmp_path, ["a", "b", "c"], slow, pulse=pulse)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_a_window_that_a_full_disk_does_not_take_pauses_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its close fails too, for what the buffer still holds: that must not take the place of the reason."""
    with SpoolParts(str(tmp_path / "spool.jsonl")) as parts:
        stage = Arranging(parts, str(tmp_path / "spool.jsonl"), lambda _: None, ReadingPulse())
        full = Path("/dev/full").open("wb", buffering=1 << 20)  # noqa: SIM115  the stage closes it
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        with pytest.raises(JobPausedError, match=r"No space left.*`dray resume JOB`"), stage:
            stage.add_line(b"line\n")
            stage.flush()


def test_no_room_for_the_window_says_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with SpoolParts(str(tmp_path / "spool.jsonl")) as parts:
        stage = Arranging(parts, str(tmp_path / "spool.jsonl"), lambda _: None, ReadingPulse())
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(JobFailedError, match=r"No space left.*--order input"):
            stage.add_line(b"line\n")


@pytest.mark.parametrize("ordered", [False, True])
def test_a_window_stays_out_of_the_drivers_memory(
    ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is mapped: read once, all of it counted as this process's, a gigabyte for a million rows."""
    monkeypatch.setattr(arranging, "_HELD_BYTES", 1 << 20)
    found: dict[str, float] = {}

    def arrange(lines: Iterable[bytes]) -> Arrangement | None:
        found["before"] = mapped_files()
        order = shuffled(1, 8)(lines)
        found["read"] = mapped_files()
        return order if ordered else None

    write, peaks = Arranging._write, list[float]()

    def watched(self: Arranging, view: Any, order: Arrangement | None) -> None:
        write(self, view, order)
        peaks.append(mapped_files())

    monkeypatch.setattr(Arranging, "_write", watched)
    taken_in(tmp_path, [f"{number:05d}{'x' * 500}" for number in range(20_000)], arrange)
    assert found["read"] - found["before"] < 8
    assert peaks[0] - found["before"] < 8


def mapped_files() -> float:
    """Of this process, in MB."""
    text = Path("/proc/self/status").read_text()
    [line] = [one for one in text.splitlines() if one.startswith("RssFile")]
    return int(line.split()[1]) / 1000
