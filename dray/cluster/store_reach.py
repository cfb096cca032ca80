"""Whether stable nodes reach the job's store: the shard tasks that run there write to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.cluster.base import ClusterInfo, Node
from dray.errors import StoreError
from dray.store import open_store

PATIENCE = 20.0
"""Seconds that each of a node's tries lasts where no connection can be made."""

_TRIES = 2  # the store may just be started again
_MOST_NODES = 16  # what is wrong with an address is wrong on each


@dataclass(frozen=True, slots=True)
class Reached:
    """What a stable node says of the store: ``refusal`` is its error there, None where it can be opened."""

    host: str
    refusal: str | None


class StoreReach:
    """Asks stable nodes, each in a Ray task of its own, whether they can open the store. No call waits."""

    def __init__(self, info: ClusterInfo, store_url: str) -> None:
        import ray

        task = ray.remote(_refusal)
        nodes = [node for node in info.nodes if node.stable][:_MOST_NODES]
        self._asked: dict[Any, str] = {
            task.options(**_options(node)).remote(store_url, PATIENCE): node.host for node in nodes
        }
        self._answers: list[Reached] = []

    def look(self) -> list[Reached] | None:
        """What the nodes say; None while one has to answer. Those that are gone by now are left out."""
        import ray

        ended, left = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for reference in ended:
            host = self._asked.pop(reference)
            try:
                self._answers.append(Reached(host, ray.get(reference)))
            except ray.exceptions.RayError:
                continue
        return None if left else self._answers


def _options(node: Node) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return {"name": "store-reach", "num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}


def _refusal(store_url: str, patience: float) -> str | None:
    """In a process of Ray's on a stable node. The message names no user and no host."""
    refusal = None
    for _ in range(_TRIES):
        try:
            open_store(store_url, create=False, connections=1, patience=patience).close()
        except StoreError as error:
            refusal = str(error)
        else:
            return None
    return refusal
