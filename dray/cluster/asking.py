"""What a replica asks Ray for: it follows from the engine, and fits on the nodes that there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.cluster.base import ClusterInfo, Node
from dray.engine.protocol import EngineSpec
from dray.engine.ranks import nodes_of, ranks_of, refuse_on_this_machine
from dray.errors import ConfigError
from dray.machine import vllm_build

SMALLEST = 1e-4  # of a resource, as Ray counts
_ROUNDED = 1e-6  # 1 / 0.2 is 5
_CPU_BUILD = (
    "vLLM is installed as its build for CPUs; install dray with its extra gpu into a new environment "
    "(README, Install)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaResources:
    """Processors and GPUs of one replica, on each of its ``nodes``, which are all different."""

    cpus: float
    gpus: float = 0.0
    nodes: int = 1

    def fits(self, cpus: float, gpus: float) -> bool:
        """Whether a node with these has room for it, or for its part on one of several nodes."""
        return self.cpus <= cpus + SMALLEST / 2 and self.gpus <= gpus + SMALLEST / 2

    def __str__(self) -> str:
        parts = [_amount(self.gpus, "GPU")] if self.gpus else []
        parts += [_amount(self.cpus, "CPU")] if self.cpus or not self.gpus else []
        told = " and ".join(parts)
        return told if self.nodes == 1 else f"{self.nodes} nodes with {told} each"


def replicas_on(gpus: float, each: float) -> int:
    """How many replicas of ``each`` GPUs a node with so many holds: a part is always one of a single GPU."""
    if 0 < each < 1 <= gpus:
        return int(gpus) * math.floor(1 / each + _ROUNDED)
    return math.floor(gpus / each + _ROUNDED)


def has_gpus(gpus: float, free: float, each: float) -> bool:
    """Whether a node with so many GPUs, and so much of them free in all, has ``each`` for one replica.

    Several are whole ones, and a part is of a single GPU. Ray tells no more than the sum: where it is what
    replicas of the same size leave, that tells exactly; else Ray is taken to have put parts close together.
    """
    if each >= 1:
        return math.floor(free + SMALLEST / 2) >= each
    if not each:
        return True
    if free + SMALLEST / 2 < each:
        return False
    others = (gpus - free) / each
    alike = abs(others - round(others)) < _ROUNDED + SMALLEST / each
    return not alike or round(others) < replicas_on(gpus, each)


def replicas_over(places: Iterable[int], nodes: int) -> int:
    """How many replicas find room that take a place on each of so many nodes, where nodes have these places.

    The most r for which the places, at most r of each node, are r times ``nodes``. Ray places as many: it
    gives each replica the nodes that have most left.
    """
    there = list(places)
    most = sum(there) // nodes
    return next((r for r in range(most, 0, -1) if sum(min(one, r) for one in there) >= r * nodes), 0)


def ask_of(spec: EngineSpec, cluster: ClusterInfo, replicas: int) -> ReplicaResources:
    """What each of so many replicas asks for.

    On GPUs: one for each rank, and a processor where there is one for each GPU. On processors: the most whole
    ones of which all replicas find room at the same time. Where there are fewer processors than replicas,
    replicas share those of a cluster of our own; elsewhere each asks for one, and waits for nodes to come.
    What the user gives a replica is shared out over its nodes.

    Raises:
        ConfigError: no node has as many GPUs as a replica needs of it, and none will come that has; or
            there are fewer nodes, and no other will come; or GPUs are asked for, and the build of vLLM on
            this machine uses none.
    """
    if cluster.own:
        refuse_on_this_machine(spec.arguments)
        _refuse_build(spec)
    ask = _ask(spec, cluster, replicas)
    _refuse_too_few_nodes(ask, cluster)
    return ask


def _ask(spec: EngineSpec, cluster: ClusterInfo, replicas: int) -> ReplicaResources:
    nodes = nodes_of(spec.arguments)
    if runs_on_gpus(spec, cluster):
        gpus = _gpus_of_a_node(spec, nodes)
        _refuse_out_of_reach(gpus, cluster)
        cpus = _cpus_beside(gpus, cluster.open_nodes) if spec.cpus is None else spec.cpus / nodes
        return ReplicaResources(cpus=cpus, gpus=gpus, nodes=nodes)
    if spec.cpus is not None:
        return ReplicaResources(cpus=spec.cpus / nodes, nodes=nodes)
    if spec.name == "simulated" and cluster.own:
        return ReplicaResources(cpus=0.0)  # it computes next to nothing
    cpus = _share([node.cpus for node in cluster.open_nodes], replicas, nodes, own=cluster.own)
    return ReplicaResources(cpus=cpus, nodes=nodes)


def _gpus_of_a_node(spec: EngineSpec, nodes: int) -> float:
    gpus = gpus_of(spec) if spec.gpus is None else spec.gpus
    if gpus < gpus_of(spec) > 1:
        raise ConfigError(
            f"each replica is given {_amount(gpus, 'GPU')}, and its engine has {gpus_of(spec)} ranks "
            "(tensor_parallel_size times pipeline_parallel_size): it needs one for each"
        )
    if nodes > 1 and gpus % nodes:
        raise ConfigError(f"{_amount(gpus, 'GPU')} of a replica cannot be shared out over {nodes} nodes")
    return gpus / nodes


def gpus_of(spec: EngineSpec) -> int:
    """GPUs of one replica: one per rank."""
    return ranks_of(spec.arguments)


def runs_on_gpus(spec: EngineSpec, cluster: ClusterInfo) -> bool:
    """Whether the engine asks for GPUs, also while no node that has any is up.

    What the user says goes first. Else vLLM takes GPUs where there are any, but on this machine not with the
    build for processors. Where there are none yet, and nodes may come, the build of vLLM that is installed
    decides, and without one the nodes that may come.
    """
    if spec.gpus is not None:
        return spec.gpus > 0
    if spec.name != "vllm" or (cluster.own and vllm_build() == "cpu"):
        return False
    if any(node.gpus for node in cluster.nodes) or any(cluster.unjoined):
        return True
    if cluster.own:
        return False
    build = vllm_build()
    return build == "gpu" if build else any(one.gpus for one in cluster.coming or ())


def unused_gpus(spec: EngineSpec, cluster: ClusterInfo) -> list[str]:
    """A warning where this machine's GPUs stay idle because vLLM is here as its build for CPUs, or none."""
    gpus = sum(node.gpus for node in cluster.nodes)
    asked = spec.name == "vllm" and spec.gpus is None
    if not gpus or not asked or not cluster.own or vllm_build() != "cpu":
        return []
    idle = f"replicas run on CPUs, and leave this machine's {_amount(gpus, 'GPU')} idle"
    return [f"{idle}: {_CPU_BUILD}. --replica-gpus 0 says that this is meant"]


def _refuse_build(spec: EngineSpec) -> None:
    if spec.name == "vllm" and spec.gpus and vllm_build() == "cpu":
        raise ConfigError(
            f"each replica is given {_amount(spec.gpus, 'GPU')}, and cannot use it: {_CPU_BUILD}"
        )


def _refuse_out_of_reach(gpus: float, cluster: ClusterInfo) -> None:
    there = max((node.gpus for node in cluster.nodes), default=0.0)
    if gpus <= there or (cluster.coming is None and not cluster.own):
        return  # or the nodes to come are unknown: the replica waits, and the driver says so
    if not there and not cluster.own and not cluster.coming:
        return  # a head alone, whose nodes are joined by hand
    most = max([there, cluster.largest, *(one.gpus for one in cluster.coming or ())])
    if gpus > most:
        raise ConfigError(
            f"a replica needs {_amount(gpus, 'GPU')} of one node (tensor_parallel_size times "
            f"pipeline_parallel_size), and the cluster's largest has {_number(most)}"
        )


def _refuse_too_few_nodes(ask: ReplicaResources, cluster: ClusterInfo) -> None:
    """Where an autoscaler says how many nodes may come; a node may be joined by hand to any other cluster."""
    if ask.nodes == 1 or not cluster.coming:
        return
    most = sum(ask.fits(node.cpus, node.gpus) for node in cluster.nodes)
    most += sum(one.most for one in cluster.coming if ask.fits(one.cpus, one.gpus))
    if most < ask.nodes:
        raise ConfigError(f"a replica needs {ask}, and the cluster can have {most} of these (nnodes)")


def _cpus_beside(gpus: float, nodes: Sequence[Node]) -> float:
    """One, or less where a node has fewer processors than GPUs: each GPU is to find its own."""
    each = [node.cpus * gpus / node.gpus for node in nodes if node.gpus >= gpus]
    return min([1.0, *(_rounded(one) for one in each)])


def _share(cpus: Sequence[float], replicas: int, nodes: int, *, own: bool) -> float:
    most = max(cpus, default=0.0)
    for size in range(int(most), 0, -1):
        if replicas_over([int(one // size) for one in cpus], nodes) >= replicas:
            return float(size)
    if own:
        return _rounded(min(1.0, most, sum(cpus) / replicas)) or SMALLEST
    return min(1.0, most) if most else 1.0


def _rounded(amount: float) -> float:
    return round(math.floor(amount / SMALLEST + SMALLEST) * SMALLEST, 4)


def _number(amount: float) -> str:
    return f"{amount:g}"


def _amount(amount: float, unit: str) -> str:
    return f"{_number(amount)} {unit}{'' if amount == 1 else 's'}"
