"""What to do about rows whose custom_id an earlier row has: name both places, or drop the later one.

Runs only where there are any, over the spool and the rejects as written; 40 bytes of memory a repeat.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dray.requests.rejects import Reject, RejectLog
from dray.requests.spool.batching import batches
from dray.requests.spool.parts import SpoolParts
from dray.requests.spool.spool import decode, index_of, place_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_IDS = 100_000  # kept for messages; those after them name the places alone
_ID_SHOWN = 100  # characters
_BATCH_ROWS = 256
_BATCH_BYTES = 8 << 20


class Repeats:
    """The repeated rows of a job, in input order, with both places of each, and with the ids of the first."""

    def __init__(self, pairs: NDArray[np.uint64], spool: SpoolParts, rejects: RejectLog) -> None:
        import numpy as np

        self._pairs = pairs
        self._involved = np.unique(pairs)
        self._places = np.zeros((len(self._involved), 2), np.uint64)
        self._ids: dict[int, str] = {}
        if len(pairs):
            self._locate(spool, rejects)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def indices(self) -> NDArray[np.uint64]:
        """The repeated rows' indices, ascending."""
        return self._pairs[:, 0]

    def rejects(self, names: Sequence[str]) -> Iterator[Reject]:
        """Each repeated row as a bad row."""
        for number in range(len(self._pairs)):
            yield self.reject(number, names)

    def reject(self, number: int, names: Sequence[str]) -> Reject:
        """The ``number``-th repeated row as a bad row that names the first."""
        index, first = (int(value) for value in self._pairs[number])
        file_no, line_no = self._place(index)
        known = self._ids.get(self._position(first))
        shown = "the same custom_id" if known is None else f"the same custom_id, {known[:_ID_SHOWN]!r}"
        first_file, first_line = self._place(first)
        return Reject(
            index=index,
            custom_id=None,
            file_no=file_no,
            line_no=line_no,
            code="duplicate_custom_id",
            message=f"{names[first_file]}:{first_line} has {shown}; give each row one of its own",
            field="custom_id",
        )

    def _locate(self, spool: SpoolParts, rejects: RejectLog) -> None:
        for position, line in _matched(self._involved, spool.lines(), index_of):
            if position is not None:
                self._places[position] = place_of(line)
                self._keep_id(position, decode(line).custom_id)
        for position, line in _matched(self._involved, rejects.lines(), _reject_index):
            if position is not None:
                reject = Reject.decode(line)
                self._places[position] = (reject.file_no, reject.line_no)
                self._keep_id(position, reject.custom_id)

    def _keep_id(self, position: int, custom_id: str | None) -> None:
        if custom_id is not None and len(self._ids) < _MOST_IDS:
            self._ids[position] = custom_id

    def _position(self, index: int) -> int:
        import numpy as np

        return int(np.searchsorted(self._involved, np.uint64(index)))

    def _place(self, index: int) -> tuple[int, int]:
        file_no, line_no = self._places[self._position(index)]
        return int(file_no), int(line_no)


def drop_repeats(repeats: Repeats, spool: SpoolParts, dropped: RejectLog, names: Sequence[str]) -> None:
    """Rewrite the spool without the repeated rows, which go to ``dropped``. Its groups stay groups."""
    import numpy as np

    found = np.zeros(len(repeats), np.bool_)
    with spool.thinning() as (lines, keep):
        for number, line in _matched(repeats.indices, lines, index_of):
            keep(None if number is not None else line)
            if number is not None:
                found[number] = True
    for number in np.flatnonzero(found).tolist():
        dropped.add(repeats.reject(number, names))


def merged_rejects(repeats: Repeats, rejects: RejectLog, dropped: RejectLog) -> Iterator[Reject]:
    """All bad rows in input order; one that repeats an id loses it."""
    own = (
        Reject.decode(line) if number is None else Reject.decode(line).anonymous()
        for number, line in _matched(repeats.indices, rejects.lines(), _reject_index)
    )
    return heapq.merge(own, dropped, key=lambda reject: reject.index)


def _matched(
    wanted: NDArray[np.uint64], lines: Iterable[bytes], index_of_line: Callable[[bytes], int]
) -> Iterator[tuple[int | None, bytes]]:
    """(place in ``wanted``, line), the place None for other lines; ``wanted`` ascends, lines need not."""
    import numpy as np

    for batch in batches(lines, rows=_BATCH_ROWS, size=_BATCH_BYTES):
        indices = np.fromiter(map(index_of_line, batch), np.uint64, len(batch))
        places = np.searchsorted(wanted, indices)
        there = places < len(wanted)
        there[there] = wanted[places[there]] == indices[there]
        for line, place, known in zip(batch, places.tolist(), there.tolist(), strict=True):
            yield (place if known else None), line


def _reject_index(line: bytes) -> int:
    return int(line[1 : line.index(b",")])
