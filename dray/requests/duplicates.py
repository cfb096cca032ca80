"""Finding repeated ids, or requests, among any number of rows, in bounded memory.

Each leaves a 16-byte digest and its row's index. Beyond a few million rows they go to temporary files,
split by the digest's first byte, and each file is searched on its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
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
_LOADED_BLOCKS = 4  # of a spool whose rows are in order by windows of two blocks
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


class Pairs:
    """Pairs of whole numbers, taken in any order, and looked up by the first.

    Beyond a million they go to temporary files by their first number. Some of these are in memory at a time:
    numbers that are looked up one after the other are best near each other.
    """

    def __init__(self, *, most: int = _SPILL_ROWS, block_bits: int = _BLOCK_BITS) -> None:
        self.count = 0
        self._most = most
        self._bits = block_bits
        self._held: list[NDArray[np.uint64]] = []
        self._waiting = 0
        self._blocks: set[int] = set()
        self._folder: TemporaryFolder | None = None
        self._loaded: dict[int, NDArray[np.uint64]] = {}

    def __enter__(self) -> Pairs:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._folder is not None:
            self._folder.remove()

    def add(self, pairs: NDArray[np.uint64]) -> None:
        """Take some more. None after the first look-up."""
        self._held.append(pairs)
        self._waiting += len(pairs)
        self.count += len(pairs)
        if self._waiting >= self._most:
            self._spill()

    def partners(self, numbers: Sequence[int]) -> list[int | None]:
        """The second number of the pair that each of ``numbers`` begins; None for none."""
        import numpy as np

        wanted = np.array(numbers, np.uint64)
        found: list[int | None] = [None] * len(numbers)
        blocks = wanted >> np.uint64(self._bits) if self._folder is not None else np.zeros_like(wanted)
        for block in np.unique(blocks).tolist():
            pairs = self._block(block)
            rows = np.flatnonzero(blocks == block)
            places = np.searchsorted(pairs[:, 0], wanted[rows])
            there = places < len(pairs)
            there[there] = pairs[places[there], 0] == wanted[rows[there]]
            for row, partner in zip(rows[there].tolist(), pairs[places[there], 1].tolist(), strict=True):
                found[row] = partner
        return found

    def _block(self, block: int) -> NDArray[np.uint64]:
        """The pairs of a block, sorted; a block that is used stays in memory the longest."""
        import numpy as np

        known = self._loaded.pop(block, None)
        if known is None and self._folder is None:
            known = _sorted(np.concatenate([_none(), *self._held]))
        elif known is None:
            self._spill()
            path = self._path(block)
            known = _sorted(np.fromfile(path, np.uint64).reshape(-1, 2)) if block in self._blocks else _none()
        self._loaded[block] = known
        for old in list(self._loaded)[:-_LOADED_BLOCKS]:
            del self._loaded[old]
        return known

    def _path(self, block: int) -> Path:
        assert self._folder is not None
        return self._folder.path / str(block)

    def _spill(self) -> None:
        import numpy as np

        if self._folder is None:
            self._folder = TemporaryFolder("dray-pairs-")
        pairs = np.concatenate([_none(), *self._held])
        blocks = pairs[:, 0] >> np.uint64(self._bits)
        for block in np.unique(blocks).tolist():
            with self._path(block).open("ab") as file:
                file.write(pairs[blocks == block].tobytes())
            self._blocks.add(block)
        self._held, self._waiting = [], 0


def _sorted(pairs: NDArray[np.uint64]) -> NDArray[np.uint64]:
    ordered: NDArray[np.uint64] = pairs[pairs[:, 0].argsort(kind="stable")]
    return ordered


def _none() -> NDArray[np.uint64]:
    import numpy as np

    return np.empty((0, 2), np.uint64)


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
