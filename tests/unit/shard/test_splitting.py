"""Shards cut in parts: no row twice, none lost, and those that an engine died under in two halves."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.requests import Request
from dray.requests.spool import encode, index_of, read_shard
from dray.shard.splitting import parts_of
from dray.store import Shard, ShardSpec, ShardState

pytestmark = pytest.mark.unit

HEAD = b"rows of another shard\n"


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], frozenset[int], int | None]:
    """The indexes of a shard (the input has others), those with an outcome, and the last that was fed."""
    indexes = sorted(draw(st.sets(st.integers(0, 200), min_size=2, max_size=40)))
    undone = draw(st.sets(st.sampled_from(indexes), min_size=2))
    fed = draw(st.none() | st.sampled_from(indexes))
    return indexes, frozenset(indexes) - undone, fed


@given(cases())
def test_parts_hold_each_row_once_and_suspects_are_halved(
    case: tuple[list[int], frozenset[int], int | None],
) -> None:
    indexes, done, fed = case
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_of(_shard(Path(folder) / "spool", indexes), done, fed)
        rows = [_indexes(part) for part in parts]
    assert [index for part in rows for index in part] == indexes
    assert [part.rows for part in parts] == [len(part) for part in rows]
    assert [(a.last_index, a.offset + a.length) for a in parts[:-1]] == [
        (b.first_index, b.offset) for b in parts[1:]
    ]
    for part, found in zip(parts, rows, strict=True):
        assert all(part.first_index <= index < part.last_index for index in found)
    undone = [index for index in indexes if index not in done]
    wanted = [index for index in undone if fed is None or index <= fed] or undone
    suspects = [
        [index for index in found if index not in done]
        for part, found in zip(parts, rows, strict=True)
        if part.suspect
    ]
    assert [index for part in suspects for index in part] == wanted
    assert all(abs(len(a) - len(b)) <= 1 for a, b in pairwise(suspects))
    assert len(parts) >= 2  # or the search would not end


def _shard(path: Path, indexes: list[int]) -> Shard:
    body = b"".join(
        encode(Request(index=index, custom_id=f"r{index}", url="/v1/completions", body={"n": index}))
        for index in indexes
    )
    path.write_bytes(HEAD + body)
    return Shard(
        number=0,
        uri=str(path),
        offset=len(HEAD),
        length=len(body),
        rows=len(indexes),
        first_index=indexes[0],
        last_index=indexes[-1] + 1,
        inherited=0,
        state=ShardState.LEASED,
        epoch=1,
        owner="test",
        lease_until=None,
        parent=None,
        interruptions=0,
        crashes=1,
        replica=None,
        done=0,
        failed=0,
    )


def _indexes(part: ShardSpec) -> list[int]:
    chunks = read_shard(part.uri, part.offset, part.length)
    return [index_of(line) for chunk in chunks for line in chunk]
