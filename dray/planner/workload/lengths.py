"""How many tokens a row will generate, before it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dray.planner.workload.counting import UNBOUNDED, Counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_OUTPUT = 256.0
"""Tokens that are assumed for a row that sets no max_tokens, as long as no finished job says better."""


class Lengths(Protocol):
    """Predicts outputs. The seam for lengths that were learned from finished jobs."""

    def predicted(self, counted: Counted) -> NDArray[np.float32]:
        """Tokens of each row's answers; ``chain`` and ``blocks`` tell rows of one template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A row generates ``share`` of the most that it allows; each answer ``unknown`` where it allows all."""

    share: float = 1.0
    unknown: float = UNKNOWN_OUTPUT

    def predicted(self, counted: Counted) -> NDArray[np.float32]:
        """Tokens of each row's answers."""
        bounded = counted.most_output * np.float32(self.share)
        unknown = np.float32(self.unknown) * counted.sequences.astype(np.float32)
        return np.where(counted.most_output == UNBOUNDED, unknown, bounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Each row generates ``mean`` tokens, as the rows of finished jobs did, or less where it allows no more.

    ``error`` is by which share the mean may be off, ``jobs`` how many told it.
    """

    mean: float
    error: float
    jobs: int

    def predicted(self, counted: Counted) -> NDArray[np.float32]:
        """Tokens of each row's answers."""
        mean = np.float32(self.mean)
        return np.where(counted.most_output == UNBOUNDED, mean, np.minimum(counted.most_output, mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLeast:
    """Like ``Bounds``, but no shorter than ``mean``: answers of ``jobs`` finished jobs were cut at that."""

    mean: float
    jobs: int

    def predicted(self, counted: Counted) -> NDArray[np.float32]:
        """Tokens of each row's answers."""
        bounds = Bounds().predicted(counted)
        return np.where(counted.most_output == UNBOUNDED, np.maximum(bounds, np.float32(self.mean)), bounds)

    def error(self, mean: float, usual: float, open_ended: float) -> float:
        """How much a predicted ``mean`` may be off: as ``usual``, but not to less than the least.

        Rows without max_tokens may also have longer answers: then it is ``open_ended`` at least.
        """
        return max(open_ended, min(usual, max(0.0, 1.0 - self.mean / max(mean, 1.0))))
