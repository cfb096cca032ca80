"""How many ranks an engine computes in, and on how many nodes: by its arguments alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from dray.errors import ConfigError

_BACKENDS = (None, "mp")  # that run one engine on several nodes
_SPREADS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_LONGEST = 40  # characters of a user's value that a message repeats


@dataclass(frozen=True, slots=True)
class NodeRank:
    """A node's ``number`` among those of one engine; the ranks meet at number 0, at this address and port."""

    number: int
    address: str
    port: int


def ranks_of(arguments: Mapping[str, Any]) -> int:
    """Processes of an engine that compute, each on a device of its own."""
    return prod(int(arguments.get(name) or 1) for name in _SPREADS)


def nodes_of(arguments: Mapping[str, Any]) -> int:
    """Nodes that an engine's ranks are on, equally many on each: vLLM's ``nnodes``."""
    return int(arguments.get("nnodes") or 1)


def refuse_on_this_machine(arguments: Mapping[str, Any]) -> None:
    """Refuse an engine on several nodes for Ray on this machine, which is one.

    Raises:
        ConfigError: says what to do instead.
    """
    nodes = nodes_of(arguments)
    if nodes > 1:
        raise ConfigError(
            f"nnodes={nodes}: each replica needs {nodes} nodes, and Ray on this machine is one; run the job "
            "on a cluster (--cluster)"
        )


def refuse_uneven(arguments: Mapping[str, Any]) -> None:
    """Refuse engine arguments by which the ranks cannot be shared out over the nodes.

    Raises:
        ConfigError: says why not.
    """
    given = arguments.get("nnodes")
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(f"nnodes={str(given)[:_LONGEST]}: give a whole number above 0")
    try:
        ranks = ranks_of(arguments)
    except (TypeError, ValueError):
        raise ConfigError(f"{', '.join(_SPREADS)} are whole numbers") from None
    if ranks % given:
        raise ConfigError(
            f"nnodes={given}: the engine has {ranks} ranks (tensor_parallel_size times "
            "pipeline_parallel_size), and each node gets equally many; choose a number that divides them"
        )
    backend = arguments.get("distributed_executor_backend")
    if given > 1 and backend not in _BACKENDS:
        raise ConfigError(
            f"nnodes={given} does not go with distributed_executor_backend={str(backend)[:_LONGEST]}; "
            "leave that out"
        )
