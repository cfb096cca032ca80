"""The order of a template's lines in which rows share the longest prefixes.

Only lines that name columns change places, and only with such lines next to them; all rows get the same
order. The rows are counted as they are sorted later: each shares with the row before all leading lines that
are equal. What a line saves then depends on the set of lines up to it, and not on their order: its length in
all rows, less its length in rows whose lines up to it are the first of their sort. So the best order is found
over sets of lines: 2^m of them, not m! orders.

The objective is that of Liu et al., "Optimizing LLM Queries in Relational Data Analytics Workloads"
(arXiv:2403.05821). They give each row an order of its own; one order for all keeps rows comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dray.requests.columns.template import Template, names_columns, runs_of
from dray.requests.mixing import STEP, mixed
from dray.requests.validate import BadRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ROWS = 1 << 18
"""Rows that are looked at: the first of the input. A line of each takes some 80 bytes while they are read."""
MOST_LINES = 10
"""Lines of a run that are put in the best order, those that repeat most; others follow as they were."""
LEAST_GAIN = 0.02
"""Part of the lines' text that must be shared beyond what the template's own order gives."""


@dataclass(frozen=True, slots=True, eq=False)
class LineValues:
    """What the lines of a template are in some rows: a hash and a length (characters) of each, [M, N]."""

    hashes: NDArray[np.uint64]
    lengths: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Found:
    """``lines`` in their new order, and the part of their text that rows share: in it, and as ``given``."""

    lines: list[str]
    shared: float
    given: float


def ordered_lines(lines: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Found:
    """The best order of a template's lines for some rows; ConfigError where none can change places."""
    runs = runs_of(lines)
    order, shared, given = best_order(_values(lines, rows), runs)
    return Found([lines[line] for line in order], shared, given)


def best_order(values: LineValues, runs: Sequence[Sequence[int]]) -> tuple[list[int], float, float]:
    """The order of all lines, and which part of the runs' text rows share: in it, and as given."""
    order = list(range(len(values.hashes)))
    hashes = _by_line(values.hashes)
    before = np.zeros(hashes.shape[1], np.uint64)
    saved = given = 0
    for run in runs:
        found = _Run(hashes[run], values.lengths[run], before)
        best = found.best()
        saved += found.saved(best)
        given += found.saved(range(len(run)))
        for place, line in zip(run, best, strict=True):
            order[place] = run[line]
        before = before + hashes[run].sum(axis=0, dtype=np.uint64)
    total = max(int(values.lengths.sum(dtype=np.int64)), 1)
    if (saved - given) / total < LEAST_GAIN:
        return list(range(len(order))), given / total, given / total
    return order, saved / total, given / total


class _Run:
    """Neighbouring lines; ``before`` stands for all that comes before them. Sets of lines are bit masks."""

    def __init__(
        self, hashes: NDArray[np.uint64], lengths: NDArray[np.int32], before: NDArray[np.uint64]
    ) -> None:
        self._hashes = hashes
        self._lengths = lengths
        self._totals = lengths.sum(axis=1, dtype=np.int64)
        self._before = before
        self._apart: set[int] = set()  # sets in which no two rows are alike; larger ones are neither
        self._known: dict[int, dict[int, int]] = {}

    def best(self) -> list[int]:
        """The lines in the order that saves most; where two save as much, as they were."""
        count = len(self._hashes)
        alone = sorted(range(count), key=lambda line: (-self._gains(1 << line)[line], line))
        tried = sorted(alone[:MOST_LINES])
        sets: dict[int, tuple[int, int]] = {0: (0, -1)}
        for mask in _subsets(tried):
            gains = self._gains(mask)
            sets[mask] = max((sets[mask & ~(1 << line)][0] + gain, line) for line, gain in gains.items())
        order: list[int] = []
        mask = sum(1 << line for line in tried)
        while mask:
            line = sets[mask][1]
            order.append(line)
            mask &= ~(1 << line)
        return [*reversed(order), *sorted(alone[MOST_LINES:])]

    def saved(self, order: Iterable[int]) -> int:
        """Characters that rows share with the row before."""
        mask = total = 0
        for line in order:
            mask |= 1 << line
            total += self._gains(mask)[line]
        return total

    def _gains(self, mask: int) -> dict[int, int]:
        """What each line of a set saves when it is the set's last one."""
        known = self._known.get(mask)
        if known is None:
            known = self._known[mask] = self._counted(mask)
        return known

    def _counted(self, mask: int) -> dict[int, int]:
        lines = [line for line in range(len(self._hashes)) if mask >> line & 1]
        if any(mask & ~(1 << line) in self._apart for line in lines):
            self._apart.add(mask)
            return dict.fromkeys(lines, 0)
        first = _first_of_sort(self._before + self._hashes[lines].sum(axis=0, dtype=np.uint64))
        if first.all():
            self._apart.add(mask)
        return {
            line: int(self._totals[line] - self._lengths[line, first].sum(dtype=np.int64)) for line in lines
        }


def _subsets(lines: Sequence[int]) -> list[int]:
    """All sets of some lines but the empty one, each after its own subsets."""
    masks = [0]
    for line in lines:
        masks += [mask | 1 << line for mask in masks]
    return masks[1:]


def _first_of_sort(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    import pandas  # half a second, for jobs that ask for this

    return ~np.asarray(pandas.Index(keys).duplicated())


def _by_line(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes whose sums tell sets of lines apart: equal texts of two lines do not stand for each other."""
    seeds = (np.arange(1, len(hashes) + 1, dtype=np.uint64) * STEP)[:, None]
    return mixed(hashes ^ seeds)


def _values(lines: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> LineValues:
    """The lines of rows; a row that cannot be a request is left out."""
    texts: list[Callable[[Mapping[str, Any]], str]] = [_renderer(line) for line in lines]
    hashes: list[list[int]] = []
    lengths: list[list[int]] = []
    for row in islice(rows, MOST_ROWS):
        try:
            found = [text(row) for text in texts]
        except BadRow:
            continue
        hashes.append([hash(text) for text in found])  # compared within this process alone
        lengths.append([len(text) for text in found])
    shape = (len(hashes), len(lines))
    return LineValues(
        np.array(hashes, np.int64).reshape(shape).T.copy().view(np.uint64),
        np.array(lengths, np.int32).reshape(shape).T.copy(),
    )


def _renderer(line: str) -> Callable[[Mapping[str, Any]], str]:
    return Template.parse(line).render if names_columns(line) else lambda _: ""
