"""Lines of the driver's for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import ClusterInfo
from dray.driver.replicas.pool import ReplicaPool
from dray.errors import EngineError, EngineStartError
from dray.job.open_job import OpenJob
from dray.store import Counts, StopSignals
from dray.weights.source.hub import is_hub
from dray.wording import plural


def plan_line(pool: ReplicaPool, wanted: int | None, later: str | None = None, *, unjoined: int = 0) -> str:
    """How many replicas start, with what, and who chose it: ``wanted`` is what the user asked for, or None.

    ``later`` says how many there may be in the end. So many rented machines have not joined Ray yet.
    """
    told = f"starting {plural(pool.lanes, 'replica')}"
    if pool.ask != ReplicaResources(cpus=0):
        told += f", each {'with' if pool.ask.nodes == 1 else 'on'} {pool.ask}"
    if later is not None:
        return f"{told}; {later}"
    if wanted is not None:
        return told
    machines = f" and those of {plural(unjoined, 'machine')} still to come" if unjoined else ""
    for_gpus = f", for the GPUs that are there now{machines}" if pool.ask.gpus else ""
    return f"{told}{for_gpus}; --replicas asks for more"


def stop_line(signals: StopSignals) -> str:
    """Why a job is to stop."""
    return "cancel requested" if signals.cancelled else "expired" if signals.expired else "put to rest"


def opened_line(job: OpenJob) -> str:
    """Whether a job is new, and at which commit of a hub it reads its model."""
    new = f"new, since its query gives other rows than job {job.older} has" if job.older else "new"
    told = f"resumed, {job.skipped} rows are finished already" if job.resumed else new
    at = f"; model {job.weights.uri}" if job.weights is not None and is_hub(job.weights.uri) else ""
    return f"job {job.job_id}: {told}{at}"


def cluster_line(info: ClusterInfo) -> str:
    """The cluster that was joined."""
    return f"cluster: {plural(len(info.nodes), 'node')} at {info.address}, {info.seconds:.1f} s"


def rest_line(job_id: str, what: str, counts: Counts) -> str:
    """How far a job came that ended early; ``what`` it is since."""
    finished = f"{counts.done + counts.failed:,} of {counts.total:,} rows finished"
    return f"job {job_id} is {what} with {finished}, all kept"


@contextmanager
def naming_the_model(model: str) -> Iterator[None]:
    """Say what could not be started, and of which model: an engine's own error may be two words.

    Raises:
        EngineStartError: the block raised one, or another error of an engine.
    """
    try:
        yield
    except EngineError as error:
        oom = bool(getattr(error, "oom", False))
        raise EngineStartError(f"the engine did not start: {model}: {error}", oom=oom) from error
