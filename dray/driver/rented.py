"""Where replicas' machines come from: those of a cluster as it is, or machines that a provider rents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What machines for replicas cost, in dollars an hour of a replica, and how many there are.

    ``spot`` and ``on_demand`` are replicas' machines that are there or come. ``spot_to_be_had`` is how many
    of spot can be had at present in all; None where only trying tells.
    """

    spot_price: float
    on_demand_price: float
    spot: int
    on_demand: int
    spot_to_be_had: int | None = None


class Rental(Protocol):
    """Machines for replicas that a provider rents: each call returns at once."""

    def offer(self) -> Offer:
        """Prices, and what is held.

        Raises:
            ClusterError: the provider does not answer.
        """

    def desire(self, *, spot: int, on_demand: int) -> None:
        """Hold so many from now on; what cannot be had shows in the next offer.

        Raises:
            ClusterError: the provider does not answer.
        """
