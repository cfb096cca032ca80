"""How many workers each group is to have: spot first, and on demand where spot does not come in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dray.cluster.providers.kuberay.pods import Pod
from dray.cluster.providers.protocol import Market

_SPOT, _DEAR = Market.SPOT.value, Market.ON_DEMAND.value  # as the groups are called


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a cluster is to have. ``on_demand`` at most so many there, while spot is awaited; None: any.

    ``markets`` are those that are allowed; a pod waits for spot for ``spot_seconds``.
    """

    workers: int
    markets: frozenset[Market]
    on_demand: int | None = None
    spot_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``replicas`` of each group, and the pods of each that are to go."""

    replicas: Mapping[str, int]
    leaving: Mapping[str, tuple[str, ...]]


def first_sizes(wish: Wish) -> dict[str, int]:
    """The sizes of a new cluster's groups: all workers on spot where that is allowed."""
    return {_SPOT if Market.SPOT in wish.markets else _DEAR: wish.workers}


def sizes(wish: Wish, replicas: Mapping[str, int], pods: Sequence[Pod], now: float) -> Sizes:
    """What the groups are to have from now on, with ``replicas`` so far.

    Of too many workers go first those that leave anyhow, then those that wait for a node, then those on
    demand, then spot; within each the last by name. KubeRay counts a pod that leaves as one that runs, unless
    it is named: so it is. A pod that has waited for spot for too long gives its place to one on demand.
    """
    found = dict(replicas)
    leaving: dict[str, list[str]] = {group: [] for group in found}
    missing = wish.workers - sum(found.values())
    if missing > 0:
        group = _SPOT if _SPOT in found else _DEAR
        found[group] += missing
    for group, name in _surplus(found, pods, -missing):
        found[group] -= 1
        leaving[group] += [name] if name else []
    if _SPOT in found and _DEAR in found:
        room = wish.workers if wish.on_demand is None else max(wish.on_demand - found[_DEAR], 0)
        for pod in _late(pods, wish, now)[:room]:
            if pod.name not in leaving[_SPOT] and found[_SPOT]:
                found[_SPOT] -= 1
                found[_DEAR] += 1
                leaving[_SPOT].append(pod.name)
    return Sizes(replicas=found, leaving={group: tuple(names) for group, names in leaving.items()})


def _surplus(replicas: Mapping[str, int], pods: Sequence[Pod], count: int) -> list[tuple[str, str]]:
    """Group and name of so many places that are to go; no name where there is no pod yet."""
    if count <= 0:
        return []
    places: list[tuple[str, str, int]] = []  # and how dear its end is
    for group, wanted in replicas.items():
        own = [one for one in pods if one.group == group and not one.head]
        own.sort(key=lambda one: not one.leaving)
        places += [(group, one.name, 0 if one.leaving else 2 if one.there else 1) for one in own][:wanted]
        places += [(group, "", 1)] * max(wanted - len(own), 0)
    dearest = {_DEAR: 0, _SPOT: 1}
    places.sort(key=lambda one: one[1], reverse=True)
    places.sort(key=lambda one: (one[2], dearest.get(one[0], 2)))
    return [(group, name) for group, name, _ in places[:count]]


def _late(pods: Sequence[Pod], wish: Wish, now: float) -> list[Pod]:
    """Pods that have waited for spot for too long."""
    return [
        one
        for one in pods
        if one.group == _SPOT
        and not one.leaving
        and one.waits is not None
        and now - one.waits >= wish.spot_seconds
    ]
