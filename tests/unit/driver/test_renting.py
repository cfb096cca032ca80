"""Machines of a rented cluster follow the job's replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.asking import ReplicaResources
from dray.cluster.capacity import Capacity, Room
from dray.cluster.providers.protocol import Grant, Machine, Market, Phase
from dray.driver.events import CapacityDecided, Event, MarketDecided, ReplicaChanged
from dray.driver.renting import Renting, replicas_on
from dray.errors import ClusterError
from dray.store import ReplicaState

pytestmark = pytest.mark.unit


class Rental:
    """A provider with a limit; ``calls`` is what it was asked for."""

    where = "the cluster"

    def __init__(self, *, most: int = 10) -> None:
        self.most = most
        self.calls: list[Any] = []
        self.machines = [_machine(0, head=True), _machine(1)]
        self.trouble: ClusterError | None = None

    def nodes(self) -> tuple[Machine, ...]:
        return tuple(self.machines)

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        self.calls.append(workers if on_demand is None else (workers, on_demand))
        if self.trouble is not None:
            error, self.trouble = self.trouble, None
            raise error
        while len(self.machines) - 1 < min(workers, self.most):
            self.machines.append(_machine(len(self.machines)))
        mine = tuple(self.machines[1:])
        return Grant(wanted=workers, machines=mine, reasons=("none left",) if len(mine) < workers else ())

    def drain(self, names: Collection[str]) -> None:
        self.calls.append(sorted(names))
        self.machines = [one for one in self.machines if one.name not in names]


def _machine(number: int, *, head: bool = False) -> Machine:
    return Machine(
        name=f"i-{number}", kind="g6.xlarge", market=Market.SPOT, phase=Phase.UP, head=head,
        address=f"10.0.0.{number}",
    )  # fmt: skip


def _decided(before: int, replicas: int) -> CapacityDecided:
    return CapacityDecided(before=before, replicas=replicas, reason="so")


def _changed(name: str, state: ReplicaState, node: int, *, retired: bool = False) -> ReplicaChanged:
    """As the driver makes it of a replica."""
    replica: Any = SimpleNamespace(
        name=name, state=state, began=0.0, node=f"node-{node}", host=None, retired=retired
    )
    return ReplicaChanged.of(replica, 1.0)


def _renting(
    rental: Any,
    replicas: int = 1,
    *,
    holds: int = 1,
    told: list[Event] | None = None,
    patient: bool = False,
) -> Renting:
    def addresses(nodes: Collection[str]) -> list[str]:
        return [f"10.0.0.{node.removeprefix('node-')}" for node in nodes]

    heard = [] if told is None else told
    return Renting(
        rental, replicas, heard.append,
        holds=lambda: holds, addresses=addresses, patient=patient, look_seconds=0.05,
    )  # fmt: skip


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        _pause(0.01)


def _pause(seconds: float = 0.2) -> None:
    """Several looks long."""
    threading.Event().wait(seconds)


@pytest.mark.parametrize(("holds", "machines"), [(1, 3), (2, 2)])
def test_more_replicas_get_machines(holds: int, machines: int) -> None:
    rental = Rental()
    with _renting(rental, holds=holds) as renting:
        renting.hear(_decided(1, 3))
        _until(lambda: len(rental.machines) == 1 + machines)
    assert rental.calls == [machines]


def test_a_patient_one_asks_for_spot_until_the_driver_decides_otherwise() -> None:
    rental = Rental(most=1)
    with _renting(rental, 4, holds=2, patient=True) as renting:
        _until(lambda: len(rental.calls) >= 2)
        renting.hear(MarketDecided(on_demand=1, reason="1 spot and 1 on-demand replicas: so"))
        _until(lambda: rental.calls[-1] == (2, 1))
        renting.hear(MarketDecided(on_demand=0, reason="so"))
        _until(lambda: rental.calls[-1] == (2, 0))
    assert set(rental.calls) == {(2, 0), (2, 1)}


def test_machines_that_are_there_suffice() -> None:
    """The user bought more than the job begins with: none is ended, and none is asked for."""
    rental = Rental()
    rental.machines += [_machine(2), _machine(3)]
    with _renting(rental) as renting:
        renting.hear(_decided(1, 2))
        renting.hear(_decided(2, 1))
        _pause()
    assert rental.calls == []


def test_a_machine_that_went_is_replaced() -> None:
    """Without an event of capacity: a spot machine of a job with two replicas is taken back."""
    rental = Rental()
    rental.machines.append(_machine(2))
    with _renting(rental, 2):
        _pause()
        assert rental.calls == []
        rental.machines.pop()
        _until(lambda: len(rental.machines) == 3)
    assert rental.calls == [2]


def test_what_cannot_be_had_is_asked_for_again() -> None:
    rental, told = Rental(most=2), list[Event]()
    rental.trouble = ClusterError("the service is away")
    with _renting(rental, told=told) as renting:
        renting.hear(_decided(1, 3))
        _until(lambda: len(rental.calls) >= 4)
        rental.most = 3
        _until(lambda: len(rental.machines) == 4)
        _pause()
        asked = len(rental.calls)
        _pause()
        assert len(rental.calls) == asked  # there is nothing to ask for any more
    lines = [one.text or "" for one in told]
    assert any("the service is away" in line for line in lines)
    assert sum("1 of 3 machines cannot be had" in line for line in lines) == 1


def test_a_machine_goes_when_its_last_replica_was_given_back() -> None:
    rental = Rental()
    rental.machines.append(_machine(2))
    with _renting(rental) as renting:
        for name, node in (("a", 1), ("b", 2), ("c", 2)):
            renting.hear(_changed(name, ReplicaState.READY, node))
        for state in (ReplicaState.LEAVING, ReplicaState.GONE):
            renting.hear(_changed("b", state, 2, retired=True))
        renting.hear(_changed("c", ReplicaState.LEAVING, 2, retired=True))  # it finishes what it has
        _pause()
        assert rental.calls == []
        renting.hear(_changed("c", ReplicaState.GONE, 2, retired=True))
        _until(lambda: rental.calls == [["i-2"]])
        renting.hear(_changed("a", ReplicaState.GONE, 1))  # it died: its successor may come there
        _pause()
    assert rental.calls == [["i-2"]]
    assert [one.name for one in rental.machines] == ["i-0", "i-1"]


def _room(cpus: float, gpus: float) -> Room:
    return Room(cpus=cpus, gpus=gpus, free_cpus=0.0, free_gpus=0.0)


@pytest.mark.parametrize(
    ("rooms", "ask", "holds"),
    [
        ([], ReplicaResources(cpus=1, gpus=1), 1),
        ([_room(0, 0), _room(0, 0), _room(48, 4)], ReplicaResources(cpus=1, gpus=1), 4),  # and no head
        ([_room(0, 0), _room(48, 4), _room(8, 1)], ReplicaResources(cpus=1, gpus=1), 1),
        ([_room(48, 4)], ReplicaResources(cpus=1, gpus=2), 2),
        ([_room(8, 0)], ReplicaResources(cpus=2), 4),
        ([_room(1, 1)], ReplicaResources(cpus=0, gpus=0.25), 4),
    ],
)  # fmt: skip
def test_a_machine_holds_as_many_replicas_as_the_smallest_worker(
    rooms: list[Room], ask: ReplicaResources, holds: int
) -> None:
    assert replicas_on(Capacity(nodes=(), rooms=tuple(rooms)), ask) == holds


def test_a_cluster_that_says_nothing_counts_for_one_replica_a_machine() -> None:
    assert replicas_on(None, ReplicaResources(cpus=1)) == 1
