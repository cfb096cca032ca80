"""Holds what processes noted (``dray/history.py``) against the store and the files: invariants I1 to I5.

I1 an acknowledged row never vanishes. I2 one outcome per row, in the store and in the files. I3 no row of an
epoch that was over when it was committed. I4 counts add up, and the files hold what the store holds. I5 a row
that was committed is not computed again by a later holder.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from dray.history import Event
from dray.requests.model import FOLLOWED, REUSED
from dray.requests.outputs.files import OutputFormat, write_outputs
from dray.store import REJECTED, Attempt, Store, StoredOutcome, open_store

Session = tuple[int, int]
"""One attempt at a shard: its number and epoch."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One event as a process noted it; ``at`` in nanoseconds of the machine's monotonic clock."""

    event: Event
    session: Session
    indexes: tuple[int, ...]
    at: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the faults cost. ``lost``, ``duplicated`` and ``after_ack`` are 0, or the check raises."""

    rows: int
    acknowledged: int
    lost: int
    duplicated: int
    recomputed: int
    """Rows that entered an engine more than once."""
    after_ack: int
    """Rows that entered an engine again after they were committed (I5)."""
    late: int
    """Rows that a fenced holder's replica still took after somebody else had committed them."""
    unfinished: int
    """Rows that entered an engine and have no outcome."""
    resumed: tuple[float, ...] = ()
    """Seconds from the last sign of each attempt that broke off to the first commit of rows it left."""


_NO_SHARD = (REJECTED, FOLLOWED, REUSED)
"""Of rows that were decided at ingest, and of those that have the outcome of another row."""

observers: list[Callable[[Figures], None]] = []
"""Called with the figures of each job that was checked."""


@contextmanager
def keeping_history(folder: Path) -> Iterator[None]:
    """What this process does with jobs in the block is noted in ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dray.history._folder", str(folder))
        patch.setattr("dray.history._file", None)
        yield


def read_history(folder: Path, job_id: str) -> list[Line]:
    """All that was noted about a job, in the order of time."""
    lines = [line for file in sorted(folder.glob("*.history")) for line in _lines_of(file, job_id)]
    return sorted(lines, key=lambda line: line.at)


def check_history(
    folder: Path, store_url: str, job_id: str, outputs: Path | None = None, *, finished: bool = True
) -> Figures:
    """The figures of a job; AssertionError names the invariant that is broken, and the rows.

    ``outputs`` is the folder of the job's files. ``finished`` says that each row must have its outcome.
    """
    history = read_history(folder, job_id)
    with open_store(store_url, create=False) as store:
        rows = [row for page in store.outcomes(job_id) for row in page]
        indexes = {row.index for row in rows}
        counts = store.verify_counts(job_id)  # I2 and I4 among the rows themselves: raises
        job = store.get_job(job_id)
        attempts = store.attempts(job_id)
        acknowledged = {index for line in _of(history, Event.ACK) for index in line.indexes}
        lost = acknowledged - indexes
        assert not lost, f"I1: acknowledged rows vanished: {_some(lost)}"
        doubled = [index for index, times in Counter(row.index for row in rows).items() if times > 1]
        assert not doubled, f"I2: rows stand twice in the store: {_some(doubled)}"
        strange = indexes - set(range(job.total or 0))
        assert not strange, f"I2: the store has rows that the input has not: {_some(strange)}"
        _check_epochs(history, rows, attempts, {shard.number: shard.epoch for shard in store.shards(job_id)})
        _check_noted(history, rows, attempts)
        assert len(rows) == counts.done + counts.failed, "I4: rows and counts differ"
        if finished:
            assert not counts.pending, f"I4: {counts.pending} rows have no outcome"
        if outputs is not None:
            _check_files(store, job_id, job.summary, rows, outputs)
    admitted = Counter(index for line in _of(history, Event.ADMITTED) for index in line.indexes)
    again, late = _computed_again(history, rows)
    assert not again, f"I5: committed rows were computed again: {_some(again)}"
    figures = Figures(
        rows=len(rows),
        acknowledged=len(acknowledged),
        lost=len(lost),
        duplicated=len(doubled),
        recomputed=sum(1 for times in admitted.values() if times > 1),
        after_ack=len(again),
        late=len(late),
        unfinished=len(admitted.keys() - indexes),
        resumed=_resumed(history),
    )
    for observe in observers:
        observe(figures)
    return figures


def _lines_of(file: Path, job_id: str) -> Iterator[Line]:
    text = file.read_bytes()
    whole, _, _torn = text.rpartition(b"\n")  # killed while it noted: that event is not over
    for number, raw in enumerate(whole.splitlines(), 1):
        try:
            values: dict[str, Any] = json.loads(raw)
        except ValueError as error:
            raise AssertionError(f"{file.name}:{number} cannot be read: {raw[:80]!r}") from error
        if values["job"] == job_id:
            yield Line(
                event=Event(values["event"]),
                session=(values["shard"], values["epoch"]),
                indexes=tuple(values["indexes"]),
                at=values["at"],
                pid=values["pid"],
            )


def _of(history: list[Line], event: Event) -> Iterator[Line]:
    return (line for line in history if line.event is event)


def _check_epochs(
    history: list[Line], rows: list[StoredOutcome], attempts: list[Attempt], epochs: Mapping[int, int]
) -> None:
    """I3: who put a row there meant to, and held the shard when it did."""
    meant: dict[Session, set[int]] = defaultdict(set)
    for line in _of(history, Event.INTENT):
        meant[line.session].update(line.indexes)
    known = {(attempt.shard, attempt.epoch): attempt for attempt in attempts}
    for row in rows:
        if row.shard in _NO_SHARD:
            continue
        session = (row.shard, row.epoch)
        where = f"row {row.index} of shard {row.shard}, epoch {row.epoch}"
        assert row.index in meant[session], f"I3: {where}: nobody of that epoch meant to commit it"
        assert row.epoch <= epochs.get(row.shard, -1), f"I3: {where}: the shard never had that epoch"
        attempt = known.get(session)
        assert attempt is not None, f"I3: {where}: the store knows of no such attempt"
        over = attempt.ended_at
        assert over is None or row.committed_at <= over, f"I3: {where}: committed after its epoch was over"


def _check_noted(history: list[Line], rows: list[StoredOutcome], attempts: list[Attempt]) -> None:
    """That there is a history to hold against the store: what is empty breaks no invariant."""
    admitted = {index for line in _of(history, Event.ADMITTED) for index in line.indexes}
    computed = {row.index for row in rows if row.response is not None and row.shard not in _NO_SHARD}
    silent = computed - admitted
    assert not silent, f"I5: answered rows that no engine noted: {_some(silent)}"
    acknowledged = {(line.session, index) for line in _of(history, Event.ACK) for index in line.indexes}
    done = {(attempt.shard, attempt.epoch) for attempt in attempts if attempt.cause == "DONE"}
    sessions = [((row.shard, row.epoch), row.index) for row in rows]
    mute = [key[1] for key in sessions if key[0] in done and key not in acknowledged]
    assert not mute, f"I1: rows of finished attempts whose commits nobody noted: {_some(mute)}"


def _check_files(
    store: Store, job_id: str, summary: Mapping[str, Any], rows: list[StoredOutcome], outputs: Path
) -> None:
    """I2 and I4: each outcome once over both files, and the files byte for byte those of the store."""
    kind: OutputFormat = "parquet" if (outputs / "output.parquet").exists() else "jsonl"
    answers, errors = (outputs / f"{name}.{kind}" for name in ("output", "errors"))
    told = Counter((*_indexes_of(answers), *_indexes_of(errors)))
    doubled = [index for index, times in told.items() if times > 1]
    assert not doubled, f"I2: rows stand twice in the files: {_some(doubled)}"
    missing = {row.index for row in rows} - told.keys()
    assert not missing, f"I4: rows of the store are not in the files: {_some(missing)}"
    more = told.keys() - {row.index for row in rows}
    assert not more, f"I4: the files have rows that the store has not: {_some(more)}"
    with tempfile.TemporaryDirectory(prefix="dray-check-") as again:
        write_outputs(store.outcomes(job_id), directory=again, format=kind)
        for file in (answers, errors):
            assert file.read_bytes() == (Path(again) / file.name).read_bytes(), (
                f"I4: {file.name} differs from what the store holds"
            )
    recorded = {file["name"]: file for file in json.loads(summary.get("report", "{}")).get("files", ())}
    for file in (answers, errors):
        if file.name in recorded:
            found = (file.stat().st_size, sha256(file.read_bytes()).hexdigest())
            wanted = (recorded[file.name]["size"], recorded[file.name]["sha256"])
            assert found == wanted, f"I4: {file.name} is not the file whose digest the job recorded"
    published = store.get_job(job_id).info.get("published", {"files": {}})["files"]
    for name, wanted in published.items():
        content = (outputs / name).read_bytes()
        assert {"size": len(content), "sha256": sha256(content).hexdigest()} == wanted, (
            f"I4: {name} is not the file that the store published"
        )


def _indexes_of(file: Path) -> list[int]:
    if file.suffix == ".parquet":
        rows: list[Any] = parquet.read_table(file, columns=["index"])["index"].to_pylist()
        return [int(index) for index in rows]
    text = file.read_bytes()
    assert not text or text.endswith(b"\n"), f"I4: {file.name} is cut short"
    return [int(orjson.loads(line)["id"].rpartition("_")[2]) for line in text.splitlines()]


def _computed_again(history: list[Line], rows: list[StoredOutcome]) -> tuple[set[int], set[int]]:
    """Rows admitted though they were committed: by the holder itself or a later one; and by a fenced one.

    Whoever claims a shard after a commit sees its rows. A row belongs to one shard and the parts that it is
    split into, which have higher numbers, so of two attempts at a row the later one is the greater session.
    What the replica of an earlier one still computes is waste, and no resumption that did not look.
    """
    committed = {row.index: (row.shard, row.epoch) for row in rows}
    acked: set[int] = set()
    again: set[int] = set()
    late: set[int] = set()
    for line in history:
        if line.event is Event.ACK:
            acked.update(line.indexes)
        elif line.event is Event.ADMITTED:
            for index in line.indexes:
                session = committed.get(index)
                if session is None:
                    continue
                if line.session > session or (line.session == session and index in acked):
                    again.add(index)
                elif line.session < session and index in acked:
                    late.add(index)
    return again, late


def _resumed(history: list[Line]) -> tuple[float, ...]:
    """For each attempt whose rows entered an engine again: its last sign, to the next one's first commit.

    Longer than the standstill: a row's own time in the engine is in it.
    """
    ended: dict[Session, int] = {}
    holders: dict[int, list[Session]] = defaultdict(list)
    commits: dict[Session, list[Line]] = defaultdict(list)
    for line in history:
        ended[line.session] = line.at
        if line.event is Event.ADMITTED:
            for index in line.indexes:
                holders[index].append(line.session)
        elif line.event is Event.ACK:
            commits[line.session].append(line)
    pairs = {pair for found in holders.values() for pair in itertools.pairwise(dict.fromkeys(found))}
    waited: dict[Session, float] = {}
    for before, after in pairs:
        if commits[after]:
            seconds = (commits[after][0].at - ended[before]) / 1e9
            waited[before] = min(seconds, waited.get(before, seconds))
    return tuple(seconds for seconds in waited.values() if seconds > 0)


def _some(indexes: set[int] | list[int]) -> str:
    shown = sorted(indexes)[:10]
    return f"{', '.join(map(str, shown))}{' ...' if len(indexes) > 10 else ''} ({len(indexes)})"
