"""How many replicas, with what, and where not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dray.cluster.base import ClusterInfo
from dray.cluster.handed_down import handed_down
from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.requests.model import Kind

_NODE_LABEL = "ray.io/node-id"
_USUAL_SEQS = 256  # vLLM's own on small devices, where nobody says
_USUAL_TOKENS = 8192


def actor_options(
    spec: EngineSpec, cluster: ClusterInfo, replicas: int, *, avoid: Collection[str] = ()
) -> dict[str, Any]:
    """Resources, environment and place of one replica's process.

    It comes to none of the nodes to ``avoid``, unless no other can have it.

    Raises:
        ConfigError: no node has as many GPUs as a replica needs.
    """
    variables = handed_down()
    options: dict[str, Any] = {"runtime_env": {"env_vars": variables}} if variables else {}
    if avoid:
        options["label_selector"] = {_NODE_LABEL: f"!in({','.join(sorted(avoid))})"}
        options["fallback_strategy"] = [{"label_selector": {}}]
    return options | _resources(spec, cluster, replicas)


def _resources(spec: EngineSpec, cluster: ClusterInfo, replicas: int) -> dict[str, float]:
    if spec.name == "simulated" and len(cluster.nodes) == 1:
        return {"num_cpus": 0}
    if spec.name != "simulated" and any(node.gpus for node in cluster.nodes):
        most = int(max(node.gpus for node in cluster.nodes))
        if gpus_of(spec) > most:
            raise ConfigError(
                f"a replica needs {gpus_of(spec)} GPUs of one node (tensor_parallel_size times "
                f"pipeline_parallel_size), and the cluster's largest has {most}"
            )
        return {"num_gpus": gpus_of(spec), "num_cpus": 1}
    hosts = [node.cpus for node in cluster.nodes if node.cpus]
    cpus = max(hosts, default=1.0)
    each = -(-replicas // max(len(hosts), 1))  # so many share a node: one that asked for too much would wait
    return {"num_cpus": cpus // each or cpus / each}


def default_replicas(spec: EngineSpec, cluster: ClusterInfo) -> int:
    """As many as there are GPUs for, node by node; one on a cluster without."""
    if spec.name != "vllm":
        return 1
    return max(1, sum(int(node.gpus) // gpus_of(spec) for node in cluster.nodes))


def gpus_of(spec: EngineSpec) -> int:
    """GPUs of one replica: one a rank."""
    given = spec.arguments
    return int(given.get("tensor_parallel_size", 1)) * int(given.get("pipeline_parallel_size", 1))


def shrunk(spec: EngineSpec, steps: int, max_num_seqs: int) -> EngineSpec:
    """The spec with half as much at a time for each step, after memory did not suffice.

    ``max_num_seqs`` is what the engine ran with before, 0 where none came so far.
    """
    if not steps:
        return spec
    given = dict(spec.arguments)
    seqs = int(given.get("max_num_seqs") or max_num_seqs or _USUAL_SEQS)
    given["max_num_seqs"] = max(1, seqs >> steps)
    if spec.name == "vllm" and spec.kind is not Kind.EMBEDDING:  # many of these take no part of a prompt
        tokens = int(given.get("max_num_batched_tokens") or _USUAL_TOKENS)
        given["max_num_batched_tokens"] = max(given["max_num_seqs"], tokens >> steps)
    return replace(spec, arguments=given)
