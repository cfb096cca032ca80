"""Some of the rows that pass by, each as likely as any other, and the same ones every time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_MASK = (1 << 64) - 1


class Sample:
    """Iterates over rows and keeps ``least`` to twice as many of them, or all where there are fewer.

    A row stays for the hash of its position. A fixed distance between the rows that stay would see only one
    of two templates that take turns. ``most_bytes`` bounds what is kept where rows are long.
    """

    def __init__(self, rows: Iterable[bytes], least: int, most_bytes: int = 64 << 20) -> None:
        self._rows = rows
        self._least = least
        self._most_bytes = most_bytes
        self.kept: dict[int, bytes] = {}
        self.seen = 0

    @property
    def is_whole(self) -> bool:
        """Whether it holds all rows."""
        return len(self.kept) == self.seen

    def __iter__(self) -> Iterator[bytes]:
        bound, size = _MASK, 0
        for position, row in enumerate(self._rows):
            self.seen = position + 1
            if _mixed(position) <= bound:
                self.kept[position] = row
                size += len(row)
                if len(self.kept) > 2 * self._least or size > self._most_bytes:
                    bound >>= 1
                    self.kept = {place: one for place, one in self.kept.items() if _mixed(place) <= bound}
                    size = sum(map(len, self.kept.values()))
            yield row


def _mixed(position: int) -> int:
    """splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = (position + 1) * 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
