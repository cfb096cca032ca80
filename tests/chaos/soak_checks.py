"""What must hold after a run of the soak, and what its faults cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dray.history import Event
from dray.requests.outputs.lines import error_line
from dray.shard.ending import VERDICTS
from dray.store import JobState, ShardState
from tests.chaos.soak_charges import Charged, check_charges
from tests.chaos.soak_plan import Fault, Kind
from tests.chaos.soak_run import Run
from tests.support.command import CANARY
from tests.support.history import Figures, Line, check_history, read_history
from tests.support.ray_workers import await_none

_GONE_SECONDS = 15.0


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
    charged: Charged


def check_run(run: Run, wanted: Wanted) -> Cost:
    """I1 to I8; AssertionError names the one that is broken."""
    figures = check_history(run.history, run.store.url, run.job, run.output)
    assert figures.rows == run.rows, f"I1: {figures.rows} of {run.rows} rows have an outcome"
    _check_files(run, wanted)
    _check_nothing_left(run)
    charged = check_charges(run)
    lines = read_history(run.history, run.job)
    return Cost(figures=figures, resumed=_resumed(run, lines), charged=charged)


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
