"""Ask the cluster for the next replica of a lane: its name, its size, and the nodes that it is to avoid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dray.cluster.placing import NoGroupError, shrunk
from dray.cluster.ray_fleet import NameTakenError
from dray.driver.fleet import Fleet, ReplicaProcess
from dray.driver.replicas.handle import ReplicaHandle
from dray.driver.replicas.waiting import Places
from dray.engine.protocol import EngineSpec
from dray.places import lane_of, replica_name


class Launcher:
    """Asks for replicas of the engine ``spec``; ``risky`` has nodes that new ones are to avoid.

    Names are ``PREFIX/replica-N``, and ``~G`` behind that for the G-th successor: no name is used twice.
    """

    def __init__(self, prefix: str, spec: EngineSpec, fleet: Fleet, risky: Callable[[], set[str]]) -> None:
        self._prefix = prefix
        self._spec = spec
        self._fleet = fleet
        self._risky = risky
        self._generation: Counter[int] = Counter()  # names that the lane has had
        self._avoided: dict[int, set[str]] = {}  # by lane: spent nodes that its last replica was to avoid
        self._seqs = 0

    def lane_name(self, lane: int) -> str:
        """The lane, as its losses are charged to it."""
        return lane_of(replica_name(self._prefix, lane))

    def note_size(self, seqs: int) -> None:
        """An engine of the job runs so many rows at a time, of which a smaller one runs a part."""
        self._seqs = self._seqs or seqs

    def was_to_avoid_its_node(self, last: ReplicaHandle, spent: set[str]) -> bool:
        """Whether a lane's last replica is on a node that it was to avoid, and that is still ``spent``."""
        return not (spent & self._avoided[last.lane]).isdisjoint(last.nodes)

    def launch(self, lane: int, places: Places, *, steps: int, spent: set[str]) -> ReplicaProcess | None:
        """The process of the lane's next replica, ``steps`` smaller; it avoids ``spent`` nodes.

        None without a placement group: Ray's head is away, and its watch says so.
        """
        spec = shrunk(self._spec, steps, self._seqs)
        while True:
            name = replica_name(self._prefix, lane, self._generation[lane])
            self._generation[lane] += 1
            try:
                avoid = (spent | self._risky()) - places.never
                process = self._fleet.launch(name, spec, places.ask, avoid=avoid, never=places.never)
            except NameTakenError:
                continue
            except NoGroupError:
                return None
            self._avoided[lane] = spent
            return process
