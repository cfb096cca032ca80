"""Why replicas that are ready have no shard, and how many shard tasks may run at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dray.store import Shard, ShardState

TASK_BYTES = 150e6
"""Private memory of a shard task's process: 142 MB were measured after its imports, with one shard."""

_MEMORY_SHARE = 0.5  # of a stable node's memory for shard tasks: the driver and Ray's head are there, too
_OTHER_CONNECTIONS = 10  # of the database: the driver's, its monitor's, and those of people who look


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Shard tasks that may run at a time; ``told`` names the limit, where it leaves replicas idle."""

    tasks: int
    told: str | None = None


def bound_of(*, lanes: int, slots: int, memory: float, connections: int | None) -> Bound:
    """How many shard tasks there may be.

    ``memory`` is that of the stable nodes in bytes (0: unknown), ``connections`` what the database allows.
    """
    bounds = [Bound(tasks=slots * lanes)]
    if memory:
        room = max(int(_MEMORY_SHARE * memory / TASK_BYTES), slots)
        told = f"the memory of the stable nodes ({memory / 2**30:.0f} GiB) holds {room} shard tasks"
        bounds.append(Bound(tasks=room, told=f"{told}: mark more nodes dray_stable, or larger ones"))
    if connections is not None:
        free = max(connections - _OTHER_CONNECTIONS, slots)
        told = f"PostgreSQL allows {connections} connections, one for each shard task"
        bounds.append(Bound(tasks=free, told=f"{told}: raise its max_connections"))
    least = min(bounds, key=lambda one: one.tasks)
    return least if least.tasks < lanes else Bound(tasks=least.tasks)


def why_idle(shards: Sequence[Shard], *, lanes: int, bound: str | None, no_place: str | None) -> str | None:
    """Why ready replicas have nothing to do; None where each shard that is open may be about to come to one.

    ``bound`` says why no more shard tasks run, ``no_place`` why Ray starts none, where that is so.
    """
    whole = [shard for shard in shards if shard.state is not ShardState.SPLIT]
    left = [shard for shard in whole if shard.state is not ShardState.DONE]
    if any(shard.state is ShardState.PENDING for shard in left):
        return no_place or bound
    if not left:
        return None
    if len(whole) < lanes:
        return f"the job has {_plural(len(whole), 'shard')}, and each runs on one replica"
    return f"{_plural(len(left), 'shard')} left, and each runs on one replica"


def _plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
