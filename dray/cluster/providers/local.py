"""Ray on this machine, for the time of one job: one node, which ends with the process that started it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from dray.cluster.base import STABLE_RESOURCE, ClusterSettings
from dray.cluster.head import MARK, Head
from dray.cluster.providers.protocol import Access, Expired, Grant, Machine, Market, Phase, Planned
from dray.cluster.warm_head import next_head

_NAME = "this-machine"


class LocalProvider:
    """A head process that runs Ray."""

    where = "the Ray of this machine"
    own = True
    markets = frozenset({Market.OWN})
    largest = None
    join_seconds = float("inf")

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._head: Head | None = None
        self._address = ""

    def plan(self) -> tuple[Planned, ...]:
        """One process."""
        body = {
            "num_cpus": self._settings.num_cpus if self._settings.num_cpus is not None else os.cpu_count(),
            "num_gpus": self._settings.num_gpus
            if self._settings.num_gpus is not None
            else "as Ray counts them",
            "resources": {STABLE_RESOURCE: MARK},
            "authentication": "token",
            "ends": "with the process of the job",
        }
        return (Planned(kind="process", name="ray head", body=body),)

    def start(self) -> None:
        """Start the processes, in the environment of now; again does nothing. Imports nothing of Ray's."""
        if self._head is None:
            self._head = next_head()
            self._head.begin(self._settings)

    def access(self, look: Callable[[], None] = lambda: None) -> Access:
        """Wait until Ray has started."""
        self.start()
        assert self._head is not None
        self._address = self._address or self._head.wait(look)
        return Access(address=self._address)

    def nodes(self) -> tuple[Machine, ...]:
        """This machine, once it is asked for."""
        if self._head is None:
            return ()
        phase = Phase.UP if self._address else Phase.COMING
        host = self._address.rpartition(":")[0]
        return (
            Machine(
                name=_NAME,
                kind="this machine",
                market=Market.OWN,
                phase=phase,
                head=True,
                address=host,
                hourly=0.0,
            ),
        )

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        """No other node comes to it."""
        reasons = ("a cluster of this machine has one node",) if workers else ()
        return Grant(wanted=workers, reasons=reasons)

    def drain(self, names: Collection[str]) -> None:
        """Do nothing: its one node goes with the cluster alone."""

    def keep(self, *, at_once: bool = False) -> None:
        """It ends with this process, and not by the clock."""

    def leave(self) -> None:
        """Ask Ray to end; returns at once."""
        if self._head is not None:
            self._head.ask_to_stop()

    def release(self) -> tuple[str, ...]:
        """End Ray, and wait until its processes are gone."""
        head, self._head = self._head, None
        if head is None:
            return ()
        head.stop()
        self._address = ""
        return (_NAME,)

    def sweep(self) -> tuple[Expired, ...]:
        """Nothing outlives the process that started it."""
        return ()
