"""Whether stable nodes reach what shard tasks need there: the store, the requests, files that rows name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dray.cluster.base import ClusterInfo, Node
from dray.errors import JobFailedError, NoConnectionError, StoreError
from dray.requests.spool.spool import read_shard
from dray.storage.files import local_path
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.store import open_store

PATIENCE = 40.0
"""Seconds that a node tries to connect to the store, which may just be started again."""

_LOOKS = 4  # at the requests: a network's file system shows a new file some seconds late
_LOOK_SECONDS = 1.5
_MOST_NODES = 16  # what is wrong with an address is wrong on each


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The store's URL, where a shard's requests lie, and below which ``roots`` the files that rows name.

    ``options`` reach the requests in an object store.
    """

    store_url: str = field(repr=False)
    requests: str | None
    roots: tuple[str, ...] = ()
    options: ObjectStoreOptions | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Reached:
    """What a stable node says: the errors of each of its needs there, None where all is well."""

    host: str
    store: str | None = None
    requests: str | None = None
    files: str | None = None


class NodeReach:
    """Asks stable nodes, each in a Ray task of its own, what they reach. No call waits."""

    def __init__(self, info: ClusterInfo, needs: Needs) -> None:
        import ray

        task = ray.remote(_reached)
        nodes = [node for node in info.nodes if node.stable][:_MOST_NODES]
        self._asked: list[Any] = [task.options(**_options(node)).remote(node.host, needs) for node in nodes]
        self._answers: list[Reached] = []

    def look(self) -> list[Reached] | None:
        """What the nodes say; None while one has to answer. Those that are gone by now are left out."""
        import ray

        ended, self._asked = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
        for reference in ended:
            try:
                self._answers.append(ray.get(reference))
            except ray.exceptions.RayError:
                continue
        return None if self._asked else self._answers


def _options(node: Node) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return {"name": "reach", "num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}


def _reached(host: str, needs: Needs) -> Reached:
    """What a stable node reaches; runs in a process of Ray's on that node."""
    return Reached(host, _of_store(needs.store_url), _of_requests(needs), _of_files(needs.roots))


def _of_store(url: str) -> str | None:
    """The message names no user and no host. A server without a connection left is reached."""
    try:
        open_store(url, create=False, connections=1, patience=PATIENCE).close()
    except NoConnectionError:
        return None
    except StoreError as error:
        return str(error)
    return None


def _of_requests(needs: Needs) -> str | None:
    if needs.requests is None:
        return None
    refusal = None
    for look in range(_LOOKS):
        time.sleep(_LOOK_SECONDS if look else 0.0)
        try:
            next(read_shard(needs.requests, 0, 1, options=needs.options), None)
        except JobFailedError:
            refusal = "no such file"
        except OSError as error:  # its message may quote what a server said
            refusal = type(error).__name__
        else:
            return None
    return refusal


def _of_files(roots: Sequence[str]) -> str | None:
    """Says which folder is missing. Addresses of object stores are not tried: keys may forbid that."""
    gone = [root for root in roots if not is_object(root) and not local_path(root).is_dir()]
    return f"no folder {gone[0]}" if gone else None
