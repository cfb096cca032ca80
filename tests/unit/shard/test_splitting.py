"""Shards cut in parts: no row twice, none lost, and those that an engine died under in two halves.

The spool holds their rows in any order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.requests.model import Request
from dray.requests.spool.spool import encode, index_of
from dray.shard import open_rows, splitting
from dray.shard.open_rows import Finished, open_lines
from dray.shard.splitting import parts_of
from dray.store import Shard, ShardState
from dray.store.shards import _check_parts
from tests.support.stores import indexes_of

pytestmark = pytest.mark.unit

HEAD = b"rows of another shard\n"
FIRST = 70
"""The position of the first row: so many stand before it in the spool."""


@dataclass(frozen=True)
class Case:
    """The rows of a shard in the order of the spool, by index (the input has others)."""

    indexes: list[int]
    done: frozenset[int]
    fed: int | None
    """The position after the last row that an engine was given."""

    @property
    def undone(self) -> list[int]:
        return [index for index in self.indexes if index not in self.done]

    @property
    def suspects(self) -> list[int]:
        """What the engine may have died under: all where none of the rows without an outcome was fed."""
        if self.fed is None:
            return self.undone
        fed = self.indexes[: self.fed - FIRST]
        return [index for index in fed if index not in self.done] or self.undone

    def finished(self) -> Finished:
        """As the store answers: of what it is asked, and it has as many as it says."""
        return Finished(self.done.intersection, len(self.done))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    indexes = draw(st.lists(st.integers(0, 200), min_size=2, max_size=40, unique=True))
    undone = draw(st.sets(st.sampled_from(indexes), min_size=2))
    fed = draw(st.none() | st.integers(FIRST + 1, FIRST + len(indexes)))
    return Case(indexes, frozenset(indexes) - undone, fed)


@given(cases(), st.integers(1, 7))
def test_parts_hold_each_row_once_and_suspects_are_halved(case: Case, asked: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "ASKED_ROWS", asked)
        shard = _shard(Path(folder) / "spool", case.indexes, done=len(case.done))
        parts = parts_of(shard, case.finished(), case.fed)
        rows = [indexes_of(part) for part in parts]
    assert [index for part in rows for index in part] == case.indexes
    assert [part.rows for part in parts] == [len(part) for part in rows]
    assert [part.inherited for part in parts] == [len(case.done.intersection(part)) for part in rows]
    _check_parts(shard, parts)  # as the store does
    suspects = [
        [index for index in found if index not in case.done]
        for part, found in zip(parts, rows, strict=True)
        if part.suspect
    ]
    assert [index for part in suspects for index in part] == case.suspects
    assert all(abs(len(a) - len(b)) <= 1 for a, b in pairwise(suspects))
    assert len(parts) >= 2  # or the search would not end


@given(cases(), st.integers(1, 7), st.integers(1, 7))
def test_open_rows_come_in_the_order_of_the_spool(case: Case, asked: int, chunk_rows: int) -> None:
    questions: list[int] = []

    def ask(indexes: Sequence[int]) -> frozenset[int]:
        questions.extend(indexes)
        return case.done.intersection(indexes)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_rows, "ASKED_ROWS", asked)
        shard = _shard(Path(folder) / "spool", case.indexes, done=len(case.done))
        chunks = list(open_lines(shard, Finished(ask, len(case.done)), chunk_rows=chunk_rows))
    assert [index_of(line) for chunk in chunks for line in chunk.lines] == case.undone
    assert all(0 < len(chunk.lines) <= chunk_rows for chunk in chunks)
    for chunk in chunks:
        assert case.indexes[chunk.end - FIRST - 1] == index_of(chunk.lines[-1])
    # Once the last one was named, nothing is asked: of a shard without an outcome, nothing at all.
    last = max((case.indexes.index(index) for index in case.done), default=-1)
    block = max(asked, chunk_rows)
    assert questions == case.indexes[: -(-(last + 1) // block) * block]


def _shard(path: Path, indexes: list[int], *, done: int) -> Shard:
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
        first_position=FIRST,
        inherited=0,
        state=ShardState.LEASED,
        epoch=1,
        owner="test",
        lease_until=None,
        parent=None,
        interruptions=0,
        crashes=1,
        replica=None,
        done=done,
        failed=0,
    )
