"""How many replicas, with what, and where not."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dray.cluster.asking import (
    SMALLEST,
    ReplicaResources,
    gpus_of,
    replicas_on,
    replicas_over,
    runs_on_gpus,
)
from dray.cluster.base import ClusterInfo, ClusterSettings
from dray.cluster.forwarded_env import handed_down
from dray.engine.protocol import EngineSpec
from dray.engine.ranks import nodes_of, ranks_of
from dray.errors import EngineStartError
from dray.machine import vllm_build

_NODE_LABEL = "ray.io/node-id"
_USUAL_GPUS = 8.0  # of a node
_DEVICES = Path("/dev")
USUAL_SEQS = 256  # vLLM's own on small devices, where neither the user nor an engine gives one
_USUAL_TOKENS = 8192


class NoGroupError(EngineStartError):
    """There is no placement group for a replica now."""


def actor_options(
    ask: ReplicaResources,
    cluster: ClusterInfo,
    *,
    avoid: Collection[str] = (),
    never: Collection[str] = (),
) -> dict[str, Any]:
    """Resources, environment and place of one replica's process.

    It comes to none of the nodes to ``avoid``, unless no other can have it, and to none of ``never``. Ray
    starts a new process for variables that differ. So those are left out that each process inherits: Ray
    gives it one that is there.
    """
    inherited = cluster.inherited
    variables = {name: value for name, value in handed_down().items() if inherited.get(name) != value}
    options: dict[str, Any] = {"runtime_env": {"env_vars": variables}} if variables else {}
    if avoid or never:
        options["label_selector"] = _not_on({*avoid, *never})
    if avoid:
        options["fallback_strategy"] = [{"label_selector": _not_on(never)}]
    if ask.gpus:
        options["num_gpus"] = ask.gpus
    elif not cluster.own:
        options["scheduling_strategy"] = "SPREAD"  # Ray would else fill one node before the next
    return options | {"num_cpus": ask.cpus}


def _not_on(nodes: Collection[str]) -> dict[str, str]:
    """The label selector that leaves these nodes out."""
    return {_NODE_LABEL: f"!in({','.join(sorted(nodes))})"} if nodes else {}


def reserve(
    ask: ReplicaResources,
    nodes: Collection[str],
    *,
    avoid: Collection[str],
    never: Collection[str] = (),
) -> Any:
    """A placement group for a replica on several nodes: all places at once, or none yet.

    It takes none of the nodes to ``avoid`` where enough others of ``nodes`` have room for it now, and none of
    ``never``.

    Raises:
        NoGroupError: Ray's head did not make it.
    """
    from ray.util.placement_group import placement_group

    bundle = {"GPU": ask.gpus} if ask.gpus else {}
    if ask.cpus or not bundle:
        bundle["CPU"] = ask.cpus or SMALLEST
    options: dict[str, Any] = {}
    far = {*avoid, *never} if len(set(nodes) - {*avoid, *never}) >= ask.nodes else never
    if far:
        options["bundle_label_selector"] = [_not_on(far)] * ask.nodes
    try:
        return placement_group([bundle] * ask.nodes, strategy="STRICT_SPREAD", **options)
    except Exception as error:  # noqa: BLE001  whatever its client raises: it is asked again later
        raise NoGroupError(f"Ray made no placement group ({type(error).__name__})") from None


def let_go(group: Any) -> None:
    """Give the places of a placement group back. Returns at once: the call waits for Ray's head."""

    def remove() -> None:
        import ray

        with suppress(Exception):  # what is left goes with the job
            ray.util.remove_placement_group(group)

    threading.Thread(target=remove, name="dray-let-go", daemon=True).start()


def in_group(options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """The options of a replica whose process takes the first place of its placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    chosen = {"label_selector", "fallback_strategy"}  # the group's nodes are chosen already
    kept = {name: value for name, value in options.items() if name not in chosen}
    return kept | {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}


def default_replicas(spec: EngineSpec, cluster: ClusterInfo) -> int:
    """How many replicas the GPUs hold, node by node; one on a cluster without GPUs.

    Workers that are rented and have not joined Ray yet count as well: they are paid for. One whose GPUs are
    not known holds one replica, or a part of one.
    """
    if not runs_on_gpus(spec, cluster):
        return 1
    nodes = nodes_of(spec.arguments)
    each = (spec.gpus or gpus_of(spec)) / nodes
    places = [replicas_on(node.gpus, each) for node in cluster.open_nodes]
    places += [1 if gpus is None else replicas_on(gpus, each) for gpus in cluster.unjoined]
    return max(1, replicas_over(places, nodes))


def expected_replicas(
    engine: str, arguments: Mapping[str, Any], each: float | None, settings: ClusterSettings
) -> int:
    """How many replicas there may be, where the user gives no number and the cluster is not joined yet.

    The driver cuts the shards before it joins the cluster, and needs a number for that.
    ``each`` is the GPUs of a replica, where the user says so. A machine's GPUs are known; of a cluster that
    vLLM's build for GPUs goes to, a node with eight is assumed. The build for processors has one replica.
    """
    if engine != "vllm" or each == 0 or nodes_of(arguments) > 1:
        return 1
    if vllm_build() == "cpu":
        return 1
    if not settings.local:
        gpus = _USUAL_GPUS
    elif settings.num_gpus is not None:
        gpus = settings.num_gpus
    else:
        gpus = len(list(_DEVICES.glob("nvidia[0-9]*")))
    return max(1, replicas_on(gpus, each or ranks_of(arguments)))


def shrunk(spec: EngineSpec, steps: int, max_num_seqs: int) -> EngineSpec:
    """The spec with half as much at a time for each step, after memory did not suffice.

    ``max_num_seqs`` is what the engine ran with before, 0 where none came so far. The engine itself sees to
    it that a step holds what its model reads whole: only there the model's files are at hand.
    """
    if not steps:
        return spec
    given = dict(spec.arguments)
    tokens = 0
    seqs = int(given.get("max_num_seqs") or max_num_seqs or USUAL_SEQS)
    given["max_num_seqs"] = max(1, seqs >> steps)
    if spec.name == "vllm" and spec.kind.engine.splits_prompts:
        tokens = int(given.get("max_num_batched_tokens") or _USUAL_TOKENS)
        given["max_num_batched_tokens"] = max(given["max_num_seqs"], tokens >> steps)
    return replace(spec, arguments=given, tokens_before=tokens)
