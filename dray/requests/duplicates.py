"""Finding repeated ids among any number of rows, in bounded memory.

Each id leaves a 16-byte digest and its row's index. Beyond a few million rows they go to temporary files,
split by the digest's first byte, and each file is searched on its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.temporary import TemporaryFolder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPILL_ROWS = 1 << 20  # 24 MiB of digests and indices
_PARTS = 256
_ENTRY_WORDS = 3  # two words of digest, one of index


class IdIndex:
    """Collects ids, then names the repeated ones. A context manager: it may hold temporary files."""

    def __init__(self, *, spill_rows: int = _SPILL_ROWS) -> None:
        self._digests = bytearray()
        self._indices = array("Q")
        self._spill_rows = spill_rows
        self._folder: TemporaryFolder | None = None

    def __enter__(self) -> IdIndex:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._folder is not None:
            self._folder.remove()

    def add(self, index: int, custom_id: str) -> None:
        """Note that row ``index`` has this id. Two ids share a digest with probability 2**-128."""
        self._digests += blake2b(custom_id.encode(), digest_size=16).digest()
        self._indices.append(index)
        if len(self._indices) >= self._spill_rows:
            self._spill()

    def repeats(self) -> NDArray[np.uint64]:
        """Rows of (index, index of the first row with the same id), by index; empty where all differ."""
        import numpy as np

        found = [_repeats_in(part) for part in self._parts()]
        pairs = np.concatenate([np.empty((0, 2), np.uint64), *found])
        ordered: NDArray[np.uint64] = pairs[np.argsort(pairs[:, 0], kind="stable")]
        return ordered

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
