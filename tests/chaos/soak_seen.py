"""What the soak sees of a run from outside: its store, the histories of its processes, the processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from dray.errors import DrayError
from dray.store import ReplicaRow, Shard, ShardState, Store
from tests.chaos.soak_cloud import Cloud
from tests.chaos.soak_plan import Held
from tests.support.ray_workers import is_replica
from tests.support.stores import indexes_of

SAFE_ROWS = 32
"""A suspect with so few rows left is not killed by us.

The second death of an engine under one row that has it to itself makes that row an error: rightly, for how
should dray know that it was us?
"""


class Seen:
    """One job. ``opened`` gives its store, which raises DrayError before there is one."""

    def __init__(self, job: str, history: Path, opened: Callable[[], Store], cloud: Cloud) -> None:
        self._job = job
        self._history = history
        self._opened = opened
        self._cloud = cloud
        self._sessions: dict[int, tuple[int, int]] = {}  # of replicas' processes: one that each had

    def replicas_on(self, node: str) -> list[ReplicaRow]:
        """The replicas that a node has or had."""
        with suppress(DrayError):
            return [row for row in self._opened().replicas(self._job) if row.node == node]
        return []

    def held(self, replicas: Sequence[str]) -> list[Shard]:
        """The shards that these replicas have."""
        with suppress(DrayError):
            shards = self._opened().shards(self._job)
            return [one for one in shards if one.state is ShardState.LEASED and one.replica in replicas]
        return []

    def at_work(self) -> dict[str, int]:
        """The live replicas that have had rows, by name, with their pids."""
        for file in self._history.glob("*.history"):
            pid = int(file.name.partition("-")[0])
            if pid not in self._sessions:
                first, newline, _ = file.read_bytes().partition(b"\n")
                line = json.loads(first) if newline else {}
                if line.get("event") == "admitted":
                    self._sessions[pid] = (line["shard"], line["epoch"])
        living = {pid: session for pid, session in self._sessions.items() if self._is_replica(pid)}
        if not living:
            return {}
        attempts = self._opened().attempts(self._job)
        names = {(one.shard, one.epoch): one.replica for one in attempts}
        there = {row.name for row in self._opened().replicas(self._job)}
        found = {names.get(session): pid for pid, session in living.items()}
        return {name: pid for name, pid in found.items() if name is not None and name in there}

    def _is_replica(self, pid: int) -> bool:
        """Whether a process is a replica of this run's own cluster: no other is touched."""
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            ours = any(parent.pid == self._cloud.raylets._process.pid for parent in process.parents())
            return ours and is_replica(process)
        return False

    def shard_tasks(self, driver: int) -> set[int]:
        """The driver's processes that have committed rows."""
        with suppress(psutil.Error):
            children = {child.pid for child in psutil.Process(driver).children()}
            wrote = {int(file.name.partition("-")[0]) for file in self._history.glob("*.history")}
            return children & wrote
        return set()


def core_of(replica: int) -> int | None:
    """The process of a replica's engine core, where it is one of its own."""
    with suppress(psutil.Error):
        for child in psutil.Process(replica).children():
            if "vllm_adapter.core.process" in " ".join(child.cmdline()):
                return int(child.pid)
    return None


def is_tried(shard: Shard) -> bool:
    """Whether a death that is ours would be taken for one of few rows."""
    return shard.crashes > 0 and shard.remaining <= SAFE_ROWS


def held_of(shards: Sequence[Shard]) -> list[Held]:
    return [Held(number=one.number, epoch=one.epoch, indexes=frozenset(indexes_of(one))) for one in shards]
