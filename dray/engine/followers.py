"""The parts of an engine on other nodes than its replica's: Ray actors in the replica's placement group.

The replica's process starts them, and Ray ends them with it. Each runs the ranks of its node; the engine
itself, with its scheduler, is the replica's. An engine that lost a part cannot go on.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from dray.engine.own_log import own_log
from dray.engine.own_place import own_node
from dray.engine.part_ends import note_end, take_end
from dray.engine.protocol import EngineSpec
from dray.engine.ranks import NodeRank, nodes_of
from dray.engine.ray_errors import ray_errors
from dray.engine.start_errors import start_error, with_log
from dray.engine.tuning import BatchLimits
from dray.errors import ConfigError, DrayError, EngineStartError, NotImportedError, ReplicaLostError
from dray.ports import lasting_port

logger = logging.getLogger(__name__)

_HOST_IP = "VLLM_HOST_IP"  # the address by which vLLM's processes on other nodes reach those of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlace:
    """The id of a part's node, and where its log is."""

    node: str
    log: str


@dataclass(kw_only=True)
class _Part:
    """A part's actor, the call that ends when the part does, and the call for its place."""

    name: str
    actor: Any
    runs: Any
    where: Any


class Followers:
    """Starts the parts as it is made, on the other places of a placement group.

    ``leader`` is what the replica's own engine is built from.
    """

    def __init__(self, name: str, spec: EngineSpec, group: Any) -> None:
        self._replica = name
        take_end(name)  # a job of this name, in another store, may have left its note on this cluster
        self._group = group
        rank = NodeRank(0, _own_address(), lasting_port())
        self.leader = replace(spec, rank=rank)
        self._guard = threading.Lock()
        count = nodes_of(spec.arguments)
        ranks = [replace(rank, number=number) for number in range(1, count)]
        self._parts = [self._start(replace(spec, rank=one), count) for one in ranks]

    def _start(self, spec: EngineSpec, count: int) -> _Part:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert spec.rank is not None
        number = spec.rank.number
        bundle = self._group.bundle_specs[number]
        actor = (
            ray.remote(EnginePart)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                max_concurrency=4,  # it answers while it runs
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, number),
            )
            .remote()
        )
        name = f"{self._replica}, its part on node {number + 1} of {count}"
        return _Part(name=name, actor=actor, runs=actor.run.remote(spec), where=actor.place.remote())

    def take_limits(self, limits: BatchLimits) -> None:
        """Tell all of them the batches of the leader's engine: their ranks start once they know these."""
        for part in self._parts:
            part.actor.take_limits.remote(limits)

    def ended(self, seconds: float = 0.0) -> DrayError | None:
        """Why one of them ended, within ``seconds``; None while all of them run. For any thread."""
        import ray

        with self._guard:
            done, _ = ray.wait([part.runs for part in self._parts], timeout=seconds)
            for part in self._parts:
                error = self._end_of(part) if part.runs in done else None
                if error is not None:
                    return error
        return None

    def _end_of(self, part: _Part) -> DrayError | None:
        """Its error, and a note of its node for the driver; None where only the call was lost.

        The part's log is in Ray's files of its node, which the driver does not read: the error says where.
        """
        import ray

        try:
            with ray_errors(part.name):
                ray.get(part.runs)
        except ReplicaLostError as error:
            if error.unsure:
                part.runs = part.actor.wait.remote()
                return None
            return self._noted(part, error)
        except NotImportedError as error:  # on another node than the replica's own
            return EngineStartError(str(error))
        except DrayError as error:
            return self._noted(part, error)
        return None

    def _noted(self, part: _Part, error: DrayError) -> DrayError:
        import ray

        try:
            place: PartPlace = ray.get(part.where, timeout=0)
        except Exception:  # noqa: BLE001  it never was on a node
            return error
        note_end(self._replica, place.node)
        told = with_log(error, place.log)
        logger.error("%s", told)
        return told


class EnginePart:
    """A node's part, as a Ray actor with some threads."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: DrayError | None = None
        self._limits: Future[BatchLimits] = Future()

    def take_limits(self, limits: BatchLimits) -> None:
        """The leader's engine runs batches of this size."""
        self._limits.set_result(limits)

    def place(self) -> PartPlace:
        """Where it is."""
        return PartPlace(node=own_node(), log=own_log())

    def run(self, spec: EngineSpec) -> None:
        """Run the ranks of this node until one of them ends.

        Raises:
            EngineDeadError: one did.
            EngineStartError, WeightsError, ConfigError: they never ran.
        """
        try:
            _run(spec, self._limits)
        except BaseException as error:  # noqa: BLE001  process edge: told to the replica
            self._error = start_error(error)
            raise self._error from None
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait until :meth:`run` has ended, and raise what it raised: for a leader that lost that call."""
        self._ended.wait()
        if self._error is not None:
            raise self._error


def _run(spec: EngineSpec, limits: Future[BatchLimits]) -> None:
    _own_address()
    if spec.name == "vllm":
        from dray.engine.vllm_adapter.following import run_ranks

        run_ranks(spec, limits.result)
    elif spec.name == "simulated":
        threading.Event().wait()  # its leader pretends to compute for all
    raise ConfigError(f"the engine {spec.name!r} does not run on several nodes")


def _own_address() -> str:
    """This node's, as Ray's other nodes reach it. vLLM is told, where the user has not said another one."""
    import ray

    address: str = ray.util.get_node_ip_address()
    os.environ.setdefault(_HOST_IP, address)
    return address
