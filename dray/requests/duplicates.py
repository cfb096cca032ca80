"""Finding repeated ids, or requests, among any number of rows, in bounded memory.

Each leaves a 16-byte digest and its row's index. Beyond a few million rows they go to temporary files,
split by the digest's first byte, and each file is searched on its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dray.temporary import TemporaryFolder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPILL_ROWS = 1 << 20  # 24 MiB of digests and indices
_PARTS = 256
_BLOCK_BITS = 20  # pairs of a million rows in a file: 16 MiB
_GIVEN_ROWS = 8192
_ENTRY_WORDS = 3  # two words of digest, one of index


Index = TypeVar("Index", bound="DigestIndex")


class DigestIndex:
    """Collects digests, then names the repeated ones. A context manager: it may hold temporary files."""

    def __init__(self, *, spill_rows: int = _SPILL_ROWS) -> None:
        self._digests = bytearray()
        self._indices = array("Q")
        self._spill_rows = spill_rows
        self._folder: TemporaryFolder | None = None

    def __enter__(self: Index) -> Index:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._folder is not None:
            self._folder.remove()

    def add_digest(self, index: int, digest: bytes) -> None:
        """Note that row ``index`` has this digest of 16 bytes."""
        self._digests += digest
        self._indices.append(index)
        if len(self._indices) >= self._spill_rows:
            self._spill()

    def pairs(self) -> Iterator[NDArray[np.uint64]]:
        """Rows of (index, lowest index with the same digest), in no order, a part at a time."""
        for part in self._parts():
            yield _repeats_in(part)

    def _entries(self) -> NDArray[np.uint64]:
        import numpy as np

        entries = np.empty((len(self._indices), _ENTRY_WORDS), np.uint64)
        entries[:, :2] = np.frombuffer(self._digests, np.uint64).reshape(-1, 2)
        entries[:, 2] = np.frombuffer(self._indices, np.uint64) if self._indices else 0
        return entries

    def _spill(self) -> None:
        import numpy as np

        if self._folder is None:
            self._folder = TemporaryFolder("dray-ids-")
        entries = self._entries()
        part_of = (entries[:, 0] & np.uint64(_PARTS - 1)).astype(np.uint16)
        order = np.argsort(part_of, kind="stable")
        bounds = np.searchsorted(part_of[order], np.arange(_PARTS + 1))
        for part in range(_PARTS):
            chosen = order[bounds[part] : bounds[part + 1]]
            with self._part_path(part).open("ab") as file:
                file.write(entries[chosen].tobytes())
        self._digests, self._indices = bytearray(), array("Q")

    def _parts(self) -> Iterator[NDArray[np.uint64]]:
        import numpy as np

        if self._folder is None:
            yield self._entries()
            return
        self._spill()
        for part in range(_PARTS):
            yield np.fromfile(self._part_path(part), np.uint64).reshape(-1, _ENTRY_WORDS)

    def _part_path(self, part: int) -> Path:
        assert self._folder is not None
        return self._folder.path / f"{part:03d}"


class IdIndex(DigestIndex):
    """Collects ids, then names the repeated ones."""

    def add(self, index: int, custom_id: str) -> None:
        """Note that row ``index`` has this id. Two ids share a digest with probability 2**-128."""
        self.add_digest(index, blake2b(custom_id.encode(), digest_size=16).digest())

    def repeats(self) -> NDArray[np.uint64]:
        """Rows of (index, index of the first row with the same id), by index; empty where all differ."""
        import numpy as np

        pairs = np.concatenate([np.empty((0, 2), np.uint64), *self.pairs()])
        ordered: NDArray[np.uint64] = pairs[np.argsort(pairs[:, 0], kind="stable")]
        return ordered


class SortedPairs:
    """Pairs of whole numbers, taken in any order and given in the order of the first.

    Beyond a few million they go to temporary files by their first number, and each file is sorted on its own.
    """

    def __init__(self, *, most: int = _SPILL_ROWS, block_bits: int = _BLOCK_BITS) -> None:
        self.count = 0
        self._most = most
        self._bits = block_bits
        self._held: list[NDArray[np.uint64]] = []
        self._waiting = 0
        self._blocks: set[int] = set()
        self._folder: TemporaryFolder | None = None

    def __enter__(self) -> SortedPairs:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._folder is not None:
            self._folder.remove()

    def add(self, pairs: NDArray[np.uint64]) -> None:
        """Take some more."""
        self._held.append(pairs)
        self._waiting += len(pairs)
        self.count += len(pairs)
        if self._waiting >= self._most:
            self._spill()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if self._folder is None:
            yield from _in_order(self._all_held())
            return
        self._spill()
        import numpy as np

        for block in sorted(self._blocks):
            yield from _in_order(np.fromfile(self._folder.path / str(block), np.uint64).reshape(-1, 2))

    def _all_held(self) -> NDArray[np.uint64]:
        import numpy as np

        return np.concatenate([np.empty((0, 2), np.uint64), *self._held])

    def _spill(self) -> None:
        import numpy as np

        if self._folder is None:
            self._folder = TemporaryFolder("dray-pairs-")
        pairs = self._all_held()
        blocks = pairs[:, 0] >> np.uint64(self._bits)
        for block in np.unique(blocks).tolist():
            with (self._folder.path / str(block)).open("ab") as file:
                file.write(pairs[blocks == block].tobytes())
            self._blocks.add(block)
        self._held, self._waiting = [], 0


def _in_order(pairs: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    ordered = pairs[pairs[:, 0].argsort(kind="stable")]
    for first in range(0, len(ordered), _GIVEN_ROWS):
        some = ordered[first : first + _GIVEN_ROWS]
        yield from zip(some[:, 0].tolist(), some[:, 1].tolist(), strict=True)


def _repeats_in(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    import numpy as np

    low = np.sort(entries[:, 0])
    same = low[1:] == low[:-1]
    if not same.any():  # nearly always
        return np.empty((0, 2), np.uint64)
    entries = entries[np.isin(entries[:, 0], low[1:][same])]
    entries = entries[np.lexsort((entries[:, 2], entries[:, 1], entries[:, 0]))]
    repeated: NDArray[Any] = np.zeros(len(entries), bool)
    repeated[1:] = (entries[1:, :2] == entries[:-1, :2]).all(axis=1)
    # The start of each run of equal digests is its smallest index.
    starts = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(entries))))
    return np.stack([entries[repeated, 2], entries[starts[repeated], 2]], axis=1)
