"""A Ray cluster's nodes and replicas, as the driver uses them: no call here waits for an actor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import NAMESPACE, ClusterInfo, Node
from dray.cluster.capacity import Capacity, capacity_now, no_place_for_tasks
from dray.cluster.losses import NodeFacts, Unreachable, diagnose, find_node, is_gone
from dray.cluster.placing import actor_options, in_group, let_go, reserve
from dray.cluster.ray_private import drain, node_of, nodes_of_group
from dray.cluster.reach import Needs, NodeReach, Reached
from dray.cluster.watching import NodeWatchers
from dray.engine.client import RayReplica
from dray.engine.part_ends import take_end
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.ray_errors import import_error, ray_errors
from dray.engine.replica import ReplicaStatus, Whereabouts, actor_class
from dray.errors import EngineStartError, NotImportedError
from dray.notices.notice import Notice


class NameTakenError(EngineStartError):
    """Another actor has the name of a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """An engine that can take work, and where its process is."""

    info: EngineInfo
    where: Whereabouts


class RayFleet:
    """The nodes of the Ray cluster that this process is connected to."""

    def __init__(self, info: ClusterInfo) -> None:
        self.info = info
        self._watchers = NodeWatchers()
        self._unreachable = Unreachable()
        self._processes: list[RayReplicaProcess] = []
        self._reach: NodeReach | None = None

    def launch(
        self,
        name: str,
        spec: EngineSpec,
        ask: ReplicaResources,
        *,
        avoid: Collection[str],
        never: Collection[str] = (),
    ) -> RayReplicaProcess:
        """Ask Ray for an actor of this name.

        Raises:
            NameTakenError: there is one: of a job of this name in another store, on the same cluster.
        """
        import ray

        options = actor_options(ask, self.info, avoid=avoid, never=never)
        group = self._group_for(ask, avoid, never)
        if group is not None:
            options = in_group(options, group)
        try:
            actor = actor_class().options(name=name, namespace=NAMESPACE, **options).remote(name, spec)
        except ray.exceptions.ActorAlreadyExistsError:
            if group is not None:
                let_go(group)
            raise NameTakenError(f"replica {name}: another actor has this name") from None
        made = RayReplicaProcess(RayReplica(name, actor), self._unreachable, group)
        self._processes.append(made)
        return made

    def _group_for(self, ask: ReplicaResources, avoid: Collection[str], never: Collection[str]) -> Any:
        if ask.nodes == 1:
            return None
        now = self.capacity() if avoid else None
        rooms = zip(now.nodes, now.rooms, strict=True) if now is not None else ()
        free = {node.node_id for node, room in rooms if room.takes(ask) and not node.draining}
        return reserve(ask, free, avoid=avoid, never=never)

    def capacity(self) -> Capacity | None:
        """What the nodes have, and have free; None while Ray's head is away."""
        try:
            return capacity_now()
        except Exception:  # noqa: BLE001  the look at the head says so
            return None

    def no_place_for_tasks(self) -> str | None:
        """Why Ray starts no shard task; None where it can."""
        return no_place_for_tasks(self.info.stable_resource)

    def reached(self, needs: Needs) -> list[Reached] | None:
        """What the stable nodes say that they reach; None while one has to answer."""
        if self.info.own:  # this process's own node
            return []
        self._reach = self._reach or NodeReach(self.info, needs)
        answers = self._reach.look()
        if answers is not None:
            self._reach = None
        return answers

    def notices(self) -> list[tuple[Node, Notice]]:
        """The notices that are new since the last call: of the clouds of nodes with replicas, and of Ray."""
        self._processes = [one for one in self._processes if not one.killed]
        used = {node for one in self._processes for node in (one.last_node, *one.last_others) if node}
        return self._watchers.look(used)

    def warnings(self) -> list[str]:
        """What went wrong on the nodes since the last call."""
        return self._watchers.take_told()

    def drain(self, node: Node, deadline: float) -> None:
        """Tell Ray that a node ends at ``deadline`` (seconds since 1970); that is no notice then."""
        self._watchers.drained(node)
        drain(node.node_id, deadline)


class RayReplicaProcess:
    """A replica's actor, as its driver sees it. ``unreachable`` nodes are shared by all of a fleet.

    Of a replica on several nodes, ``group`` is its placement group.
    """

    def __init__(self, replica: RayReplica, unreachable: Unreachable, group: Any) -> None:
        self.replica = replica
        self._unreachable = unreachable
        self._group = group
        self.last_node: str | None = None
        self.last_others: tuple[str, ...] = ()
        self._end_on: str | None = None  # the node of several that its engine died on, where that is known
        self.killed = False
        self._ready: tuple[Any, Any] | None = None
        self._asked: Any = None

    @property
    def name(self) -> str:
        """The actor's."""
        return self.replica.name

    def node(self) -> str | None:
        """The id of its node; None while it has none."""
        self.last_node = node_of(self.replica.actor_id) or self.last_node
        return self.last_node

    def others(self) -> tuple[str, ...]:
        """The ids of its other nodes, where it is on several; known once it has a node.

        Ray may move a place whose node went before anything ran there: asked again once all run.
        """
        if self._group is not None and not self.last_others and self.last_node is not None:
            self.last_others = tuple(sorted(set(nodes_of_group(self._group)) - {self.last_node}))
        return self.last_others

    def began(self) -> Began | None:
        """Its engine, once that can take work; None until then. Errors as in :class:`ReplicaProcess`."""
        import ray

        actor = self.replica.actor
        asked = self._ready or (actor.ready.remote(), actor.whereabouts.remote())
        ready, whereabouts = asked
        self._ready = None  # asked again where no answer comes through
        try:
            with ray_errors(self.name):
                there = ray.wait(list(asked), num_returns=2, timeout=0)[0]
                info: Any = ray.get(ready) if ready in there else None  # raises where none will ever start
                if len(there) < 2:  # the node may be cut off by now: the next call looks again
                    self._ready = asked
                    return None
                where = ray.get(whereabouts)
                self.last_node, self.last_others = where.node_id, ()
        except NotImportedError as error:
            node = find_node(self.node())
            raise import_error(f"node {node.host}" if node else "its node", error.why) from None
        return Began(info=info, where=where)

    def ask_status(self) -> None:
        """Ask how it is, unless an answer is due."""
        if self._asked is None:
            self._asked = self.replica.actor.status.remote()

    def status(self) -> ReplicaStatus | None:
        """What it answered since the last call; None for nothing. Errors as in :class:`ReplicaProcess`."""
        import ray

        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return None
        answer, self._asked = self._asked, None
        with ray_errors(self.name):
            found: ReplicaStatus = ray.get(answer)
        return found

    def drain(self, seconds: float) -> None:
        """Have it take nothing more, and end its sessions within ``seconds``."""
        self.replica.actor.drain.remote(seconds)

    def kill(self) -> None:
        """End its process, if it lives."""
        import ray

        self.killed = True
        ray.kill(self.replica.actor, no_restart=True)
        if self._group is not None:
            let_go(self._group)

    def is_gone(self) -> bool:
        """Whether Ray knows by now that it is dead, or its node takes no connections."""
        return is_gone(self.replica.actor_id, self.node())

    def fate(self) -> NodeFacts:
        """What Ray and the node's port say by now of how it died."""
        node = self.node()
        facts = diagnose(self.replica.actor_id, node, self.others(), unreachable=self._unreachable)
        if facts.alive and self._group is not None:
            self._end_on = self._end_on or take_end(self.name)
            facts = replace(facts, node=self._end_on or facts.node)
        if facts.alive is False and facts.node is not None:
            self._unreachable.add(facts.node)
        return facts
