"""What a cluster is to dray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dray.cluster.providers.protocol import Provider, ProviderSettings
from dray.errors import ConfigError
from dray.storage.addresses import without_secret

STABLE_RESOURCE = "dray_stable"
"""The custom Ray resource of nodes that are not spot: shard tasks run there and nowhere else."""

STABLE_SHARE = 0.001
"""What a shard task asks of it: a node with ``{"dray_stable": 1}`` can run a thousand of them."""

INSTANCE_LABELS = ("dray/instance-type", "ray.io/instance-type", "node.kubernetes.io/instance-type")
"""Labels of Ray's that may name a node's type: ``ray start --labels dray/instance-type=g6e.xlarge``."""

NAMESPACE = "dray"

START_SECONDS = 1800.0
"""For a replica that has its place to build the engine: a large model, from a slow disk."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Which Ray cluster a job runs on.

    With neither ``address`` nor ``provider`` a cluster of our own starts on this machine, with ``num_cpus``
    and ``num_gpus`` as Ray counts them where None. An address names an existing cluster (``host:port`` of its
    head, or ``auto``); ``auth_token`` is its token where it has one. A provider rents machines for one, or
    has rented them before, by ``dray cluster up``, for a ``standing`` one. ``environment`` is set in every
    worker process. ``packages`` are folders of Python packages of this machine that every worker process can
    import, whether its node has them or not.
    """

    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    auth_token: str | None = field(default=None, repr=False)
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    packages: tuple[str, ...] = ()
    provider: ProviderSettings | None = None
    standing: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for the address of a server that Ray's clients connect to."""
        # As Ray reads `auto`.
        address = os.environ.get("RAY_ADDRESS") if self.address == "auto" else self.address
        if address is not None and "://" in address:
            named = "" if self.address == address else " (auto, by RAY_ADDRESS)"
            raise ConfigError(
                f"cluster {without_secret(address)}{named}: dray's driver is a node of the cluster, not a "
                "client: give HOST:6379 on one of its machines, or `dray cluster submit http://HOST:8265 -- "
                "run ...`"
            )

    @property
    def local(self) -> bool:
        """Whether the cluster is one of our own on this machine."""
        return self.address is None and self.provider is None

    def for_engine(self, arguments: Mapping[str, Any]) -> ClusterSettings:
        """The settings for a job whose engine has these arguments.

        Raises:
            ConfigError: an argument cannot be.
        """
        return self if self.provider is None else replace(self, provider=self.provider.for_engine(arguments))


@dataclass(frozen=True, kw_only=True)
class Node:
    """One live node of the cluster. ``instance`` is its type (``g6e.xlarge``), where a label has it.

    ``draining``, where room is counted: Ray starts nothing new there, and what runs there may run on.
    """

    node_id: str
    host: str
    cpus: float
    gpus: float
    stable: bool
    address: str = ""
    port: int = 0  # of its Ray daemon
    memory: float = 0.0  # bytes, as its Ray daemon counts them
    instance: str = ""
    spot: bool = False
    draining: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """A kind of node that the cluster's autoscaler may start: what each has, and how many there may be."""

    name: str
    cpus: float
    gpus: float
    most: int


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """A cluster that can take work, since ``ready`` (seconds since 1970), after ``seconds``.

    ``own`` is one of ours on this machine: no node comes to it. ``shared`` is one that was there before the
    job: others may use it. ``coming`` are the nodes that its autoscaler may start; None where no autoscaler
    says so. ``largest``: most GPUs of one machine that its provider has rented, or may rent. ``unjoined``:
    GPUs of each worker that its provider has rented or asked for, and that Ray does not have yet; None where
    those are not known. Its worker processes have ``inherited`` variables anyhow.
    """

    address: str
    nodes: tuple[Node, ...]
    seconds: float
    stable_resource: str
    ready: float = field(default_factory=time.time)
    own: bool = False
    shared: bool = False
    coming: tuple[NodeType, ...] | None = None
    largest: float = 0.0
    unjoined: tuple[float | None, ...] = ()
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def open_nodes(self) -> tuple[Node, ...]:
        """The nodes on which Ray starts something new: those that are not being drained."""
        return tuple(node for node in self.nodes if not node.draining)

    @property
    def machines(self) -> int:
        """Workers of a rented cluster: its head and the driver's node have neither processors nor GPUs."""
        return sum(1 for node in self.nodes if node.cpus or node.gpus) + len(self.unjoined)

    @property
    def stable_hosts(self) -> frozenset[str]:
        """Hosts of the stable nodes: where shard tasks write to the store."""
        return frozenset(node.host for node in self.nodes if node.stable)


class Cluster(Protocol):
    """A Ray cluster for one job. ``start`` returns at once; ``leave`` and ``release`` are always safe."""

    @property
    def rented(self) -> Provider | None:
        """Its provider, where that rents machines; None for machines that are there anyhow."""

    def start(self) -> None:
        """Begin to start or join it, in the background."""

    def wait(self, look: Callable[[], None] = lambda: None) -> ClusterInfo:
        """Wait until it can take work. What ``look``, called once a second, raises ends the wait.

        Raises:
            ClusterError: it never will.
            ConfigError: it must not be used as it is.
        """

    def check(self) -> None:
        """Look once whether its head lives.

        Raises:
            JobPausedError: it has been gone for too long.
        """

    def leave(self) -> None:
        """Leave it. Ours ends beside whatever follows; this process waits for that when it ends itself."""

    def release(self) -> None:
        """Leave it, and wait until its processes are gone where it is ours."""
