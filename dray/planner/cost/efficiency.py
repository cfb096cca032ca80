"""How much of the predicted rate a replica reaches (phi), and by how much that may be off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite

from dray.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi:
    """Measured over predicted rate. ``reason`` is where it comes from; ``assumed``: no run was measured.
    ``of_split``: runs were measured whose replicas were split over devices and nodes in the same way.

    Raises:
        ConfigError: not 0 < low <= likely <= high.
    """

    likely: float
    low: float
    high: float
    reason: str
    assumed: bool = False
    of_split: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.likely <= self.high and isfinite(self.high)):
            raise ConfigError(
                f"phi is {self.low:g} to {self.high:g} around {self.likely:g}; "
                "0 < low <= likely <= high must hold"
            )

    def widened(self, factor: float, reason: str) -> Phi:
        """The same with bounds further off by ``factor``, and one more reason."""
        said = f"{self.reason}; {reason}"
        return replace(self, low=self.low / factor, high=self.high * factor, reason=said)


PRIOR = Phi(
    likely=0.85,
    low=0.65,
    high=1.05,
    reason="vLLM reached 0.70 to 1.04 of the prediction on an H200, and 0.83 to 0.93 in published runs",
    assumed=True,
)
"""dray's own runs on an H200 (November 2026), MLPerf v5.1 0.83 and 0.85, RayLLM-Batch (September 2024) 0.93,
TensorRT-LLM FP8 (2025) about 1.05.
The lower end lies as far below as the model's worst error on its reference points."""

PARALLEL_FACTOR = 1.4
"""Over several devices the bounds are wider by this: such reference points are within 40%."""
NODES_FACTOR = 1.25
"""The same over several nodes: a guess, as no such run was measured, and networks differ."""
DOUBT_FACTOR = 1.25
"""The same for a device with figures that no source backs."""

PhiFor = Callable[[str, str], Phi]
"""Phi by the name of the device, and the format of the weights: ``fp8``, or ``fp8 TP4 PP1`` where split."""


def prior(_device: str, _weights: str) -> Phi:
    """The prior for every device and format."""
    return PRIOR
