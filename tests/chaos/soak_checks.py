"""What must hold after a run of the soak, and what its faults cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dray.history import Event
from dray.requests.outputs.lines import error_line
from dray.shard.ending import VERDICTS
from dray.store import JobState, ShardState, own_event
from tests.chaos.soak_plan import Fault, Kind
from tests.chaos.soak_run import Run
from tests.support.command import CANARY
from tests.support.history import Figures, Line, check_history, read_history
from tests.support.ray_workers import await_none

_GONE_SECONDS = 15.0
_NOTICE_SECONDS = 20.0
"""A death so long before a run's end is charged: the driver first waits for shard tasks that stand still."""
_TOLERATED = {"DONE", "NOT_THERE", "CLAIMED_AGAIN"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The files of an undisturbed run: the lines of ``output.jsonl``, in the order of the input."""

    lines: tuple[bytes, ...]

    @classmethod
    def of(cls, run: Run) -> Wanted:
        """What a run without faults came to."""
        assert (run.output / "errors.jsonl").read_bytes() == b""
        lines = (run.output / "output.jsonl").read_bytes().splitlines(keepends=True)
        assert len(lines) == run.rows
        return cls(lines=tuple(lines))

    def files(self, poison: tuple[int, ...], *, memory: bool) -> Mapping[str, bytes]:
        """Output and errors of the same input, when some rows kill engines or take their memory."""
        answers = [line for index, line in enumerate(self.lines) if index not in poison]
        code = "out_of_memory" if memory else "poison"
        errors = [error_line(index, f"row-{index}", code, VERDICTS[code]) for index in sorted(poison)]
        return {"output.jsonl": b"".join(answers), "errors.jsonl": b"".join(errors)}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the faults of a run cost. ``resumed``: seconds to the next commit after a driver's or a loss."""

    figures: Figures
    resumed: Mapping[str, list[float]]
    unsure: int
    """Charges for a replica of which nobody could tell whether it went alone or with its node."""


def check_run(run: Run, wanted: Wanted) -> Cost:
    """I1 to I8; AssertionError names the one that is broken."""
    figures = check_history(run.history, run.store.url, run.job, run.output)
    assert figures.rows == run.rows, f"I1: {figures.rows} of {run.rows} rows have an outcome"
    _check_files(run, wanted)
    _check_nothing_left(run)
    unsure = _check_charges(run)
    lines = read_history(run.history, run.job)
    return Cost(figures=figures, resumed=_resumed(run, lines), unsure=unsure)


def _check_files(run: Run, wanted: Wanted) -> None:
    """I8: the bytes of an undisturbed run."""
    for name, content in wanted.files(run.plan.poison, memory=run.plan.memory).items():
        found = (run.output / name).read_bytes()
        if found != content:
            lines, expected = set(found.splitlines()), set(content.splitlines())
            shown = [line[:300] for line in sorted(lines ^ expected)[:4]]
            raise AssertionError(
                f"I8: {name} differs: {len(lines - expected)} lines are not wanted, "
                f"{len(expected - lines)} are missing; they begin with {shown}"
            )
    for number, exported in enumerate(run.exports):
        there = set(exported)
        known = [line for line in wanted.lines if line in there]
        assert list(exported) == known, f"I8: export {number} has lines that an undisturbed run has not"


def _check_nothing_left(run: Run) -> None:
    """I7 and I9."""
    store = run.opened()
    job = store.get_job(run.job)
    assert len(store.list_jobs(10)) == 1, "I7: a job that was refused is in the store"
    assert job.state is JobState.COMPLETED, f"I4: the job is {job.state}"
    assert job.driver is None, "I7: the driver's lease is still there"
    leased = [one.number for one in store.shards(run.job) if one.state is ShardState.LEASED]
    assert not leased, f"I7: shards are still leased: {leased}"
    running = [one for one in store.attempts(run.job) if one.cause is None]
    assert not running, f"I7: attempts that never ended: {running}"
    assert not run.report["actors"], f"I7: actors are left: {run.report['actors']}"
    work = {".dray/owner.json", f".dray/{run.job}/requests.jsonl"}
    expected = {"output.jsonl", "errors.jsonl", "report.html"} | work
    files = [str(path.relative_to(run.output)) for path in run.output.rglob("*") if path.is_file()]
    found = {re.sub(r"-[0-9a-f]{12}/requests-\d+\.", "/requests.", name) for name in files}
    assert len(files) == len(found), f"I7: spools that nobody reads: {files}"
    assert found == expected, f"I7: files beside the outputs: {found ^ expected}"
    beside = {path.name for path in run.folder.iterdir()}
    more = beside - {"out", "history", "driver.log", "report.json", "faults.jsonl", "jobs.db"}
    # The soak itself has the store open.
    assert more <= {"jobs.db-journal", "jobs.db-turn"}, f"I7: files beside the store: {more}"
    token = run.cloud.raylets.settings.auth_token
    for path in (run.log, run.output / "report.html"):
        text = path.read_text()
        assert CANARY not in text, f"I9: a prompt stands in {path.name}"
        assert token is not None and token not in text, f"I9: the cluster's token stands in {path.name}"
    await_none(_GONE_SECONDS, run.cloud.raylets.workers)


def _check_charges(run: Run) -> int:
    """I6: charged is what the table charges, once for each loss; returns the losses of unknown kind."""
    faults, charges = run.faults, run.opened().charges(run.job)
    killed = {f"replica {fault.replica}" for fault in faults if fault.kind is Kind.REPLICA}
    lost = {f"node {fault.node}" for fault in faults if fault.kind is Kind.NODE}
    given_up = {f"node {node}" for node in run.given_up}
    # A shard task that heard no verdict, of a driver that stood still, charges its attempt.
    own = {
        own_event(one.shard, one.epoch): f"replica {one.replica}" for one in run.opened().attempts(run.job)
    }
    at_engines = {own.get(one.event, one.event) for one in charges if one.budget in ("model", "replica")}
    at_nodes = {own.get(one.event, one.event) for one in charges if one.budget in ("infra", "node")}
    other = {one.budget for one in charges} - {"model", "replica", "infra", "node"}
    other -= {"oom"} if run.plan.memory else set()
    assert not other, f"I6: charged to {other}"
    # A replica of which Ray said in time neither how it died nor that its node lives.
    unsure = {event for event in at_nodes if event.startswith("replica ")}
    on_nodes = {f"replica {name}" for fault in faults if fault.kind is Kind.NODE for name in fault.replicas}
    on_nodes |= {f"replica {row.name}" for row in run.opened().replicas(run.job) if row.node in run.given_up}
    assert unsure <= killed | on_nodes, f"I6: lost without a kill: {unsure - killed - on_nodes}"
    strange = at_nodes - lost - unsure - given_up
    announced = {fault.node: str(fault.kind) for fault in faults if fault.kind in (Kind.OBEYED, Kind.LYING)}
    dead = {f"node {name}": why for name, why in run.cloud.raylets.dead().items()}
    said = {event: dead.get(event) for event in strange}
    assert not strange, f"I6: nodes that no fault killed, what Ray says: {said}; announced: {announced}"
    deaths = at_engines - killed
    allowed = len(run.plan.poison) * (math.log2(run.rows) + 4)
    assert len(deaths) <= allowed, f"I6: {len(deaths)} deaths of engines, {allowed:.0f} by poison: {deaths}"
    _check_causes(run)
    _check_charged(run, at_engines | at_nodes)
    return len(unsure)


def _check_causes(run: Run) -> None:
    kinds = {fault.kind for fault in run.faults}
    causes = {one.cause for one in run.opened().attempts(run.job)} - _TOLERATED
    explained: dict[str, bool] = {
        "SPOT": bool(kinds & {Kind.OBEYED, Kind.LYING}),
        "NODE_LOSS": bool(kinds & {Kind.NODE, Kind.REPLICA} or run.given_up),
        "ENGINE_CRASH": Kind.REPLICA in kinds or bool(run.plan.poison),
        "OOM": run.plan.memory,
        "POISON": bool(run.plan.poison),
        "DRIVER_LOST": bool(kinds & {Kind.DRIVER, Kind.STALLED}),
        "LEASE_EXPIRED": Kind.TASK in kinds,
        "STORE_TRANSIENT": Kind.TASK in kinds,  # a lease that lapsed by its holder's own clock
    }
    strange = {str(cause) for cause in causes if not explained.get(str(cause), False)}
    assert not strange, f"I6: attempts ended by {strange}, which nobody caused"


def _check_charged(run: Run, events: set[str]) -> None:
    """What was killed, in time before the end and before its driver's, is charged."""
    announced = {fault.node for fault in run.faults if fault.kind in (Kind.OBEYED, Kind.LYING)}
    killed = {fault.node for fault in run.faults if fault.kind is Kind.NODE} | set(run.given_up)
    last = max(line.at for line in read_history(run.history, run.job))
    drivers = [fault.at for fault in run.faults if fault.kind is Kind.DRIVER]
    within = _NOTICE_SECONDS * 1e9
    for fault in run.faults:
        # Too near to the end, or after it, or too near to its driver's: nobody heard of it in time.
        unheard = last - fault.at < within or any(0 <= at - fault.at < within for at in drivers)
        if unheard or fault.node in announced:
            continue
        expected: set[str] = set()
        if fault.kind is Kind.REPLICA and fault.node not in killed:
            expected = {f"replica {fault.replica}"}
        elif fault.kind is Kind.NODE and fault.held:
            expected = {f"node {fault.node}", *(f"replica {name}" for name in fault.replicas)}
        assert not expected or expected & events, f"I6: nobody was charged for {fault}"


def _resumed(run: Run, lines: list[Line]) -> dict[str, list[float]]:
    """Seconds from a fault to the first commit after it; of rows of a shard that it hit, but for a driver."""
    acks = [line for line in lines if line.event is Event.ACK]
    found: dict[str, list[float]] = {Kind.DRIVER: [], Kind.REPLICA: [], Kind.NODE: []}
    for fault in run.faults:
        if fault.kind not in found:
            continue
        first = next((line for line in acks if line.at > fault.at and _goes_on(line, fault)), None)
        if first is not None:
            found[fault.kind].append((first.at - fault.at) / 1e9)
    return found


def _goes_on(line: Line, fault: Fault) -> bool:
    if fault.kind is Kind.DRIVER:
        return True
    return any(
        line.session > (held.number, held.epoch) and not held.indexes.isdisjoint(line.indexes)
        for held in fault.held
    )
