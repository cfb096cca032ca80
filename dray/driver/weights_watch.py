"""A job's weights: on their way to every node that needs them, from the moment there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dray.cluster import ClusterSettings
from dray.cluster.agents import NodeAgents
from dray.driver.events import Event, Told, Warned
from dray.errors import DrayError
from dray.job.open_job import OpenJob, reopen
from dray.weights import LocalModel
from dray.weights.node.cache import evict
from dray.weights.node.local import ModelProgress
from dray.weights.node.wording import progress_line

LOOK_EVERY = 0.5  # seconds
LINE_EVERY = 5.0
_LET_GO_SECONDS = 2.0
AGENT_SECONDS = 10.0  # until an agent fetches; replicas begin themselves after that


@contextmanager
def prefetched_weights(job: OpenJob, settings: ClusterSettings) -> Iterator[LocalModel | None]:
    """Fetch the model beside Ray's start, on a cluster of our own: there this process is on the node.

    What lies in memory goes at the end, unless another job uses it; what lies on disk stays. A run that has
    no row to answer fetches nothing: room for the model is made at the cost of others.
    """
    if job.weights is None or not settings.local or not _has_rows(job):
        yield None
        return
    model = LocalModel(job.weights, job.settings.model_access)
    try:
        yield model
    finally:
        model.close()
        if model.paths.place.memory:
            _give_back(model)


def _has_rows(job: OpenJob) -> bool:
    """Whether earlier runs have left open shards."""
    if not job.resumed:
        return True
    with reopen(job) as store:
        return bool(store.shards(job.job_id, open_only=True))


def _give_back(model: LocalModel) -> None:
    """Free the memory, once replicas that were just killed have let go of it."""
    deadline = time.monotonic() + _LET_GO_SECONDS
    while not evict(model.paths.place, {model.manifest.key}) and time.monotonic() < deadline:
        time.sleep(0.1)


@contextmanager
def weights_on(
    job: OpenJob, prefetched: LocalModel | None, tell: Callable[[Event], None], moved: Callable[[], None]
) -> Iterator[None]:
    """Have the job's model fetched on every node while the block runs, and say how far that is.

    ``prefetched`` is the model where this process fetches it already: then there is one node, this one.
    ``moved`` is called from another thread when a node has more of it than any had before.
    """
    if job.weights is None:
        yield
        return
    nodes = _OneNode(prefetched) if prefetched is not None else _Agents(job)
    watch = _Watch(nodes, tell, moved)
    try:
        yield
    finally:
        watch.end()


class _Nodes(Protocol):
    @property
    def count(self) -> int:
        """Nodes that are to have the model."""

    def look(self) -> list[ModelProgress]:
        """How far each is."""

    def end(self) -> None:
        """The job needs its model no longer."""


class _OneNode:
    """This machine, on which this process fetches the model itself."""

    count = 1

    def __init__(self, model: LocalModel) -> None:
        self._model = model

    def look(self) -> list[ModelProgress]:
        """How far it is."""
        return [self._model.describe("this machine")]

    def end(self) -> None:
        """Nothing: ``prefetched_weights`` opened the model and closes it."""


class _Agents:
    """The nodes of a cluster that runs already, each with its agent."""

    def __init__(self, job: OpenJob) -> None:
        assert job.weights is not None
        holder = f"{job.job_id} of {job.lease.owner}"  # another store may have a job of this name
        self._agents = NodeAgents(job.weights, job.settings.model_access, holder)

    def look(self) -> list[ModelProgress]:
        """How far each is; the first time tells all to begin."""
        return self._agents.look()

    @property
    def count(self) -> int:
        """Nodes that are to have it."""
        return self._agents.count

    def end(self) -> None:
        """They keep it for the next job, as long as there is room."""
        self._agents.drop(remove=False)


class _Watch:
    """Looks after the nodes, again and again: an agent that came back is told again what to fetch.

    In a thread of its own: calls of agents may take as long as those of a node that hangs.
    """

    def __init__(self, nodes: _Nodes, tell: Callable[[Event], None], moved: Callable[[], None]) -> None:
        self._nodes = nodes
        self._tell = tell
        self._moved = moved
        self._most = 0  # bytes of it that a node has had
        self._over = threading.Event()
        self._said = time.monotonic()
        self._complete = False
        self._reasons: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="dray-weights-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The replicas are gone."""
        self._over.set()
        self._thread.join()
        self._nodes.end()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._say(self._nodes.look())
            except Exception as error:  # noqa: BLE001  looked at again; replicas load without an agent too
                # Only dray's own messages are known to quote nothing.
                told = str(error) if isinstance(error, DrayError) else type(error).__name__
                self._warn(f"looking at the nodes' weights: {told}")
            self._over.wait(LOOK_EVERY if not self._complete else 10 * LOOK_EVERY)

    def _warn(self, reason: str) -> None:
        """Once: it may last for as long as the job."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._tell(Warned(line=reason))

    def _say(self, found: list[ModelProgress]) -> None:
        """A line every few seconds, and one when all have it."""
        for node in found:
            if node.failure:  # the replicas of the node meet it too
                self._warn(node.failure)
        most = max((node.ready for node in found), default=0)
        if most > self._most:  # nodes that come and go before they have it whole are no progress
            self._most = most
            self._moved()
        complete = len(found) == self._nodes.count and all(node.ready == node.size for node in found)
        due = time.monotonic() - self._said >= LINE_EVERY
        if found and not self._complete and (complete or due):
            self._said, self._complete = time.monotonic(), complete
            self._tell(Told(line=progress_line(found)))
