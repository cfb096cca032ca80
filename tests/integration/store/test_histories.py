"""Any history of drivers, workers, lapses, splits, charges and cancels keeps invariants I1 to I4 and I6.

A model in plain Python says what must be there after every step; the store must agree. Clients
keep every lease they ever had, and use old ones as gladly as new ones, as zombies do.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from dray.errors import CancelledError, FencedError, JobBusyError, StoreFatalError
from dray.store import (
    Charge,
    Evidence,
    JobLease,
    JobState,
    ReplicaRow,
    ReplicaState,
    ShardLease,
    ShardSpec,
    ShardState,
    Store,
    Verdict,
    open_store,
)
from tests.support.postgres import PostgresServer
from tests.support.stores import FINGERPRINT, FakeClock, failure, note_charges, outcome, specs

pytestmark = pytest.mark.integration

_SHARDS, _ROWS = 2, 3
_TTL = 90.0
_JOBS = count()
clients = st.sampled_from(["anna", "ben"])
drivers = st.sampled_from(["one", "two"])
replicas = clients
"""Those of a client run on a replica of its name."""
shard_numbers = st.integers(0, _SHARDS + 1)
charges = st.builds(
    Charge,
    budget=st.sampled_from(["infra", "model"]),
    event=st.sampled_from(["r0", "r1"]),
    cause=st.sampled_from(["NODE_LOSS", "ENGINE_CRASH", "OOM"]),
)


@dataclass
class ModelShard:
    spec: ShardSpec
    state: ShardState = ShardState.PENDING
    epoch: int = 0
    owner: str | None = None
    until: float = 0.0
    crashes: int = 0

    def leave(self, state: ShardState) -> None:
        self.state, self.owner = state, None

    def holds(self, lease: ShardLease) -> bool:
        return (self.state, self.epoch, self.owner) == (ShardState.LEASED, lease.epoch, lease.owner)

    @property
    def indexes(self) -> range:
        return range(self.spec.first_position, self.spec.last_position)


@dataclass
class Model:
    epoch: int = 0
    driver: str | None = None
    until: float = 0.0
    cancelled: bool = False
    paused: bool = False
    shards: dict[int, ModelShard] = field(default_factory=dict)
    rows: dict[int, tuple[bytes | None, int, int]] = field(default_factory=dict)
    """Acknowledged outcomes: index -> (response, shard, epoch)."""
    charged: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    """Losses: event -> (cause, budgets)."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Of the present driver's replicas, by name."""
    put: set[str] = field(default_factory=set)
    """The present driver's replicas."""
    placed: set[tuple[int, int, str]] = field(default_factory=set)
    """Attempts: the shard's number and epoch, and the replica."""
    said: set[tuple[int, int]] = field(default_factory=set)
    """Attempts that said what they saw of their replica's end."""

    def is_driven_by(self, lease: JobLease) -> bool:
        return (lease.epoch, lease.owner) == (self.epoch, self.driver)

    def charge(self, one: Charge) -> None:
        cause, budgets = self.charged.get(one.event, (one.cause, set()))
        if cause == one.cause:
            self.charged[one.event] = cause, budgets | {one.budget}


class Histories(RuleBasedStateMachine):
    """``store`` and ``clock`` are set on a subclass per database."""

    store: Store
    clock: FakeClock

    job_leases = Bundle("job_leases")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.job = f"job-{next(_JOBS)}"
        self.model = Model()
        self.texts = count()
        self.store.create_job(self.job, fingerprint=FINGERPRINT, settings={})
        self.first = self.store.claim_job(self.job, "one")
        self.store.add_shards(self.first, specs(_SHARDS, _ROWS), total_rows=_SHARDS * _ROWS)
        self.model.epoch, self.model.driver, self.model.until = 1, "one", self.clock.time + 60
        self.model.shards = {spec.number: ModelShard(spec) for spec in specs(_SHARDS, _ROWS)}

    @initialize(target=job_leases)
    def ingested(self) -> JobLease:
        return self.first

    @initialize(target=leases, number=st.integers(0, _SHARDS - 1), client=clients)
    def started(self, number: int, client: str) -> object:
        return self.claim(self.first, number, client)

    @rule(target=job_leases, driver=drivers, seize=st.booleans(), resume=st.booleans())
    def drive(self, driver: str, seize: bool, resume: bool) -> object:
        model = self.model
        busy = model.driver not in (None, driver) and model.until > self.clock.time and not seize
        try:
            lease = self.store.claim_job(self.job, driver, takeover=lambda _: seize, resume=resume)
        except JobBusyError:
            assert busy
            return multiple()
        except CancelledError:
            assert not busy
            assert model.cancelled
            assert not resume
            return multiple()
        assert not busy
        assert resume or not model.cancelled
        model.epoch, model.driver, model.until = model.epoch + 1, driver, self.clock.time + 60
        if resume and model.paused:
            model.charged.clear()  # an explicit word gives the budgets again
        model.verdicts.clear()
        model.put.clear()
        model.cancelled = model.paused = False
        for shard in model.shards.values():
            if shard.state is ShardState.LEASED:
                shard.leave(ShardState.PENDING)
                shard.epoch += 1
        assert lease.epoch == model.epoch
        return lease

    @rule(lease=job_leases, state=st.sampled_from([JobState.IN_PROGRESS, JobState.PAUSED]))
    def set_state(self, lease: JobLease, state: JobState) -> None:
        current = self.model.is_driven_by(lease)
        try:
            self.store.set_job_state(lease, state)
        except FencedError:
            assert not current
        else:
            assert current
            self.model.paused = state is JobState.PAUSED

    @rule(lease=job_leases)
    def renew_driver(self, lease: JobLease) -> None:
        current = self.model.is_driven_by(lease)
        try:
            self.store.renew_job(lease)
        except FencedError:
            assert not current
        else:
            assert current
            self.model.until = self.clock.time + 60

    @rule(lease=consumes(job_leases))
    def leave(self, lease: JobLease) -> None:
        self.store.release_job(lease)
        if self.model.is_driven_by(lease):
            self.model.driver = None

    @rule(target=leases, job=job_leases, number=shard_numbers, client=clients)
    def claim_one(self, job: JobLease, number: int, client: str) -> object:
        return self.claim(job, number, client)

    def claim(self, job: JobLease, number: int, client: str) -> object:
        shard = self.model.shards.get(number)
        try:
            lease = self.store.claim_shard(job, number, owner=client, replica=client, ttl=_TTL)
        except FencedError:
            assert not self.model.is_driven_by(job)
            return multiple()
        assert self.model.is_driven_by(job)
        free = shard is not None and (
            shard.state is ShardState.PENDING
            or (
                shard.state is ShardState.LEASED and (shard.until <= self.clock.time or shard.owner == client)
            )
        )
        assert (lease is not None) == free
        if lease is None or shard is None:
            return multiple()
        shard.state, shard.owner, shard.until = ShardState.LEASED, client, self.clock.time + _TTL
        shard.epoch += 1
        assert lease.epoch == shard.epoch
        self.model.placed.add((number, lease.epoch, client))
        return lease

    @rule(job=job_leases, number=shard_numbers)
    def take_back(self, job: JobLease, number: int) -> None:
        shard = self.model.shards.get(number)
        try:
            self.store.take_back(job, number, cause="CANCEL")
        except FencedError:
            assert not self.model.is_driven_by(job)
            return
        assert self.model.is_driven_by(job)
        if shard is not None and shard.state is ShardState.LEASED:
            shard.leave(ShardState.PENDING)

    @rule(one=charges)
    def charge(self, one: Charge) -> None:
        note_charges(self.store, self.job, [one])
        self.model.charge(one)

    @rule(job=job_leases, replica=replicas)
    def put(self, job: JobLease, replica: str) -> None:
        row = ReplicaRow(name=replica, lane=0, state=ReplicaState.READY, slots=9)
        try:
            self.store.put_replicas(job, [row])
        except FencedError:
            assert not self.model.is_driven_by(job)
        else:
            assert self.model.is_driven_by(job)
            self.model.put.add(replica)

    @rule(job=job_leases, replica=replicas, one=charges)
    def judge(self, job: JobLease, replica: str, one: Charge) -> None:
        """A verdict and its charge: both, or neither."""
        verdict = Verdict(cause=one.cause, event=one.event)
        try:
            self.store.judge(job, replica, verdict, [one])
        except FencedError:
            assert not self.model.is_driven_by(job)
            return
        assert self.model.is_driven_by(job)
        self.model.charge(one)
        if replica in self.model.put:
            self.model.verdicts[replica] = verdict

    @rule(lease=leases)
    def testify(self, lease: ShardLease) -> None:
        """From a zombie, too: what it saw is true all the same."""
        self.store.testify(lease, Evidence(sign="lost"))
        self.model.said.add((lease.number, lease.epoch))

    @rule(lease=leases)
    def hear(self, lease: ShardLease) -> None:
        model, shard = self.model, self.model.shards[lease.number]
        found = self.store.verdict_status(lease)
        assert found.verdict == model.verdicts.get(lease.replica or "")
        driven = model.driver is not None and model.until > self.clock.time
        waits = lease.replica in model.put and driven and shard.holds(lease)
        if found.verdict is not None or model.cancelled or model.paused:
            waits = False
        assert found.open == waits

    @rule(replica=replicas)
    def witnesses(self, replica: str) -> None:
        found = self.store.witnesses(self.job, replica)
        here = {(number, epoch) for number, epoch, where in self.model.placed if where == replica}
        assert len(found.said) == len(here & self.model.said)
        silent = [
            (number, shard.epoch)
            for number, shard in self.model.shards.items()
            if shard.state is ShardState.LEASED and shard.until > self.clock.time
        ]
        assert found.silent == len(here.intersection(silent) - self.model.said)

    @rule(lease=leases)
    def renew(self, lease: ShardLease) -> None:
        shard = self.model.shards[lease.number]
        held = shard.holds(lease)
        try:
            self.store.renew_shard(lease)
        except FencedError:
            assert not held
        else:
            assert held
            shard.until = self.clock.time + _TTL

    @rule(lease=leases, picks=st.lists(st.integers(0, _ROWS - 1), max_size=_ROWS), bad=st.booleans())
    def commit(self, lease: ShardLease, picks: list[int], bad: bool) -> None:
        shard = self.model.shards[lease.number]
        held = shard.holds(lease)
        indexes = [shard.indexes[pick % len(shard.indexes)] for pick in picks]
        batch = [failure(i) if bad else outcome(i, f"{lease.owner} {next(self.texts)}") for i in indexes]
        try:
            receipt = self.store.commit(lease, batch)
        except FencedError:
            assert not held
            return
        assert held
        before = len(self.model.rows)
        for row in batch:
            self.model.rows.setdefault(row.index, (row.response, lease.number, lease.epoch))
        shard.until = self.clock.time + _TTL
        assert receipt.inserted == len(self.model.rows) - before
        assert receipt.signals.cancelled == self.model.cancelled

    @rule(lease=leases)
    def finish(self, lease: ShardLease) -> None:
        shard = self.model.shards[lease.number]
        complete = all(index in self.model.rows for index in shard.indexes)
        repeated = shard.state is ShardState.DONE and shard.epoch == lease.epoch
        try:
            self.store.finish_shard(lease)
        except FencedError:
            assert not shard.holds(lease)
            assert not repeated
        except StoreFatalError:
            assert shard.holds(lease)
            assert not complete
        else:
            assert repeated or (shard.holds(lease) and complete)
            shard.leave(ShardState.DONE)

    @rule(lease=leases, one=charges, suspect=st.booleans())
    def release(self, lease: ShardLease, one: Charge, suspect: bool) -> None:
        shard = self.model.shards[lease.number]
        repeated = shard.state is ShardState.PENDING and shard.epoch == lease.epoch
        try:
            self.store.release_shard(lease, cause=one.cause, suspect=suspect, charged=[one])
        except FencedError:
            assert not shard.holds(lease)
            assert not repeated
        else:
            assert repeated or shard.holds(lease)
            shard.crashes += suspect and not repeated
            shard.leave(ShardState.PENDING)
            self.model.charge(one)

    @rule(lease=leases, suspects=st.tuples(st.booleans(), st.booleans()))
    def split(self, lease: ShardLease, suspects: tuple[bool, bool]) -> None:
        shard = self.model.shards[lease.number]
        if len(shard.indexes) < 2:
            return
        middle = shard.spec.first_position + len(shard.indexes) // 2
        cuts = [(shard.spec.first_position, middle), (middle, shard.spec.last_position)]
        parts = [
            ShardSpec(
                number=-1,
                uri=shard.spec.uri,
                offset=first,
                length=last - first,
                rows=last - first,
                first_position=first,
                inherited=sum(index in self.model.rows for index in range(first, last)),
                suspect=suspect,
            )
            for (first, last), suspect in zip(cuts, suspects, strict=True)
        ]
        repeated = shard.state is ShardState.SPLIT and shard.epoch == lease.epoch
        try:
            children = self.store.split_shard(lease, parts, cause="POISON")
        except FencedError:
            assert not shard.holds(lease)
            assert not repeated
            return
        assert repeated or shard.holds(lease)
        assert len(children) == 2
        if not repeated:
            shard.leave(ShardState.SPLIT)
            for child, spec in zip(children, parts, strict=True):
                assert child.number == max(self.model.shards) + 1
                inherited = 1 if spec.suspect and shard.crashes else 0
                self.model.shards[child.number] = ModelShard(spec, crashes=inherited)

    @rule()
    def cancel(self) -> None:
        self.store.request_cancel(self.job)
        self.model.cancelled = True

    @rule(seconds=st.sampled_from([45.0, 90.0]))
    def wait(self, seconds: float) -> None:
        self.clock.pass_seconds(seconds)

    @invariant()
    def rows_are_those_acknowledged(self) -> None:
        """I1, I2 and I3: every acknowledged row, once, as first written, by who held the shard then."""
        rows = [row for page in self.store.outcomes(self.job, batch=5) for row in page]
        assert [row.index for row in rows] == sorted(self.model.rows)
        assert {row.index: (row.response, row.shard, row.epoch) for row in rows} == self.model.rows

    @invariant()
    def shards_are_as_the_model_says(self) -> None:
        stored = {
            shard.number: (shard.state, shard.epoch, shard.owner, shard.crashes)
            for shard in self.store.shards(self.job)
        }
        model = {number: (s.state, s.epoch, s.owner, s.crashes) for number, s in self.model.shards.items()}
        assert stored == model

    @invariant()
    def a_loss_is_charged_once(self) -> None:
        """I6: an event has one cause, whoever noticed it and how often."""
        stored = {(one.event, one.cause, one.budget) for one in self.store.charges(self.job)}
        model = {(event, cause, b) for event, (cause, budgets) in self.model.charged.items() for b in budgets}
        assert stored == model

    @invariant()
    def counts_add_up(self) -> None:
        """I4: counters, rows and model agree."""
        counts = self.store.verify_counts(self.job)
        failed = sum(1 for response, _, _ in self.model.rows.values() if response is None)
        assert (counts.total, counts.failed) == (_SHARDS * _ROWS, failed)
        assert counts.done + counts.failed == len(self.model.rows)


def check_histories(url: str, *, examples: int, steps: int) -> None:
    clock = FakeClock()
    with open_store(url, clock=clock) as store:
        machine = type("HistoriesHere", (Histories,), {"store": store, "clock": clock})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )


@pytest.mark.heavy
def test_histories_on_sqlite() -> None:
    with tempfile.TemporaryDirectory(prefix="dray-histories-") as folder:
        check_histories(str(Path(folder) / "store.db"), examples=80, steps=40)


@pytest.mark.heavy
def test_histories_on_postgresql(postgres: PostgresServer, postgres_url: str) -> None:
    check_histories(postgres_url, examples=25, steps=40)
