"""The machines of a cluster as the driver uses them: Ray's nodes and actors, or threads in tests.

No call waits: what takes time is asked for, and looked at in the driver's next steps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import ClusterInfo, Node
from dray.cluster.capacity import Capacity
from dray.cluster.losses import NodeFacts
from dray.cluster.ray_fleet import Began
from dray.cluster.reach import Needs, Reached
from dray.engine.protocol import EngineSpec
from dray.engine.replica import ReplicaStatus
from dray.notices.notice import Notice


class ReplicaProcess(Protocol):
    """A replica's process, from the wish for it to its end."""

    @property
    def name(self) -> str:
        """The replica's: no other process of the job ever has it."""

    def node(self) -> str | None:
        """The id of its node; None while it has none."""

    def others(self) -> tuple[str, ...]:
        """The ids of its other nodes, where it is on several; known once it has a node."""

    def began(self) -> Began | None:
        """Its engine, once that can take work; None until then.

        Raises:
            EngineStartError, ConfigError: it never will.
            NotImportedError: its node cannot import what this process has.
            ReplicaLostError: its process is gone, or the question did not get through (``unsure``).
        """

    def ask_status(self) -> None:
        """Ask how it is, unless an answer is due."""

    def status(self) -> ReplicaStatus | None:
        """What it answered since the last call; None for nothing.

        Raises:
            ReplicaLostError, EngineDeadError: it is lost, or the question did not get through (``unsure``).
        """

    def drain(self, seconds: float) -> None:
        """Have it take nothing more, and end its sessions within ``seconds``."""

    def kill(self) -> None:
        """End it, if it lives."""

    def is_gone(self) -> bool:
        """Whether it is known to be dead, or its node to be out of reach."""

    def fate(self) -> NodeFacts:
        """What is known by now of how it died; ``alive`` is None while that is not settled."""


class Fleet(Protocol):
    """The nodes of a cluster that was joined, and the replicas on them."""

    @property
    def info(self) -> ClusterInfo:
        """The cluster, as it was when it was joined."""

    def launch(
        self,
        name: str,
        spec: EngineSpec,
        ask: ReplicaResources,
        *,
        avoid: Collection[str],
        never: Collection[str] = (),
    ) -> ReplicaProcess:
        """Ask for a replica, on none of the nodes to ``avoid`` where another can have it.

        It comes to none of the nodes ``never``.

        Raises:
            NameTakenError: there is one of this name.
            NoGroupError: its places on several nodes cannot be asked for now.
        """

    def capacity(self) -> Capacity | None:
        """What the nodes have, and have free; None while that cannot be known."""

    def no_place_for_tasks(self) -> str | None:
        """Why no shard task can start; None where one can."""

    def reached(self, needs: Needs) -> list[Reached] | None:
        """What the stable nodes say that they reach; None while one has to answer.

        A call asks them where none before has, or their answers were given.
        """

    def notices(self) -> list[tuple[Node, Notice]]:
        """The notices that are new since the last call."""

    def warnings(self) -> list[str]:
        """What went wrong on the nodes since the last call."""

    def drain(self, node: Node, deadline: float) -> None:
        """The driver drains the node, which ends at ``deadline`` (seconds since 1970)."""
