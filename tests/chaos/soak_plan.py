"""What befalls the jobs of the soak: kinds of faults, and how a run's are drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What befalls a job."""

    REPLICA = "replica killed"
    NODE = "node killed"
    OBEYED = "notice, obeyed"
    LYING = "notice, lying"
    STOPPED = "replica stopped"
    DRIVER = "driver killed"
    STALLED = "driver stopped for longer than its lease"
    TASK = "shard task stopped for longer than its lease"
    EXPORT = "export"
    SECOND = "second job for the same folder"
    STORE = "store"


_ALL = {
    Kind.REPLICA: 30,
    Kind.NODE: 8,
    Kind.OBEYED: 6,
    Kind.LYING: 6,
    Kind.STOPPED: 18,
    Kind.DRIVER: 10,
    Kind.EXPORT: 6,
    Kind.SECOND: 4,
    Kind.STORE: 14,
}
_STALLS = {Kind.STALLED: 30, Kind.TASK: 30}


def _only(*kinds: Kind) -> dict[Kind, int]:
    return {kind: _ALL[kind] for kind in kinds}


MIXES: dict[str, tuple[float, dict[Kind, int]]] = {
    "all": (0.35, _ALL),
    "no notices": (
        0.25,
        _only(Kind.REPLICA, Kind.NODE, Kind.STOPPED, Kind.DRIVER, Kind.EXPORT, Kind.SECOND, Kind.STORE),
    ),
    "notices": (0.1, _only(Kind.OBEYED, Kind.LYING, Kind.STOPPED, Kind.STORE)),
    "kills": (0.08, _only(Kind.REPLICA, Kind.NODE)),
    "drivers": (0.07, _only(Kind.DRIVER, Kind.STOPPED, Kind.STORE)),
    "stalls": (0.15, _STALLS | _only(Kind.REPLICA, Kind.DRIVER, Kind.EXPORT, Kind.STORE)),
}
"""In some runs there are only faults of which it is known what they are charged to.

Where no notice comes, nobody listens for one: that is half of the processes that a driver starts.
"""

SIMULATED, VLLM = "simulated", "vllm"
"""Engines: dray's simulated one, or vLLM on CPU with its engine core in a process of its own."""

POISON_SHARE = 0.08
POSTGRES_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Held:
    """A shard that ran on a replica when that was lost."""

    number: int
    epoch: int
    indexes: frozenset[int]


@dataclass(kw_only=True)
class Fault:
    """What was done, at ``at`` (monotonic nanoseconds). ``noticed``: its notice was recorded by the end.

    ``core``: of a replica, the process of its engine core was killed, and not the one that reads rows.
    ``replicas`` are all that a killed node ever had, ``went`` those that lived and went with it.
    """

    kind: str
    at: int
    node: str | None = None
    replica: str | None = None
    replicas: Sequence[str] = ()
    went: Sequence[str] = ()
    held: Sequence[Held] = ()
    noticed: bool = False
    core: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to be, all of it drawn from its seed.

    ``poison`` are rows, ``word`` stands in these, and ``memory`` says that they take the engine's memory and
    not its life. No row kills vLLM: so there is no poison for that ``engine``.
    """

    seed: int
    number: int
    mix: str
    shards: int
    postgres: bool
    poison: tuple[int, ...]
    word: str
    memory: bool = False
    engine: str = SIMULATED

    @classmethod
    def draw(cls, seed: int, number: int, groups: Sequence[tuple[int, ...]], engine: str = SIMULATED) -> Plan:
        """The plan of the run of this number."""
        rng = random.Random(f"{seed} {number}")
        mix = rng.choices(list(MIXES), [share for share, _ in MIXES.values()])[0]
        group = rng.randrange(len(groups))
        poisoned = rng.random() < POISON_SHARE and mix in ("all", "no notices") and engine == SIMULATED
        return cls(
            seed=seed,
            number=number,
            mix=mix,
            shards=24 if poisoned else rng.randint(12, 24),
            postgres=rng.random() < POSTGRES_SHARE,
            poison=groups[group] if poisoned else (),
            word=group_word(group) if poisoned else "",
            memory=poisoned and rng.random() < 0.5,
            engine=engine,
        )

    @property
    def notices(self) -> bool:
        """Whether a notice may come."""
        return Kind.LYING in MIXES[self.mix][1]

    @property
    def stalls(self) -> bool:
        """Whether processes stop for longer than their leases."""
        return Kind.STALLED in MIXES[self.mix][1]

    def faults(self) -> Iterator[tuple[float, Kind, random.Random]]:
        """Seconds to wait, what comes then, and the randomness of it; for ever."""
        rng = random.Random(f"{self.seed} {self.number} faults")
        kinds = MIXES[self.mix][1]
        while True:
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            yield rng.uniform(0.2, 2.0), kind, random.Random(rng.random())


def group_word(group: int) -> str:
    """What stands in the prompts of a group of rows, and in no other."""
    return f"group-{group:04};"
