"""Machines of a rented cluster follow the job's replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from dray.cluster.providers.protocol import Grant, Machine, Market, Phase
from dray.driver.events import CapacityDecided, ReplicaChanged
from dray.driver.renting import Renting
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

    def desire(self, workers: int) -> Grant:
        self.calls.append(workers)
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


def _changed(name: str, state: ReplicaState, node: int) -> ReplicaChanged:
    return ReplicaChanged(name=name, state=state, began=0.0, at=0.0, node=f"node-{node}", host=None, gpus=1.0)


def _renting(rental: Any, holds: int = 1, retry: float = 0.05) -> Renting:
    def addresses(nodes: Collection[str]) -> list[str]:
        return [f"10.0.0.{node.removeprefix('node-')}" for node in nodes]

    return Renting(rental, holds=lambda: holds, addresses=addresses, retry_seconds=retry)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


@pytest.mark.parametrize(("holds", "machines"), [(1, 3), (2, 2)])
def test_more_replicas_get_machines(holds: int, machines: int) -> None:
    rental = Rental()
    with _renting(rental, holds) as renting:
        renting.hear(_decided(1, 3))
        _until(lambda: len(rental.machines) == 1 + machines)
    assert rental.calls == [machines]


def test_machines_that_are_there_suffice() -> None:
    """The user bought more than the job begins with: none is ended, and none is asked for."""
    rental = Rental()
    rental.machines += [_machine(2), _machine(3)]
    with _renting(rental) as renting:
        renting.hear(_decided(1, 2))
        renting.hear(_decided(2, 1))
        threading.Event().wait(0.2)
    assert rental.calls == []


def test_what_cannot_be_had_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    rental = Rental(most=2)
    rental.trouble = ClusterError("the service is away")
    with _renting(rental) as renting:
        renting.hear(_decided(1, 3))
        _until(lambda: len(rental.calls) >= 4)
        rental.most = 3
        _until(lambda: len(rental.machines) == 4)
        threading.Event().wait(0.2)
        asked = len(rental.calls)
        threading.Event().wait(0.2)
        assert len(rental.calls) == asked  # there is nothing to ask for any more
    assert "the service is away" in caplog.text
    assert caplog.text.count("1 of 3 machines cannot be had") == 1


def test_a_machine_goes_when_its_last_replica_was_given_back() -> None:
    rental = Rental()
    rental.machines.append(_machine(2))
    with _renting(rental) as renting:
        for name, node in (("a", 1), ("b", 2), ("c", 2)):
            renting.hear(_changed(name, ReplicaState.READY, node))
        renting.hear(_changed("b", ReplicaState.RETIRED, 2))
        threading.Event().wait(0.2)
        assert rental.calls == []
        renting.hear(_changed("c", ReplicaState.RETIRED, 2))
        _until(lambda: rental.calls == [["i-2"]])
        renting.hear(_changed("a", ReplicaState.GONE, 1))  # it died: its successor may come there
        threading.Event().wait(0.2)
    assert rental.calls == [["i-2"]]
    assert [one.name for one in rental.machines] == ["i-0", "i-1"]
