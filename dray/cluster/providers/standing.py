"""A cluster that ``dray cluster up`` made, for a job that joins it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dray.cluster.providers.protocol import (
    Access,
    AsksAhead,
    Expired,
    Grant,
    Machine,
    Market,
    Phase,
    Planned,
    Provider,
)
from dray.errors import ConfigError


class StandingProvider:
    """The cluster of ``made``. The job puts off its end, and neither makes, changes nor ends it."""

    own = False
    markets = frozenset({Market.OWN})
    largest = None

    def __init__(self, made: Provider) -> None:
        self._made = made
        self.where = made.where
        self.join_seconds = made.join_seconds

    def plan(self) -> tuple[Planned, ...]:
        """Nothing is made."""
        return ()

    def start(self) -> None:
        """Have it live on.

        Raises:
            ConfigError: it is not there.
        """
        if not any(one.head and one.phase is not Phase.LEAVING for one in self._made.nodes()):
            raise ConfigError(f"{self.where} has no head; start it with `dray cluster up`")
        self._made.keep(at_once=True)

    def access(self, look: Callable[[], None] = lambda: None) -> Access:
        """The access that its provider gives."""
        return self._made.access(look)

    def nodes(self) -> tuple[Machine, ...]:
        """All of its machines."""
        return self._made.nodes()

    def asked(self) -> Sequence[float | None]:
        """The workers that its provider asked for ahead."""
        return self._made.asked() if isinstance(self._made, AsksAhead) else ()

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        """Grant the workers that exist: `dray cluster up` changes how many."""
        have = tuple(one for one in self._made.nodes() if not one.head)
        reasons = ("`dray cluster up` changes its size",) if len(have) < workers else ()
        return Grant(wanted=workers, machines=have, reasons=reasons)

    def drain(self, names: Collection[str]) -> None:
        """Do nothing: its machines are not the job's to end."""

    def keep(self, *, at_once: bool = False) -> None:
        """Put off its end."""
        self._made.keep(at_once=at_once)

    def leave(self) -> None:
        """It goes on running."""

    def release(self) -> tuple[str, ...]:
        """It goes on running."""
        return ()

    def sweep(self) -> tuple[Expired, ...]:
        """Nothing of it is the job's."""
        return ()
