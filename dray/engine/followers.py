"""The parts of an engine on other nodes than its replica's: Ray actors in the replica's placement group.

The replica's process starts them, and Ray ends them with it. Each runs the ranks of its node; the engine
itself, with its scheduler, is the replica's. An engine that lost a part cannot go on.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

from dray.engine.protocol import EngineSpec
from dray.engine.ranks import NodeRank, nodes_of
from dray.engine.ray_errors import ray_errors
from dray.errors import ConfigError, DrayError
from dray.ports import lasting_port

_HOST_IP = "VLLM_HOST_IP"  # the address by which vLLM's processes on other nodes reach those of this one


class Followers:
    """Starts the parts as it is made. ``leader`` is what the replica's own engine is built from."""

    def __init__(self, name: str, spec: EngineSpec) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = ray.util.get_current_placement_group()
        address = _own_address()
        port = lasting_port(address)
        self.leader = replace(spec, rank=NodeRank(0, address, port))
        self._names: dict[Any, str] = {}
        self._actors = []
        self._guard = threading.Lock()
        nodes = nodes_of(spec.arguments)
        for number in range(1, nodes):
            bundle = group.bundle_specs[number]
            actor = (
                ray.remote(Follower)
                .options(
                    num_cpus=bundle.get("CPU", 0),
                    num_gpus=bundle.get("GPU", 0),
                    max_restarts=0,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
                )
                .remote()
            )
            self._actors.append(actor)  # Ray ends an actor that has no handle
            call = actor.run.remote(replace(spec, rank=NodeRank(number, address, port)))
            self._names[call] = f"{name}, its part on node {number + 1} of {nodes}"

    def ended(self, seconds: float = 0.0) -> DrayError | None:
        """Why one of them ended, within ``seconds``; None while all of them run. For any thread."""
        import ray

        with self._guard:
            done, _ = ray.wait(list(self._names), timeout=seconds)
        for call in done:
            try:
                with ray_errors(self._names[call]):
                    ray.get(call)
            except DrayError as error:
                return error
        return None


class Follower:
    """A node's part, as a Ray actor. Its one call lasts as long as its ranks."""

    def run(self, spec: EngineSpec) -> None:
        """Run the ranks of this node until one of them ends.

        Raises:
            EngineDeadError: one did.
            EngineStartError, WeightsError, ConfigError: they never ran.
        """
        _own_address()
        if spec.name == "vllm":
            from dray.engine.vllm_adapter.following import run_ranks

            run_ranks(spec)
        elif spec.name == "simulated":
            threading.Event().wait()  # its leader pretends to compute for all
        raise ConfigError(f"the engine {spec.name!r} does not run on several nodes")


def _own_address() -> str:
    """This node's, as Ray's other nodes reach it. vLLM is told, where the user has not said another one."""
    import ray

    address: str = ray.util.get_node_ip_address()
    os.environ.setdefault(_HOST_IP, address)
    return address
