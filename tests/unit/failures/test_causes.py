"""The table of causes, cell by cell; and what holds of every decision."""

from __future__ import annotations

import errno
import math
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import (
    CancelledError,
    ClusterError,
    ConfigError,
    DrayError,
    EngineDeadError,
    EngineStartError,
    FencedError,
    InputError,
    JobFailedError,
    LeaseLapsedError,
    NoRoomError,
    NotImportedError,
    ReplicaLostError,
    StoreFatalError,
    StoreRefusedError,
    StoreTransientError,
    StoreUnreachableError,
    WeightsError,
)
from dray.failures.causes import Decision, decide
from dray.failures.conditions import INTERRUPTIONS, NO_ROOM_TRIES, SAME_PLACE
from dray.failures.effects import (
    ALLOWANCES,
    SHRINK_STEPS,
    Budget,
    OnShard,
    OnSpent,
    OnTask,
)
from dray.failures.facts import NOTICE_SECONDS, Cause, Facts, in_force
from dray.failures.foreign import Sign
from dray.failures.rules import RULES, STORE_PATIENCE
from dray.failures.signs import ErrorFacts, facts_of
from dray.store.database.seam import translate

pytestmark = pytest.mark.unit

NOW = 1_795_000_000.0


@dataclass(frozen=True)
class Seen:
    """A notice."""

    seen_at: float
    deadline: float | None = None


NOTICED = Facts(now=NOW, notices=(Seen(NOW - 60, NOW + 60),))
PROVEN = Facts(alone=True, proven=True, elsewhere=True, crashes=1)  # a suspect that was fed to a good engine
LOST = ReplicaLostError("replica r0 was lost")
DEAD = EngineDeadError("the engine died")


def sqlite_error(code: int) -> Exception:
    from sqlalchemy.exc import OperationalError

    cause = sqlite3.OperationalError("x")
    cause.sqlite_errorcode = code
    return translate(OperationalError("insert", {}, cause), "sqlite://")


def postgres_error(state: str) -> Exception:
    import psycopg
    from sqlalchemy.exc import DBAPIError

    kind = psycopg.errors.lookup(state)
    return translate(DBAPIError("insert", {}, kind("x")), "postgresql://")


def ray_error(name: str, **attributes: Any) -> Exception:
    import ray.exceptions

    kind = getattr(ray.exceptions, name)
    error: Exception = kind.__new__(kind)
    vars(error).update(attributes)
    return error


def inside(cause: Exception) -> Exception:
    import ray.exceptions

    task_error = ray.exceptions.RayTaskError("results", "a trace with a prompt", cause)
    found: Exception = task_error.as_instanceof_cause()
    return found


# One row for each cell of the notes' table: error, facts, and what must follow. None stands for no charge.
CELLS: list[tuple[str, Any, Facts, Cause, dict[str, Any]]] = [
    # FENCED: commit hit 0 rows, lease lost. Drop the work; completed as superseded; no charge, no retry.
    ("fenced", FencedError("x"), Facts(), Cause.FENCED,
     {"shard": OnShard.DROP, "task": OnTask.SUPERSEDED, "charges": ()}),
    ("fenced, though the node was noticed", FencedError("x"), NOTICED, Cause.FENCED, {"charges": ()}),
    # USER_ERROR: the job fails; never retried.
    ("bad model", ConfigError("x"), Facts(), Cause.USER_ERROR,
     {"task": OnTask.FAIL, "charges": ()}),
    ("bad model, from the actor", inside(ConfigError("x")), NOTICED, Cause.USER_ERROR,
     {"task": OnTask.FAIL}),
    ("damaged weights", WeightsError("x"), Facts(), Cause.USER_ERROR, {"task": OnTask.FAIL}),
    ("bad input", InputError([]), Facts(), Cause.USER_ERROR, {"task": OnTask.FAIL}),
    # SPOT: any one signal. Release, keep finished rows, retry at once, not charged.
    ("noticed", LOST, NOTICED, Cause.SPOT,
     {"shard": OnShard.RELEASE, "task": OnTask.RETRY, "charges": ()}),
    ("noticed long ago, due now", LOST, Facts(now=NOW, notices=(Seen(NOW - 86400, NOW - 5),)),
     Cause.SPOT, {"charges": ()}),
    ("noticed for one node of several", LOST,
     Facts(now=NOW, notices=(Seen(0.0), Seen(NOW - 5))), Cause.SPOT, {}),
    ("a notice without a deadline", LOST, Facts(now=NOW, notices=(Seen(NOW - 5),)), Cause.SPOT, {}),
    ("drained in Ray", LOST, Facts(draining=True), Cause.SPOT, {"charges": ()}),
    ("Ray's own word", ray_error("RayActorError", _preempted=True), Facts(), Cause.SPOT, {}),
    ("Ray's own word, told beside it", LOST, Facts(preempted=True), Cause.SPOT, {}),
    ("killed before its deadline", LOST, replace(NOTICED, node_alive=False), Cause.SPOT, {}),
    ("collateral: the engine died first", DEAD, replace(NOTICED, node_alive=True), Cause.SPOT, {}),
    ("collateral: memory", LOST, replace(NOTICED, oom=True), Cause.SPOT, {}),
    ("collateral: the machine's memory", ray_error("OutOfMemoryError"), NOTICED, Cause.SPOT, {}),
    ("collateral: anything", KeyError("x"), NOTICED, Cause.SPOT, {}),
    ("during the start", EngineStartError("x"), NOTICED, Cause.SPOT, {}),
    ("a notice that lied, an hour ago", LOST,
     Facts(now=NOW, notices=(Seen(NOW - 3600, NOW - 3500),), node_alive=False), Cause.NODE_LOSS, {}),
    ("the store is not the node's", StoreFatalError("x"), NOTICED, Cause.STORE_FATAL, {}),
    # The guard: K = 5 without a new row. Split, and charged as NODE_LOSS.
    ("fourth time", LOST, replace(NOTICED, rows=9, interruptions=3), Cause.SPOT, {"charges": ()}),
    ("fifth time", LOST, replace(NOTICED, rows=9, interruptions=4), Cause.NODE_LOSS,
     {"shard": OnShard.HALVE, "task": OnTask.SPLIT, "charges": (Budget.INFRA,)}),
    ("fifth time, with new rows", LOST, replace(NOTICED, rows=9, interruptions=4, new_rows=1), Cause.SPOT,
     {"charges": ()}),
    ("fifth time of one row", LOST, replace(NOTICED, rows=1, interruptions=4), Cause.NODE_LOSS,
     {"shard": OnShard.RELEASE, "task": OnTask.RETRY, "charges": (Budget.INFRA,)}),
    # NODE_LOSS: without notice. Release, retry with backoff, job budget and node budget.
    ("node gone", LOST, Facts(node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.RELEASE, "task": OnTask.RETRY,
      "charges": (Budget.INFRA, Budget.NODE)}),
    ("nobody knows", LOST, Facts(), Cause.NODE_LOSS, {"charges": (Budget.INFRA, Budget.NODE)}),
    *((name, ray_error(name), Facts(), Cause.NODE_LOSS, {}) for name in (
        "ActorDiedError", "NodeDiedError", "LocalRayletDiedError", "OwnerDiedError", "ObjectLostError",
        "ActorUnavailableError", "WorkerCrashedError")),
    ("engine dead, node too", DEAD, Facts(node_alive=False), Cause.NODE_LOSS, {}),
    # The guard holds without a notice, too: a row may take its node along.
    ("fourth node", LOST, Facts(rows=9, interruptions=3, node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.RELEASE}),
    ("fifth node", LOST, Facts(rows=9, interruptions=4, node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.SPLIT, "task": OnTask.SPLIT, "charges": (Budget.INFRA, Budget.NODE)}),
    ("fifth node, with new rows", LOST, Facts(rows=9, interruptions=4, new_rows=1, node_alive=False),
     Cause.NODE_LOSS, {"shard": OnShard.RELEASE}),
    ("fifth node under one row", LOST, Facts(rows=1, interruptions=4, node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.SUSPECT, "task": OnTask.RETRY}),
    ("node gone with a suspect", LOST, replace(PROVEN, rows=9, node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.SPLIT, "charges": (Budget.INFRA, Budget.NODE)}),
    ("node gone with one suspect, first time", LOST, replace(PROVEN, node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.SUSPECT, "charges": (Budget.INFRA, Budget.NODE)}),
    ("node gone with one suspect, second time", LOST, replace(PROVEN, crashes=2, node_alive=False),
     Cause.POISON, {"shard": OnShard.REFUSE, "code": "poison",
                    "charges": (Budget.INFRA, Budget.NODE)}),
    ("node gone before a suspect was fed", LOST,
     replace(PROVEN, crashes=2, proven=False, interruptions=9, node_alive=False), Cause.NODE_LOSS,
     {"shard": OnShard.RELEASE}),
    ("a suspect's node taken back", LOST, replace(NOTICED, alone=True, proven=True, crashes=3), Cause.SPOT,
     {"shard": OnShard.RELEASE}),
    # ENGINE_CRASH: suspicion, then halves, then the row.
    ("engine dead", DEAD, Facts(rows=500), Cause.ENGINE_CRASH,
     {"shard": OnShard.SUSPECT, "task": OnTask.RETRY,
      "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("actor exit, node alive", LOST, Facts(node_alive=True), Cause.ENGINE_CRASH, {}),
    ("device error", inside(RuntimeError("CUDA error")), Facts(node_alive=True), Cause.ENGINE_CRASH, {}),
    ("watchdog", EngineDeadError("x", stuck=True), Facts(), Cause.ENGINE_CRASH, {}),
    ("watchdog, and the node went later", EngineDeadError("x", stuck=True), Facts(node_alive=False),
     Cause.ENGINE_CRASH, {}),
    ("engine dead, after four nodes", DEAD, Facts(rows=9, interruptions=4, node_alive=True),
     Cause.ENGINE_CRASH, {"shard": OnShard.SUSPECT, "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("engine never started", EngineStartError("x"), Facts(rows=500, crashes=1, alone=True),
     Cause.ENGINE_CRASH, {"shard": OnShard.RELEASE, "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("engine never started, others do", EngineStartError("x"), Facts(hopeful=True, spent={Budget.MODEL: 25}),
     Cause.ENGINE_CRASH, {"task": OnTask.RETRY, "charges": (Budget.REPLICA,)}),
    ("not imported, and another node may", NotImportedError("x"), Facts(hopeful=True), Cause.ENGINE_CRASH,
     {"task": OnTask.RETRY, "charges": ()}),
    ("not imported on any node", NotImportedError("x"), Facts(node_alive=True), Cause.ENGINE_CRASH,
     {"task": OnTask.FAIL, "charges": ()}),
    ("second crash", DEAD, replace(PROVEN, rows=500), Cause.ENGINE_CRASH,
     {"shard": OnShard.SPLIT, "task": OnTask.SPLIT, "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("second crash, beside others", DEAD, Facts(rows=500, crashes=1), Cause.ENGINE_CRASH,
     {"shard": OnShard.SUSPECT, "task": OnTask.RETRY}),
    ("one row, first crash", DEAD, Facts(rows=1, alone=True), Cause.ENGINE_CRASH,
     {"shard": OnShard.RELEASE}),
    ("dead before it was fed", DEAD, replace(PROVEN, rows=500, crashes=7, proven=False), Cause.ENGINE_CRASH,
     {"shard": OnShard.RELEASE, "charges": (Budget.REPLICA, Budget.MODEL)}),
    # OOM: restart smaller, own budget; then as a crash.
    ("Ray's memory monitor", ray_error("OutOfMemoryError"), Facts(), Cause.OOM,
     {"shard": OnShard.RELEASE, "task": OnTask.RETRY,
      "charges": (Budget.OOM,)}),
    ("death context", LOST, Facts(oom=True, node_alive=True), Cause.OOM, {}),
    ("memory in the actor", inside(MemoryError()), Facts(), Cause.OOM, {}),
    ("device memory", DEAD, Facts(oom=True), Cause.OOM, {"charges": (Budget.OOM,)}),
    ("memory at the start", EngineStartError("x", oom=True), Facts(shrinks=9), Cause.OOM,
     {"shard": OnShard.RELEASE, "charges": (Budget.REPLICA, Budget.OOM)}),
    ("memory before a suspect was fed", DEAD, replace(PROVEN, proven=False, oom=True), Cause.OOM,
     {"shard": OnShard.RELEASE, "charges": (Budget.REPLICA, Budget.OOM)}),
    ("memory, and no smaller engine", DEAD, Facts(oom=True, rows=9, shrinks=SHRINK_STEPS), Cause.OOM,
     {"shard": OnShard.SUSPECT, "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("memory under a suspect", DEAD, replace(PROVEN, oom=True, rows=9), Cause.OOM,
     {"shard": OnShard.SPLIT, "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("memory under one suspect, first time", DEAD, replace(PROVEN, oom=True), Cause.OOM,
     {"shard": OnShard.SUSPECT}),
    ("memory under one suspect, second time", DEAD, replace(PROVEN, oom=True, crashes=2), Cause.POISON,
     {"shard": OnShard.REFUSE, "code": "out_of_memory"}),
    # NO_ROOM: the engine is well, and no row is at fault. Waits; paused where it stays so.
    ("no room for answers", inside(ray_error("OutOfDiskError")), Facts(alone=True, proven=True),
     Cause.NO_ROOM, {"shard": OnShard.RELEASE, "task": OnTask.RETRY, "charges": ()}),
    ("no room for requests", ray_error("ObjectStoreFullError"), Facts(tries=NO_ROOM_TRIES - 2), Cause.NO_ROOM,
     {"task": OnTask.RETRY, "charges": ()}),
    ("no room again and again", NoRoomError("x"), Facts(tries=NO_ROOM_TRIES - 1), Cause.NO_ROOM,
     {"shard": OnShard.RELEASE, "task": OnTask.PAUSE, "charges": ()}),
    ("no room again and again, but for some rows", NoRoomError("x"), Facts(tries=99, new_rows=1),
     Cause.NO_ROOM, {"task": OnTask.RETRY}),
    # STORE_TRANSIENT: retried by Prefect, for nothing; past the cap, paused.
    *((f"SQLSTATE {state}", postgres_error(state), Facts(), Cause.STORE_TRANSIENT,
       {"shard": OnShard.RELEASE, "task": OnTask.RETRY, "charges": ()})
      for state in ("08000", "08003", "08006", "57P01", "57P02", "57P03", "40001", "40P01", "53300",
                    "25006")),
    ("SQLITE_BUSY", sqlite_error(sqlite3.SQLITE_BUSY), Facts(), Cause.STORE_TRANSIENT, {}),
    ("object store busy", OSError("s3://b/k: 503 SlowDown"), Facts(), Cause.STORE_TRANSIENT, {}),
    ("timeout", TimeoutError(), Facts(), Cause.STORE_TRANSIENT, {}),
    ("connection cut", ConnectionResetError(errno.ECONNRESET, "x"), Facts(), Cause.STORE_TRANSIENT, {}),
    ("store unreachable", StoreUnreachableError("x"), Facts(), Cause.STORE_TRANSIENT, {}),
    ("the holder gave its lease up", LeaseLapsedError("x"), Facts(), Cause.STORE_TRANSIENT,
     {"shard": OnShard.RELEASE, "task": OnTask.RETRY, "charges": ()}),
    ("past the cap", StoreTransientError("x"), Facts(store_seconds=STORE_PATIENCE), Cause.STORE_TRANSIENT,
     {"task": OnTask.PAUSE, "charges": ()}),
    ("no row past the cap", StoreTransientError("x"), Facts(untaken_seconds=STORE_PATIENCE),
     Cause.STORE_TRANSIENT, {"task": OnTask.PAUSE, "charges": ()}),
    # STORE_FATAL: paused with the reason, an operator resumes.
    ("a password that was changed", StoreRefusedError("x"), Facts(), Cause.STORE_FATAL,
     {"shard": OnShard.RELEASE, "task": OnTask.PAUSE, "charges": ()}),
    *((f"SQLSTATE {state}", postgres_error(state), Facts(), Cause.STORE_FATAL,
       {"task": OnTask.PAUSE, "charges": ()})
      for state in ("53100", "42P01", "42501")),
    ("SQLITE_FULL", sqlite_error(sqlite3.SQLITE_FULL), Facts(), Cause.STORE_FATAL, {}),
    ("SQLITE_READONLY", sqlite_error(sqlite3.SQLITE_READONLY), Facts(), Cause.STORE_FATAL, {}),
    ("disk full", OSError(errno.ENOSPC, "x"), Facts(), Cause.STORE_FATAL, {"task": OnTask.PAUSE}),
    ("spool gone", FileNotFoundError("no such object: s3://b/k"), Facts(), Cause.STORE_FATAL, {}),
    ("no right", PermissionError("not allowed: s3://b/k"), Facts(), Cause.STORE_FATAL, {}),
    # POISON: only that row; the others go on.
    ("one row, first crash alone", DEAD, PROVEN, Cause.ENGINE_CRASH, {"shard": OnShard.SUSPECT}),
    ("one row, both at one place of several", DEAD, replace(PROVEN, crashes=2, elsewhere=False),
     Cause.ENGINE_CRASH, {"shard": OnShard.SUSPECT}),
    ("one row, all at one place", DEAD, replace(PROVEN, crashes=SAME_PLACE, elsewhere=False), Cause.POISON,
     {}),
    ("one row, second crash alone", DEAD, replace(PROVEN, crashes=2), Cause.POISON,
     {"shard": OnShard.REFUSE, "code": "poison", "task": OnTask.DONE,
      "charges": (Budget.REPLICA, Budget.MODEL)}),
    ("two rows, second crash alone", DEAD, replace(PROVEN, rows=2, crashes=2), Cause.ENGINE_CRASH,
     {"shard": OnShard.SPLIT}),
    ("one row, second crash, beside others", DEAD, Facts(rows=1, crashes=1), Cause.ENGINE_CRASH,
     {"shard": OnShard.SUSPECT}),
    # CANCEL and EXPIRE: finished rows stay; never a crash.
    ("cancelled", CancelledError("x"), Facts(), Cause.CANCEL,
     {"task": OnTask.CANCEL, "charges": ()}),
    ("cancelled while a node goes", LOST, replace(NOTICED, cancelled=True), Cause.CANCEL, {}),
    ("cancelled while a store is away", StoreTransientError("x"), Facts(cancelled=True), Cause.CANCEL, {}),
    ("cancelled by Ray", ray_error("TaskCancelledError"), Facts(), Cause.CANCEL, {}),
    ("Ctrl-C", KeyboardInterrupt(), Facts(), Cause.CANCEL, {}),
    ("expired", LOST, Facts(expired=True), Cause.CANCEL,
     {"task": OnTask.CANCEL, "charges": ()}),
    # UNKNOWN: release, retry, a small budget.
    ("unknown", KeyError("a prompt"), Facts(), Cause.UNKNOWN,
     {"shard": OnShard.RELEASE, "task": OnTask.RETRY, "charges": (Budget.UNKNOWN,)}),
    ("unknown on a node that is gone", KeyError("x"), Facts(node_alive=False), Cause.UNKNOWN,
     {"charges": (Budget.UNKNOWN,)}),
    ("unknown of dray's", DrayError("x"), Facts(), Cause.UNKNOWN, {"charges": (Budget.UNKNOWN,)}),
    ("the end of the process", SystemExit(15), Facts(), Cause.UNKNOWN, {"task": OnTask.RETRY}),
    ("too many open files", OSError(errno.EMFILE, "x"), Facts(), Cause.UNKNOWN, {}),
    ("decided already", JobFailedError("x"), Facts(), Cause.UNKNOWN,
     {"task": OnTask.FAIL, "charges": ()}),
    ("the cluster's head is gone", ClusterError("x"), Facts(), Cause.UNKNOWN, {"task": OnTask.FAIL}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "facts", "cause", "effects"), [cell[1:] for cell in CELLS], ids=[cell[0] for cell in CELLS]
)
def test_cells(error: Any, facts: Facts, cause: Cause, effects: dict[str, Any]) -> None:
    decision = decide(error, facts, rng=random.Random(0))
    assert decision.cause is cause
    assert {name: getattr(decision.effect, name) for name in effects} == effects
    assert "prompt" not in decision.reason
    assert decision.reason.startswith(cause)


def test_the_cells_try_every_rule() -> None:
    tried = set()
    for _, error, facts, _, _ in CELLS:
        said = error if isinstance(error, ErrorFacts) else facts_of(error)
        tried.add(next(rule.when for rule in RULES if rule.fits(said, facts)))
    assert tried == {rule.when for rule in RULES}


def test_every_cause_has_a_rule_and_rules_differ_in_words() -> None:
    assert {rule.cause for rule in RULES} == set(Cause)
    assert len({rule.when for rule in RULES}) == len(RULES)


# -- budgets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "facts", "budget", "free"),
    [
        (LOST, Facts(node_alive=False), Budget.INFRA, 20),
        (DEAD, Facts(rows=9), Budget.MODEL, 25),
        (EngineStartError("x", oom=True), Facts(), Budget.OOM, 2),
        (KeyError(), Facts(), Budget.UNKNOWN, 2),
        (LOST, replace(NOTICED, rows=9, interruptions=8), Budget.INFRA, 20),
    ],
)
def test_one_charge_too_many_fails_the_job(error: Exception, facts: Facts, budget: Budget, free: int) -> None:
    for spent in range(free + 3):
        decision = decide(error, replace(facts, spent={budget: spent}))
        failed = spent >= free
        assert (decision.effect.task is OnTask.FAIL) is failed
        assert budget in decision.effect.charges  # the loss that ends the job counts, too
        assert ("no more are allowed" in decision.reason) is failed


def test_every_budget_has_an_allowance() -> None:
    assert set(ALLOWANCES) == set(Budget)


# -- waiting --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "facts", "base", "cap"),
    [
        (LOST, Facts(node_alive=False), 5.0, 120.0),
        (LOST, NOTICED, 1.0, 1.0),
        (DEAD, Facts(rows=9), 1.0, 30.0),
        (KeyError(), Facts(), 5.0, 60.0),
        (StoreTransientError("x"), Facts(), 5.0, 60.0),
    ],
)
def test_waits_have_full_jitter(error: Any, facts: Facts, base: float, cap: float, seed: int) -> None:
    rng = random.Random(seed)
    for tries in (0, 1, 3, 10, 5000):
        longest = min(cap, base * 2.0 ** min(tries, 30))
        drawn = [decide(error, replace(facts, tries=tries), rng=rng).delay for _ in range(400)]
        assert 0 <= min(drawn) < 0.05 * longest
        assert 0.95 * longest < max(drawn) <= longest


def test_the_same_draw_gives_the_same_decision() -> None:
    assert decide(LOST, NOTICED, rng=random.Random(7)) == decide(LOST, NOTICED, rng=random.Random(7))


# -- properties -----------------------------------------------------------------------------

COUNTS = st.integers(0, 40)
NOTICES = st.lists(
    st.builds(Seen, st.floats(NOW - 1e5, NOW), st.none() | st.floats(NOW - 1e5, NOW + 1e6)), max_size=3
).map(tuple)
FACTS = st.builds(
    Facts,
    now=st.just(NOW),
    notices=NOTICES,
    draining=st.booleans(),
    preempted=st.booleans(),
    node_alive=st.sampled_from([None, True, False]),
    oom=st.booleans(),
    cancelled=st.booleans(),
    expired=st.booleans(),
    store_seconds=st.floats(0, 4000),
    untaken_seconds=st.floats(0, 4000),
    rows=st.integers(0, 1000),
    hopeful=st.booleans(),
    alone=st.booleans(),
    proven=st.booleans(),
    elsewhere=st.booleans(),
    shrinks=COUNTS,
    new_rows=st.integers(0, 2),
    interruptions=COUNTS,
    crashes=COUNTS,
    tries=COUNTS,
    spent=st.dictionaries(st.sampled_from(Budget), COUNTS),
)
ERRORS = st.builds(
    ErrorFacts, sign=st.sampled_from(Sign), name=st.just("X"), oom=st.booleans(), preempted=st.booleans()
)
MOSTLY = st.sampled_from([True, True, True, False])
SUSPECTS = st.builds(  # of FACTS, hardly any lead to a verdict on a row
    Facts,
    now=st.just(NOW),
    node_alive=st.sampled_from([None, True, False]),
    oom=st.booleans(),
    rows=st.integers(0, 2),
    alone=MOSTLY,
    proven=MOSTLY,
    elsewhere=st.booleans(),
    shrinks=st.integers(0, 3),
    new_rows=st.integers(0, 1),
    interruptions=st.integers(0, 5),
    crashes=st.integers(0, 5),
    spent=st.dictionaries(st.sampled_from(Budget), st.integers(0, 3), max_size=2),
)
DEATHS = st.builds(
    ErrorFacts,
    sign=st.sampled_from([Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START, Sign.OOM]),
    name=st.just("X"),
    oom=st.booleans(),
    stuck=st.booleans(),
)
FINAL = {Cause.FENCED, Cause.USER_ERROR, Cause.STORE_FATAL, Cause.POISON, Cause.CANCEL}
UNCHARGED = {*FINAL - {Cause.POISON}, Cause.SPOT, Cause.NO_ROOM, Cause.STORE_TRANSIENT}


@given(st.tuples(ERRORS, FACTS) | st.tuples(DEATHS, SUSPECTS), st.integers())
def test_there_is_always_a_decision(drawn: tuple[ErrorFacts, Facts], seed: int) -> None:
    error, facts = drawn
    decision = decide(error, facts, rng=random.Random(seed))
    effect = decision.effect
    assert 0.0 <= decision.delay <= 120.0
    if decision.cause in FINAL:
        assert effect.task is not OnTask.RETRY
    if decision.cause in UNCHARGED:
        assert effect.charges == ()
    assert (effect.shard is OnShard.REFUSE) is (effect.code is not None)
    assert (effect.shard is OnShard.REFUSE) is (effect.task is OnTask.DONE)
    assert (effect.shard in {OnShard.SPLIT, OnShard.HALVE}) is (effect.task is OnTask.SPLIT)
    if effect.shard is OnShard.SPLIT:
        assert facts.rows > 1
    if decision.cause is Cause.POISON and effect.task is not OnTask.FAIL:
        assert facts.alone
        assert facts.proven  # no verdict before the engine has answered
        assert facts.crashes >= 2
        assert facts.elsewhere or facts.crashes >= SAME_PLACE
        assert facts.rows <= 1
    if facts.cancelled and error.sign is not Sign.FENCED:
        assert decision.cause is Cause.CANCEL


@given(FACTS)
def test_every_exception_is_decided(facts: Facts) -> None:
    class HostileError(Exception):
        @property
        def oom(self) -> bool:
            raise RuntimeError("no")

        preempted = code = cause = oom

    for error in (
        HostileError(),
        BaseException(),
        GeneratorExit(),
        StopIteration(),
        ExceptionGroup("x", [LOST]),
    ):
        assert decide(error, facts).cause in Cause


@given(st.floats(0, 1e5), st.none() | st.floats(-1e6, 1e6))
def test_no_notice_explains_losses_for_ever(age: float, left: float | None) -> None:
    notice = Seen(NOW - age, None if left is None else NOW + left)
    near = age <= NOTICE_SECONDS or (left is not None and abs(left) <= NOTICE_SECONDS)
    assert in_force(notice, NOW) is near


@dataclass
class World:
    """A shard of one row whose every attempt fails, and the counts that a store would keep."""

    facts: Facts
    spent: Counter[Budget]

    def count(self, decision: Decision, error: ErrorFacts) -> None:
        """What a caller writes down."""
        self.spent.update(decision.effect.charges)
        interrupted = decision.cause in {Cause.SPOT, Cause.NODE_LOSS}
        self.facts = replace(
            self.facts,
            spent=dict(self.spent),
            interruptions=self.facts.interruptions + interrupted,
            crashes=self.facts.crashes + (decision.effect.shard is OnShard.SUSPECT),
            shrinks=self.facts.shrinks + (decision.cause is Cause.OOM),
            alone=self.facts.alone or decision.effect.shard is OnShard.SUSPECT,
            tries=self.facts.tries + (decision.cause is Cause.NO_ROOM),
            store_seconds=self.facts.store_seconds + 60 * (error.sign is Sign.STORE_AWAY),
        )


FAILURES = st.tuples(ERRORS, st.sampled_from([None, True, False]), st.booleans(), st.booleans())


@given(st.lists(FAILURES, min_size=1), st.integers())
def test_a_shard_that_never_gets_anywhere_ends(
    script: list[tuple[ErrorFacts, bool | None, bool, bool]], seed: int
) -> None:
    """Whatever fails, again and again, there is no endless retry; and spot alone does not end it soon."""
    world = World(Facts(), Counter())
    bound = 20 + INTERRUPTIONS + 25 + 2 + 2 + 3 + NO_ROOM_TRIES + int(STORE_PATIENCE / 60) + 5
    for step in range(bound):
        error, alive, spot, proven = script[step % len(script)]
        facts = replace(world.facts, node_alive=alive, draining=spot, proven=proven)
        decision = decide(error, facts, rng=random.Random(seed))
        if decision.effect.task is not OnTask.RETRY:
            return
        world.count(decision, error)
    raise AssertionError(f"still going after {bound} failures: {world}")


# -- the search for rows that kill engines --------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Rows of a shard, and what is known of them."""

    rows: tuple[int, ...]
    crashes: int = 0


def search(
    rows: int, poison: set[int], rng: random.Random, *, unlucky: bool
) -> tuple[set[int], set[int], Counter[int]]:
    """Run a shard by what the table says: rows that were answered, error rows, and crashes by row at fault.

    An engine answers rows in some order, and dies at the first that kills it: with no luck, before any other.
    """
    answered: set[int] = set()
    errors: set[int] = set()
    crashes: Counter[int] = Counter()
    spent: Counter[Budget] = Counter()
    waiting = [Part(tuple(range(rows)))]
    while waiting:
        part = waiting.pop()
        left = [row for row in part.rows if row not in answered | errors]
        order = rng.sample(left, len(left))
        if unlucky:
            order.sort(key=lambda row: row not in poison)
        killer = next((number for number, row in enumerate(order) if row in poison), None)
        if killer is None:
            answered.update(order)
            spent.clear()
            continue
        answered.update(order[:killer])
        if killer:
            spent.clear()
        left = [row for row in left if row not in answered]
        crashes[order[killer]] += 1
        facts = Facts(
            rows=len(left),
            crashes=part.crashes,
            alone=part.crashes > 0,
            proven=True,
            elsewhere=True,
            node_alive=True,
            spent=dict(spent),
        )
        decision = decide(LOST, facts, rng=rng)
        assert decision.effect.task is not OnTask.FAIL, "the breaker tripped on a bad row"
        spent.update(decision.effect.charges)
        if decision.cause is Cause.POISON:
            errors.update(left)
        elif decision.effect.shard is OnShard.SPLIT:
            half = len(left) // 2
            halves = [Part(tuple(left[:half]), 1), Part(tuple(left[half:]), 1)]
            if unlucky:
                halves.sort(key=lambda part: bool(poison & {*part.rows}))  # the last is run first
            waiting += halves
        else:
            assert decision.effect.shard is OnShard.SUSPECT
            waiting.append(Part(tuple(left), part.crashes + 1))
    return answered, errors, crashes


def poisoned() -> Iterator[tuple[int, set[int]]]:
    for rows in (1, 2, 3, 7, 64, 500, 4096):
        yield rows, {0}
        yield rows, {rows - 1}
        yield rows, {rows // 2}
        yield rows, {rows // 2, max(rows // 2 - 1, 0)}  # two adjacent ones
        yield rows, set()
        yield rows, set(range(0, rows, max(rows // 3, 1)))


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("unlucky", [False, True])
@pytest.mark.parametrize(("rows", "poison"), list(poisoned()))
def test_only_poison_is_found_and_soon(rows: int, poison: set[int], unlucky: bool, seed: int) -> None:
    for round_ in range(5):
        answered, errors, crashes = search(rows, poison, random.Random(seed + round_), unlucky=unlucky)
        assert errors == poison
        assert answered == set(range(rows)) - poison
        assert all(count <= math.ceil(math.log2(rows)) + 3 for count in crashes.values())


@pytest.mark.parametrize("rows", [1, 8, 12, 16, 26, 1000])
def test_a_model_that_never_runs_fails_the_job_and_not_its_rows(rows: int) -> None:
    """Its engines die under dray's own request, before a suspect is fed."""
    spent: Counter[Budget] = Counter()
    crashes = decisions = 0
    while True:
        decision = decide(DEAD, Facts(rows=rows, crashes=crashes, alone=crashes > 0, spent=dict(spent)))
        decisions += 1
        if decision.effect.task is OnTask.FAIL:
            break
        assert decision.effect.shard is (OnShard.RELEASE if crashes else OnShard.SUSPECT)
        crashes += decision.effect.shard is OnShard.SUSPECT
        spent.update(decision.effect.charges)
    assert decisions == 26
    assert "try the model" in decision.reason


def test_memory_that_never_suffices_is_told_as_such() -> None:
    """Whatever budget its engines were charged to."""
    decision = decide(DEAD, Facts(oom=True, shrinks=SHRINK_STEPS, spent={Budget.MODEL: 25}))
    assert decision.effect.task is OnTask.FAIL
    assert "max_num_seqs" in decision.reason


def test_what_is_done_when_a_budget_is_spent() -> None:
    assert {ALLOWANCES[budget].then for budget in (Budget.NODE, Budget.REPLICA)} == {OnSpent.EXCLUDE}
