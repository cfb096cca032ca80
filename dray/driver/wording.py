"""Lines of the driver's for people."""

from __future__ import annotations

from dray.cluster.asking import ReplicaResources
from dray.driver.pool import ReplicaPool
from dray.report.wording import plural
from dray.store import StopSignals


def plan_line(pool: ReplicaPool, wanted: int | None) -> str:
    """How many replicas start, with what, and by whose word: ``wanted`` is the user's, None for none."""
    told = f"starting {plural(pool.lanes, 'replica')}"
    if pool.ask != ReplicaResources(cpus=0):
        told += f", each with {pool.ask}"
    if wanted is not None:
        return told
    for_gpus = ", for the GPUs that are there now" if pool.ask.gpus else ""
    return f"{told}{for_gpus}; --replicas asks for more"


def stop_line(orders: StopSignals) -> str:
    """Why a job is to stop."""
    return "cancel requested" if orders.cancelled else "expired" if orders.expired else "put to rest"
