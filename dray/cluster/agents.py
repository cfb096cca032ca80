"""The agents of a cluster: one Ray actor per node that fetches models for all replicas there.

On a cluster that outlives the job the agents do too, so that the next job finds its model: they are detached,
come back when they die, and end themselves after :data:`IDLE_SECONDS` without use. A driver that has not
looked at them for :data:`HOLD_SECONDS` uses them no longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dray.cluster.base import NAMESPACE, Node
from dray.cluster.forwarded_env import handed_down
from dray.cluster.ray_nodes import leaving, live_nodes
from dray.errors import DrayError, WeightsError
from dray.storage.objects import ObjectStoreOptions
from dray.weights.node.agent import Agent
from dray.weights.node.local import ModelProgress
from dray.weights.node.peers import Peer
from dray.weights.source.manifest import Manifest

IDLE_SECONDS = 600.0
HOLD_SECONDS = 300.0  # a driver looks every few seconds, and asks for its model anew if it stood still longer
_PREFIX = "agent/"
_CALL_SECONDS = 20.0
_WATCH_SECONDS = 5.0


class NodeAgent:
    """An :class:`Agent` as a Ray actor."""

    def __init__(self, node_id: str, idle_seconds: float, hold_seconds: float) -> None:
        import ray

        self._agent = Agent(node_id, ray.util.get_node_ip_address())
        seconds = (idle_seconds, hold_seconds)
        threading.Thread(target=self._end_when_idle, args=seconds, daemon=True).start()

    def pid(self) -> int:
        """The process."""
        return os.getpid()

    def peer(self) -> Peer:
        """Where this node serves its chunks."""
        return self._agent.peer()

    def meet(self, peers: Mapping[str, Peer]) -> None:
        """These are the nodes of the cluster."""
        self._agent.meet(peers)

    def hold(self, manifest: Manifest, options: ObjectStoreOptions | None, holder: str) -> ModelProgress:
        """Have the model on this node; again says how far it is."""
        return self._agent.hold(manifest, options, holder)

    def drop(self, holder: str, remove: bool) -> None:
        """``holder`` needs its models no longer."""
        self._agent.drop(holder, remove=remove)

    def _end_when_idle(self, seconds: float, hold_seconds: float) -> None:
        used = time.monotonic()
        while time.monotonic() - used < seconds:
            time.sleep(min(_WATCH_SECONDS, seconds / 4))
            self._agent.lapse(hold_seconds)
            if not self._agent.idle():
                used = time.monotonic()
        self._agent.close(remove=True)
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


class NodeAgents:
    """The agents of all nodes, holding one model for one job."""

    def __init__(self, manifest: Manifest, options: ObjectStoreOptions | None, holder: str) -> None:
        self._manifest = manifest
        self._options = options
        self._holder = holder
        self._sent: Any = None
        self._actors: dict[str, Any] = {}
        self._dead: set[str] = set()  # nodes whose agent Ray called dead in the latest look
        self._progress: dict[str, ModelProgress] = {}

    @property
    def count(self) -> int:
        """Nodes that are to have the model, as of the latest look."""
        return len(self._actors)

    def look(self) -> list[ModelProgress]:
        """How far each node is. The first call starts the fetch on all nodes.

        Nodes that joined meanwhile begin too, and those that are gone are forgotten. An agent that died
        is asked again to fetch the model; the look after its end starts another where Ray does not.
        """
        self._follow()
        self._introduce()
        if self._sent is None:  # with the checksums of 1 TB it has 4 MB: each node is to get it once
            self._sent = _put(self._manifest)
        calls = {
            node: actor.hold.remote(self._sent, self._options, self._holder)
            for node, actor in self._actors.items()
        }
        self._progress |= self._answers(calls)
        return [self._progress[node] for node in self._actors if node in self._progress]

    def drop(self, *, remove: bool) -> None:
        """The job needs its model no longer."""
        _results({node: actor.drop.remote(self._holder, remove) for node, actor in self._actors.items()})

    def _follow(self) -> None:
        """An agent on each live node that replicas may come to; the others need the model no longer."""
        nodes = live_nodes()[0]
        wanted = _hosts(nodes)
        actors = {node: actor for node, actor in self._actors.items() if node not in self._dead}
        self._dead = set()
        for node in {one.node_id for one in nodes} & actors.keys() - wanted:
            actors[node].drop.remote(self._holder, False)
        if new := wanted - actors.keys():
            wanted -= new & set(leaving())  # Ray starts nothing there: each look would wait for an agent
        self._actors = {node: actors.get(node) or _agent_on(node) for node in sorted(wanted)}

    def _introduce(self) -> None:
        peers = self._answers({node: actor.peer.remote() for node, actor in self._actors.items()})
        if len(self._actors) > 1:
            self._answers({node: self._actors[node].meet.remote(peers) for node in peers})

    def _answers(self, calls: Mapping[str, Any]) -> dict[str, Any]:
        """The answers that came, by node. Agents that ended while the driver stood still gave none."""
        found, dead = _results(calls)
        self._dead |= dead
        self._progress = {node: one for node, one in self._progress.items() if node not in dead}
        return found


def _put(manifest: Manifest) -> Any:
    import ray

    return ray.put(manifest)


def _hosts(nodes: Sequence[Node]) -> set[str]:
    """Nodes that replicas may come to: those with GPUs where any has, else those with processors.

    A rented head and the driver's own machine have neither: while no worker lives, there are none.
    """
    for able in ([one for one in nodes if one.gpus], [one for one in nodes if one.cpus]):
        if able:
            return {node.node_id for node in able}
    return set()


def _agent_on(node_id: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    variables = handed_down()
    return (
        ray.remote(NodeAgent)
        .options(
            name=f"{_PREFIX}{node_id}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=16,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env={"env_vars": variables} if variables else None,
        )
        .remote(node_id, IDLE_SECONDS, HOLD_SECONDS)
    )


def _results(calls: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The answers by node, and the nodes whose agent is dead.

    A node that is gone, or an agent that is just starting again, has no answer.
    """
    import ray

    found: dict[str, Any] = {}
    dead: set[str] = set()
    ready, _ = (
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=_CALL_SECONDS) if calls else ([], [])
    )
    for node, reference in calls.items():
        if reference not in ready:
            continue
        try:
            found[node] = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, DrayError) else WeightsError(str(cause)) from None
        except ray.exceptions.ActorDiedError:
            dead.add(node)
        except ray.exceptions.RayError:
            continue
    return found, dead
