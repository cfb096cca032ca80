"""Pods of a RayCluster as machines: which are up, which come, and which wait for a node that may not come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dray.cluster.providers.protocol import Machine, Market, Phase

_ITS_TURN = (None, "ContainerCreating", "PodInitializing")
"""Reasons to wait that every pod has for a while."""

QUEUED = "in the queue: Kueue has not admitted it yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What dray looks at. ``waits``: since when no node takes it, in seconds since 1970, and ``why``.

    ``ready``: all of its containers are. ``stuck``: why its node cannot start one of them, or "". ``gated``:
    Kueue has not admitted it yet.
    """

    name: str
    head: bool
    group: str
    phase: str
    leaving: bool
    ready: bool
    address: str
    node: str
    waits: float | None = None
    why: str = ""
    stuck: str = ""
    gated: bool = False

    @property
    def market(self) -> Market:
        """Where its node comes from; OWN where an operator has added a group of a name of its own."""
        if self.head:
            return Market.ON_DEMAND
        return Market(self.group) if self.group in set(Market) else Market.OWN

    @property
    def there(self) -> bool:
        """Whether it runs, or a node has it."""
        waits = self.leaving or self.gated or self.waits is not None
        return not waits and self.phase in ("Pending", "Running")

    def machine(self, kind: str, gpus: float | None, expires: float | None) -> Machine:
        """The pod as the protocol's machine; ``kind`` and ``gpus`` are those of workers."""
        phase = Phase.LEAVING if self.leaving else Phase.UP if self.ready else Phase.COMING
        return Machine(
            name=self.name,
            kind="head" if self.head else kind,
            market=self.market,
            phase=phase,
            head=self.head,
            zone=self.node,
            address=self.address,
            expires=expires,
            gpus=None if self.head else gpus,
            why=self.stuck,
        )


def pods_of(items: Sequence[Mapping[str, Any]]) -> list[Pod]:
    """Pods as the API lists them, the head first; those that have ended are left out."""
    found = [_pod(one) for one in items]
    living = [one for one in found if one.phase not in ("Succeeded", "Failed")]
    return sorted(living, key=lambda one: (not one.head, one.name))


def _pod(item: Mapping[str, Any]) -> Pod:
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    reason = scheduled.get("reason") if scheduled.get("status") == "False" else None
    waits, gated = reason == "Unschedulable", reason == "SchedulingGated"
    since = scheduled.get("lastTransitionTime") or metadata.get("creationTimestamp")
    return Pod(
        name=metadata["name"],
        head=labels.get("ray.io/node-type") == "head",
        group=labels.get("ray.io/group", ""),
        phase=status.get("phase", "Pending"),
        leaving=metadata.get("deletionTimestamp") is not None,
        ready=conditions.get("Ready", {}).get("status") == "True",
        address=status.get("podIP", ""),
        node=(item.get("spec") or {}).get("nodeName", ""),
        waits=_seconds(since) if waits else None,
        why=_line(scheduled.get("message")) if waits else QUEUED if gated else "",
        stuck=_stuck(status),
        gated=gated,
    )


def _stuck(status: Mapping[str, Any]) -> str:
    """What the kubelet says of the first container that cannot start: a wrong image, a crash."""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for one in containers:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _ITS_TURN:
            return _line(f"{waiting['reason']}: {waiting.get('message') or 'no more is said'}")
        ended = (one.get("lastState") or {}).get("terminated") or {}
        if ended and not one.get("ready"):  # between two back-offs it runs, each time for a moment
            return f"{one['name']} ended with exit code {ended.get('exitCode')}, and was started again"
    return ""


def refusal_of(cluster: Mapping[str, Any]) -> str:
    """Why KubeRay cannot make or delete pods: a quota, an admission webhook; "" where it can."""
    for one in (cluster.get("status") or {}).get("conditions") or ():
        if one.get("type") == "ReplicaFailure" and one.get("status") == "True":
            return _line(one.get("message") or one.get("reason"))
    return ""


def is_queued(cluster: Mapping[str, Any]) -> bool:
    """Whether the cluster is suspended: Kueue has not admitted it, or took its nodes back for another job."""
    return bool((cluster.get("spec") or {}).get("suspend"))


def _line(text: object) -> str:
    return " ".join(str(text or "").split())[:300]


def _seconds(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
