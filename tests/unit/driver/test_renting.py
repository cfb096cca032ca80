"""Machines of a rented cluster follow the job's replicas."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import Node
from dray.cluster.capacity import Capacity, Room
from dray.cluster.providers.kuberay.pods import pods_of
from dray.cluster.providers.protocol import Grant, Machine, Market, Phase
from dray.driver.capacity import rented_places
from dray.driver.capacity.rented_places import MOST_STRAYS, REST_SECONDS, Strays
from dray.driver.capacity.renting import Renting
from dray.driver.events import CapacityDecided, Event, MarketDecided, ReplicaChanged
from dray.driver.replicas.handle import ReplicaHandle
from dray.engine.protocol import EngineSpec
from dray.errors import ClusterError
from dray.kinds import Kind
from dray.store import ReplicaState
from tests.unit.driver.scripted import ScriptedProcess

pytestmark = pytest.mark.unit

ASK = ReplicaResources(cpus=0.1, gpus=1)
OVER_TWO = ReplicaResources(cpus=0.1, gpus=1, nodes=2)


class Rental:
    """A provider with a limit, and the Ray that has its machines; ``calls`` is what it was asked for.

    ``largest``: GPUs of the largest machine that it may have, and ``gives`` of those that it has. Machines
    named in ``lost`` are in no Ray.
    """

    where = "the cluster"
    join_seconds = 0.2

    def __init__(self, *, most: int = 10, gpus: int = 1, gives: int | None = None) -> None:
        self.most = most
        self.largest = gpus
        self.gives = gives or gpus
        self.calls: list[Any] = []
        self.machines = [_machine(0, 0), _machine(1, self.gives)]
        self.numbers = itertools.count(11)
        self.trouble: Exception | None = None
        self.away = False
        self.lost: set[str] = set()
        self.joins = True
        self.ends: dict[str, str] = {}

    def ended(self) -> dict[str, str]:
        return self.ends

    def capacity(self) -> Capacity | None:
        """As Ray says it."""
        if self.away:
            return None
        there = [one for one in self.machines if one.phase is Phase.UP and one.name not in self.lost]
        nodes = [
            Node(
                node_id=f"node-{one.name.removeprefix('i-')}", host=one.name, cpus=4.0, gpus=one.gpus or 0.0,
                stable=one.head, address=one.address,
            )
            for one in there
        ]  # fmt: skip
        rooms = [Room(cpus=one.cpus, gpus=one.gpus, free_cpus=0.0, free_gpus=0.0) for one in nodes]
        return Capacity(nodes=tuple(nodes), rooms=tuple(rooms))

    def nodes(self) -> tuple[Machine, ...]:
        return tuple(self.machines)

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        self.calls.append(workers if on_demand is None else (workers, on_demand))
        if self.trouble is not None:
            error, self.trouble = self.trouble, None
            raise error
        while len(self.machines) - 1 < min(workers, self.most):
            fresh = _machine(next(self.numbers), self.gives)
            self.machines.append(fresh)
            if not self.joins:
                self.lost.add(fresh.name)
        mine = tuple(self.machines[1:])
        return Grant(wanted=workers, machines=mine, reasons=("none left",) if len(mine) < workers else ())

    def drain(self, names: Collection[str]) -> None:
        self.calls.append(sorted(names))
        self.machines = [one for one in self.machines if one.name not in names]


def _machine(number: int, gpus: int = 1) -> Machine:
    return Machine(
        name=f"i-{number}", kind=f"of-{gpus}", market=Market.SPOT, phase=Phase.UP, head=not number,
        address=f"10.0.0.{number}", gpus=gpus,
    )  # fmt: skip


def _decided(before: int, replicas: int) -> CapacityDecided:
    return CapacityDecided(before=before, replicas=replicas, reason="so")


def _changed(name: str, state: ReplicaState, node: int, *, retired: bool = False) -> ReplicaChanged:
    """As the driver makes it of a replica."""
    replica: Any = SimpleNamespace(
        name=name,
        state=state,
        began=0.0,
        clock=float,
        node=f"node-{node}",
        host=None,
        retired=retired,
        others=(),
    )
    return ReplicaChanged.of(replica, 1.0)


def _renting(
    rental: Any,
    replicas: int = 1,
    *,
    told: list[Event] | None = None,
    patient: bool = False,
    ask: ReplicaResources = ASK,
    most: int | None = None,
) -> Renting:
    heard = [] if told is None else told
    return Renting(
        rental, replicas, heard.append,
        ask=ask, capacity=rental.capacity, patient=patient, most=most, look_seconds=0.05,
    )  # fmt: skip


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        _pause(0.01)


def _pause(seconds: float = 0.2) -> None:
    """Several looks long."""
    threading.Event().wait(seconds)


@pytest.mark.parametrize(("gpus", "machines"), [(1, 3), (2, 2)])
def test_more_replicas_get_machines(gpus: int, machines: int) -> None:
    rental = Rental(gpus=gpus)
    with _renting(rental) as renting:
        renting.hear(_decided(1, 3))
        _until(lambda: len(rental.machines) == 1 + machines)
    assert rental.calls == [machines]


def test_a_patient_one_asks_for_spot_until_the_driver_decides_otherwise() -> None:
    rental = Rental(most=1, gpus=2)
    with _renting(rental, 4, patient=True) as renting:
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


def test_an_error_of_the_providers_library_ends_no_renting() -> None:
    """Nothing would be rented, and nothing given back; its words may be those of a row."""
    rental, told = Rental(), list[Event]()
    rental.trouble = KeyError("confidential")
    with _renting(rental, 2, told=told):
        _until(lambda: len(rental.machines) == 3)
    assert rental.calls == [2, 2]
    assert [one.text for one in told] == ["the cluster: KeyError"]


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


def test_a_machine_goes_whose_replica_was_closed_while_it_started() -> None:
    """The replica has its node, and no engine yet: the pool closes it as no shard waits any more."""
    rental = Rental()
    rental.machines.append(_machine(2))
    process = ScriptedProcess(
        name="job/1/replica-1",
        spec=EngineSpec(name="simulated", model="m", kind=Kind.CHAT),
        avoid=frozenset(),
        place="node-2",
    )
    replica = ReplicaHandle(lane=1, process=process, slots=2)
    assert replica.has_place()
    with _renting(rental) as renting:
        renting.hear(ReplicaChanged.of(replica, 1.0))
        replica.retired = True
        replica.kill()
        renting.hear(ReplicaChanged.of(replica, 1.0))
        _until(lambda: rental.calls == [["i-2"]])


def test_machines_that_come_when_they_are_no_longer_needed_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not those that were bought, nor one on which a replica starts, nor one that the job needs."""
    monkeypatch.setattr(rented_places, "SPARE_SECONDS", 0.3)
    rental, told = Rental(), list[Event]()
    rental.machines.append(_machine(2))
    with _renting(rental, 2, told=told) as renting:
        renting.hear(_decided(2, 5))
        _until(lambda: len(rental.machines) == 1 + 5)
        renting.hear(_changed("a", ReplicaState.STARTING, 11))
        renting.hear(_decided(5, 4))
        _until(lambda: len(rental.calls) == 2)
        _pause(0.5)
    assert rental.calls == [5, ["i-12"]]
    assert [one.name for one in rental.machines] == ["i-0", "i-1", "i-2", "i-11", "i-13"]
    assert [one.text for one in told] == ["the cluster: gave back i-12, which the job no longer needs"]


@pytest.mark.parametrize("most", [2, 1])
def test_a_number_that_follows_from_the_machines_rents_no_more_of_them(most: int) -> None:
    """They hold fewer replicas than they were taken to; one that went is replaced all the same."""
    rental = Rental()
    if most > 1:
        rental.machines.append(_machine(2))
    with _renting(rental, 4, most=most):
        _pause()
        assert rental.calls == []
        rental.machines.pop()
        _until(lambda: len(rental.machines) == 1 + most)
        _pause()
    assert rental.calls == [most]


def test_machines_smaller_than_the_largest_are_asked_for_until_there_are_enough() -> None:
    """Eight replicas, of which one machine may hold eight: those that come hold one each."""
    rental = Rental(gpus=8, gives=1)
    with _renting(rental, 4):
        _until(lambda: len(rental.machines) == 1 + 4)
        _pause()
    assert rental.calls == [2, 3, 4]


def test_one_machine_of_eight_is_replaced_by_one_when_all_are_gone() -> None:
    """Nothing says any more how many replicas a machine holds: it was seen."""
    rental = Rental(gpus=8)
    with _renting(rental, 8):
        _pause()
        rental.largest = 1  # as where the provider does not know
        rental.machines.pop()
        _until(lambda: len(rental.machines) == 2)
        _pause()
    assert rental.calls == [1]


def test_unequal_machines_count_with_what_each_holds() -> None:
    rental = Rental(gpus=8)
    rental.machines.append(_machine(2, 1))
    with _renting(rental, 9):
        _pause()
    assert rental.calls == []


def test_while_rays_head_is_away_nothing_is_asked_for_or_given_back() -> None:
    rental = Rental(gpus=8)
    rental.away = True
    with _renting(rental, 16) as renting:
        for state in (ReplicaState.READY, ReplicaState.LEAVING, ReplicaState.GONE):
            renting.hear(_changed("b", state, 1, retired=state is not ReplicaState.READY))
        _pause()
        assert rental.calls == []
        rental.away = False
        _until(lambda: len(rental.calls) == 2)
    assert rental.calls[0] == ["i-1"]


def test_a_machine_that_ray_does_not_get_ends_and_another_comes() -> None:
    """Its user data failed, or its Ray daemon was killed later: it is up, and of no use."""
    rental, told = Rental(), list[Event]()
    rental.machines.append(_machine(2))
    with _renting(rental, 2, told=told):
        _pause(0.1)
        rental.lost.add("i-2")
        _until(lambda: len(rental.calls) == 2)
        _pause(0.5)
    assert rental.calls == [["i-2"], 2]
    assert [one.name for one in rental.machines] == ["i-0", "i-1", "i-11"]
    [line] = [one.text or "" for one in told]
    assert "i-2 did not join Ray within 0 s, or left it: ended" in line


def test_what_the_provider_says_of_a_machine_that_ended_while_it_booted_is_told() -> None:
    """A full quota of volumes ends an instance that EC2 has given; its console is empty then."""
    rental, told = Rental(), list[Event]()
    rental.joins = False
    with _renting(rental, 2, told=told):
        _until(lambda: len(rental.machines) == 3)
        _pause(0.1)
        rental.ends = {"i-11": "Client.VolumeLimitExceeded: Volume limit exceeded"}
        rental.machines = [one for one in rental.machines if one.name != "i-11"]
        _until(lambda: bool(told))
    assert told[0].text == (
        "the cluster: i-11 (Client.VolumeLimitExceeded: Volume limit exceeded) ended before joining Ray. The "
        "machine's console may say why"
    )


def test_a_machine_that_never_comes_up_ends_and_its_reason_is_told() -> None:
    """A node has its pod, whose image no registry has: the node is paid for to the end of the job."""
    pod = {
        "metadata": {"name": "w-1", "labels": {"ray.io/node-type": "worker", "ray.io/group": "spot"}},
        "spec": {"nodeName": "ip-10-0-0-7"},
        "status": {
            "phase": "Pending",
            "podIP": "10.1.0.1",
            "containerStatuses": [
                {
                    "name": "ray-worker",
                    "state": {"waiting": {"reason": "ErrImagePull", "message": "no image"}},
                }
            ],
        },
    }
    [found] = pods_of([pod])
    machine, now = found.machine("k", 1, None), [0.0]
    assert machine.phase is Phase.COMING
    strays, nothing = Strays(900.0, lambda: now[0]), Capacity(nodes=(), rooms=())
    for seconds, late in ((0.0, []), (899.0, []), (900.0, [machine])):
        now[0] = seconds
        assert strays.look([machine], nothing) == (late, [])
    rental, told = Rental(), list[Event]()
    rental.machines.append(replace(machine, name="i-2"))
    with _renting(rental, 2, told=told):
        _until(lambda: len(rental.calls) == 2)
    assert rental.calls == [["i-2"], 2]
    assert "i-2 (ErrImagePull: no image) did not join Ray within 0 s" in (told[0].text or "")


def test_after_some_machines_in_a_row_that_never_joined_no_more_are_asked_for() -> None:
    rental, told = Rental(), list[Event]()
    rental.joins = False
    with _renting(rental, 2, told=told):
        _until(lambda: any("asks for no more machines for 30 min" in (one.text or "") for one in told))
        _pause(0.5)
    assert len(told) == MOST_STRAYS
    assert len(rental.machines) == 2
    assert sum(one == 2 for one in rental.calls) == MOST_STRAYS


def test_machines_that_end_themselves_before_they_join_count_too_and_are_asked_for_again_later() -> None:
    """Their user data failed, and says so on their consoles; or AWS took them back while they booted."""
    now = 0.0
    strays, rental = Strays(900.0, lambda: now), Rental()
    rental.joins = False
    for number in range(MOST_STRAYS):
        assert strays.allow_more()
        rental.desire(2)
        capacity = rental.capacity()
        assert capacity is not None
        name = rental.machines[-1].name
        assert strays.look(rental.machines[1:], capacity) == ([], [])
        rental.machines.pop()
        assert strays.look(rental.machines[1:], capacity) == ([], [name])
        assert strays.in_a_row == number + 1
    assert not strays.allow_more()
    now += REST_SECONDS
    assert strays.allow_more()
    rental.joins = True
    rental.desire(2)
    capacity = rental.capacity()
    assert capacity is not None
    strays.look(rental.machines[1:], capacity)
    assert strays.in_a_row == 0


@pytest.mark.parametrize(("gpus", "replicas", "machines"), [(1, 3, 6), (2, 3, 3), (8, 1, 2)])
def test_a_replica_on_several_nodes_gets_a_machine_for_each(gpus: int, replicas: int, machines: int) -> None:
    rental = Rental(gpus=gpus)
    with _renting(rental, replicas, ask=OVER_TWO):
        _until(lambda: len(rental.machines) == 1 + machines)
        _pause()
    assert rental.calls == [machines]


def test_all_machines_of_a_replica_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that its process is not on: they are no surplus, and go back with it."""
    monkeypatch.setattr(rented_places, "SPARE_SECONDS", 0.1)
    rental = Rental()
    with _renting(rental, 2, ask=OVER_TWO) as renting:
        _until(lambda: len(rental.machines) == 5)
        for number, pair in enumerate([(1, 11), (12, 13)]):
            renting.hear(_on_two(f"replica-{number}", ReplicaState.READY, pair))
        renting.hear(_decided(2, 1))
        _pause(0.4)
        assert rental.calls == [4]
        renting.hear(_on_two("replica-1", ReplicaState.GONE, (12, 13), retired=True))
        _until(lambda: len(rental.machines) == 3)
    assert rental.calls == [4, ["i-12", "i-13"]]


def _on_two(
    name: str, state: ReplicaState, nodes: tuple[int, int], *, retired: bool = False
) -> ReplicaChanged:
    alone = _changed(name, state, nodes[0], retired=retired)
    return replace(alone, others=(f"node-{nodes[1]}",))
