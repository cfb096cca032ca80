"""Numbers of 64 bits, mixed: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEP = np.uint64(0x9E3779B97F4A7C15)
"""Its multiples are far apart: seeds for numbers that are to be mixed apart."""

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a number in every bit of its result; different numbers stay different."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    found: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return found
