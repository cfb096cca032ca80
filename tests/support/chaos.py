"""Jobs on a cluster whose nodes come to harm, and what is left of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dray.errors import DrayError
from dray.history import Event
from dray.store import Attempt, Charge, ReplicaRow, StoredNotice, open_store
from tests.support.command import CANARY, Command, Ended, committed, run_arguments, write_requests
from tests.support.history import Figures, Line, check_history, read_history
from tests.support.raylets import Raylets


@dataclass(kw_only=True)
class Job:
    """One job, on ``raylets`` or a cluster of its own, its history kept outside of the store."""

    raylets: Raylets | None = None
    folder: Path
    rows: int
    replicas: int = 1
    settings: Iterable[str] = ()
    store: str = ""
    engine: str = "simulated"
    model: str = "simulated"
    inputs: Path | None = None
    more: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    max_tokens: int = 8

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.output = self.folder / "out"
        self.history = self.folder / "history"
        self.store = self.store or f"sqlite:///{self.folder / 'jobs.db'}"
        if self.inputs is None:
            self.inputs = write_requests(self.folder / "in.jsonl", self.rows, max_tokens=self.max_tokens)
        self._runs = 0

    def start(self, *, through: str = "", **environment: str) -> Command:
        """The job as a user starts it, and starts it again; ``through`` is another way to the store."""
        assert self.inputs is not None
        self._runs += 1
        cluster: tuple[str, ...] = ()
        variables = {"DRAY_HISTORY_DIR": str(self.history), **self.environment, **environment}
        if self.raylets is not None:
            assert self.raylets.settings.address is not None
            cluster = ("--cluster", self.raylets.settings.address)
            variables = {**self.raylets.environment, **variables}
        arguments = run_arguments(
            self.inputs,
            self.output,
            *(*cluster, "--replicas", str(self.replicas), *self.more),
            engine=self.engine,
            model=self.model,
            settings=self.settings,
            store=through or self.store,
        )
        return Command(arguments=arguments, folder=self.folder / f"run-{self._runs}", environment=variables)

    def committed(self) -> int:
        """Rows with an outcome so far."""
        return committed(self.output, store=self.store)

    def until_committed(self, command: Command, rows: int) -> None:
        """Wait until so many rows have an outcome."""
        command.until(lambda: self.committed() >= rows, what=f"{rows} committed rows")

    def finished(self, command: Command, seconds: float = 300) -> Figures:
        """Wait for the end, which must be good, and hold all that is left together (I1 to I5, I7, I9)."""
        figures = self.ended_well(command.wait(seconds))
        command.assert_nothing_left()
        return figures

    def ended_well(self, ended: Ended) -> Figures:
        """The same, of a run that has ended."""
        assert ended.code == 0, ended.stderr[-6000:]
        assert ended.json["counts"]["done"] + ended.json["counts"]["failed"] == self.rows
        self.assert_released()
        for text in (ended.stdout, ended.stderr, (self.output / "report.html").read_text()):
            assert CANARY not in text, "I9: a prompt is told"
        return self.check()

    def assert_released(self) -> None:
        """I7: no lease, no open attempt, no file that somebody was writing."""
        with open_store(self.store, create=False) as store:
            assert store.get_job("job").driver is None
            assert [shard for shard in store.shards("job") if shard.owner is not None] == []
            assert [attempt for attempt in store.attempts("job") if attempt.cause is None] == []
        assert [path for path in self.output.rglob("*") if path.suffix in (".part", ".old", ".tmp")] == []

    def check(self) -> Figures:
        """I1 to I5."""
        return check_history(self.history, self.store, "job", self.output)

    def admitted(self) -> list[Line]:
        """The rows that entered engines so far."""
        return [line for line in read_history(self.history, "job") if line.event is Event.ADMITTED]

    def attempts(self) -> list[Attempt]:
        """All attempts at shards."""
        with open_store(self.store, create=False) as store:
            return store.attempts("job")

    def causes(self) -> set[str]:
        """How attempts ended that did not finish their shards."""
        return {attempt.cause or "" for attempt in self.attempts()} - {"DONE", "NOT_THERE"}

    def charges(self) -> list[Charge]:
        """What was charged."""
        with open_store(self.store, create=False) as store:
            return store.charges("job")

    def budgets(self) -> dict[str, int]:
        """How many charges there are by budget."""
        found: dict[str, int] = {}
        for charge in self.charges():
            found[charge.budget] = found.get(charge.budget, 0) + 1
        return found

    def notices(self) -> list[StoredNotice]:
        """Notices as recorded."""
        with open_store(self.store, create=False) as store:
            return store.notices("job")

    def replicas_now(self) -> list[ReplicaRow]:
        """The replicas as the store has them; none while there is no job."""
        try:
            with open_store(self.store, create=False) as store:
                return store.replicas("job")
        except DrayError:
            return []

    def leased_on(self, node: str) -> list[int]:
        """Shards that a replica of this node holds."""
        with open_store(self.store, create=False) as store:
            names = {row.name for row in store.replicas("job") if row.node == node}
            return [shard.number for shard in store.shards("job") if shard.replica in names]

    def node_at_work(self, command: Command) -> int:
        """The number of a node, not the head, whose replica has shards half done."""
        found: list[int] = []

        def look() -> bool:
            assert self.raylets is not None
            if self.committed() == 0:
                return False
            busy = {one.node for one in self.attempts() if one.cause is None and one.done}
            found[:] = [n for n, node in enumerate(self.raylets.nodes) if n and node in busy]
            return bool(found)

        command.until(look, what="a replica at work")
        return found[0]


def wait_for_release(job: Job, node: str, seconds: float) -> float:
    """Until no shard is leased on ``node``; how long that took."""
    began = time.monotonic()
    while held := job.leased_on(node):
        assert time.monotonic() - began < seconds, held
        time.sleep(0.1)
    return time.monotonic() - began


def told(ended: Ended) -> str:
    """What a run said."""
    return ended.stderr
