"""Finding repeated ids, or requests, among any number of rows, in bounded memory.

Each leaves a 16-byte digest and its row's index. Beyond a few million rows they go to temporary files,
split by the digest's first byte, and each file is searched on its own, in blocks: all rows that are equal are
in one file.
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
_ENTRY_BYTES = 8 * _ENTRY_WORDS
_SEARCHED_ROWS = 1 << 21  # at a time, of a file: 48 MiB, and twice that to sort them


Index = TypeVar("Index", bound="DigestIndex")


class DigestIndex:
    """Collects digests, then names the repeated ones. A context manager: it may hold temporary files."""

    def __init__(self, *, spill_rows: int = _SPILL_ROWS, searched_rows: int = _SEARCHED_ROWS) -> None:
        self._digests = bytearray()
        self._indices = array("Q")
        self._spill_rows = spill_rows
        self._searched_rows = searched_rows
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
        """Rows of (index, lowest index with the same digest), in no order, a block at a time."""
        if self._folder is None:
            yield from _pairs_in([self._entries()])
            return
        self._spill()
        for part in range(_PARTS):
            yield from _pairs_in(_Blocks(self._part_path(part), self._searched_rows))

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


class _Blocks(Sequence["NDArray[np.uint64]"]):
    """A file of entries, read a block at a time, as often as it is asked for."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._rows = rows
        self._count = -(-path.stat().st_size // (_ENTRY_BYTES * rows))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        import numpy as np

        if number >= self._count:
            raise IndexError(number)
        words, offset = self._rows * _ENTRY_WORDS, number * self._rows * _ENTRY_BYTES
        return np.fromfile(self._path, np.uint64, words, offset=offset).reshape(-1, _ENTRY_WORDS)


def _pairs_in(blocks: Sequence[NDArray[np.uint64]]) -> Iterator[NDArray[np.uint64]]:
    """Rows of (index, lowest index with the same digest) of these entries, for each block in which some are.

    Memory grows with the digests that differ, and not with the rows that are equal.
    """
    words = _repeated_words(blocks)
    if not len(words):  # nearly always
        return
    leaders = _no_entries()
    if len(blocks) > 1:
        for block in blocks:
            leaders = _leaders(_with_words(block, words), leaders)
    for block in blocks:
        pairs = _followers(_with_words(block, words), leaders)
        if len(pairs):
            yield pairs


def _repeated_words(blocks: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """The first words of digests that are there more than once, sorted; and seldom others."""
    import numpy as np

    seen = repeated = np.empty(0, np.uint64)
    for number, block in enumerate(blocks, start=1):
        low = np.sort(block[:, 0])
        again = low[1:] == low[:-1]
        repeated = np.union1d(repeated, low[1:][again]) if again.any() else repeated
        if len(blocks) > 1:
            low = low[np.append(True, ~again)]
            known = _are_in(low, seen)
            repeated = np.union1d(repeated, low[known]) if known.any() else repeated
            seen = np.sort(np.concatenate([seen, low[~known]])) if number < len(blocks) else seen
    return repeated


def _are_in(values: NDArray[np.uint64], among: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each value is among these, which are sorted."""
    import numpy as np

    if not len(among):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(among, values), len(among) - 1)
    found: NDArray[np.bool_] = among[places] == values
    return found


def _with_words(entries: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return entries[_are_in(entries[:, 0], words)]


def _leaders(entries: NDArray[np.uint64], earlier: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The entry with the lowest index of each digest, of these and of those that were found before."""
    entries, same = _in_runs(entries, earlier)
    return entries[~same]


def _followers(entries: NDArray[np.uint64], leaders: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Rows of (index, lowest index with the same digest); ``leaders`` have the lowest where there are any."""
    import numpy as np

    entries, same = _in_runs(entries, leaders)
    # The start of each run of equal digests is its smallest index.
    starts = np.maximum.accumulate(np.where(same, 0, np.arange(len(entries))))
    pairs = np.stack([entries[same, 2], entries[starts[same], 2]], axis=1)
    found: NDArray[np.uint64] = pairs[pairs[:, 0] != pairs[:, 1]]  # a leader is an entry of its block, too
    return found


def _in_runs(
    entries: NDArray[np.uint64], more: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """All of them by digest and index, and whether each has the digest of the one before it."""
    import numpy as np

    entries = np.concatenate([more, entries]) if len(more) else entries
    entries = entries[np.lexsort((entries[:, 2], entries[:, 1], entries[:, 0]))]
    same = np.zeros(len(entries), bool)
    same[1:] = (entries[1:, :2] == entries[:-1, :2]).all(axis=1)
    return entries, same


def _no_entries() -> NDArray[np.uint64]:
    import numpy as np

    return np.empty((0, _ENTRY_WORDS), np.uint64)
