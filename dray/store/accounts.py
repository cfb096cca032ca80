"""The store's side of the account: spans of node time, and the efficiency of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

from sqlalchemy import and_, delete, func, insert, select, update

from dray.account import Span
from dray.store.database.connection import Tx
from dray.store.database.schema import attempts, efficiencies, spans
from dray.store.records import JobLease

_MOST_EFFICIENCIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What a run measured: ``phi`` is its rate over the one that the cost model gives with a phi of 1.

    ``job`` and ``epoch`` name the run. ``model`` names the checkpoint, ``weights`` their format, ``device``
    the hardware. ``seconds`` and ``rows`` say how much was measured; ``start_seconds`` is how long the first
    replica took to be ready. ``shape`` is that of the rows (:mod:`dray.requests.task_shape`), where they had
    one, and ``output_tokens`` the mean length of their answers. ``cut``: so many ended at their limit that
    this is only the least. ``measured_at`` is in seconds since 1970.
    """

    job: str
    epoch: int
    model: str
    weights: str
    device: str
    engine: str
    version: str
    phi: float
    seconds: float
    rows: int
    start_seconds: float | None = None
    shape: str | None = None
    output_tokens: float | None = None
    cut: bool = False
    measured_at: float = 0.0


_SPAN = [spans.c[field.name] for field in fields(Span)]
_EFFICIENCY = [efficiencies.c[field.name] for field in fields(Efficiency) if field.name != "cut"]
_CUT = ">"
"""Before the shape of a run whose answers were cut. A column for it would keep stores of an earlier dray from
being read as they are; to an earlier dray such a shape is none that it knows."""


def put_spans(tx: Tx, lease: JobLease, given: Sequence[Span]) -> None:
    """Replace the spans of the lease's epoch; those of earlier drivers stay."""
    tx.execute(delete(spans).where(spans.c.job_key == lease.key, spans.c.epoch == lease.epoch))
    if given:
        rows = [{**asdict(span), "epoch": lease.epoch, "job_key": lease.key} for span in given]
        tx.execute(insert(spans), rows)


def list_spans(tx: Tx, job_key: int) -> list[Span]:
    """All spans of a job, in the order in which they were put."""
    rows = tx.execute(select(*_SPAN).where(spans.c.job_key == job_key).order_by(spans.c.span_key))
    return [Span(**row._mapping) for row in rows]


def committed_by_replica(tx: Tx, job_key: int) -> dict[str, int]:
    """Rows that attempts on each replica have published."""
    rows = tx.execute(
        select(attempts.c.replica, func.sum(attempts.c.done + attempts.c.failed))
        .where(attempts.c.job_key == job_key, attempts.c.replica.is_not(None))
        .group_by(attempts.c.replica)
    )
    return {row[0]: int(row[1]) for row in rows}


def put_efficiency(tx: Tx, measured: Efficiency) -> None:
    """Keep what a run measured; measured again, it takes the place of what was there."""
    values = asdict(measured) | {"measured_at": measured.measured_at or tx.now}
    if values.pop("cut") and measured.shape is not None:
        values["shape"] = _CUT + measured.shape
    own = and_(efficiencies.c.job == measured.job, efficiencies.c.epoch == measured.epoch)
    if not tx.execute(update(efficiencies).where(own).values(**values)).rowcount:
        tx.execute(insert(efficiencies).values(**values))


def list_efficiencies(tx: Tx, device: str | None) -> list[Efficiency]:
    """The latest that runs measured, of a device or of all, the latest first."""
    query = select(*_EFFICIENCY).order_by(efficiencies.c.measured_at.desc()).limit(_MOST_EFFICIENCIES)
    if device is not None:
        query = query.where(efficiencies.c.device == device)
    return [_efficiency(Efficiency(**row._mapping)) for row in tx.execute(query)]


def _efficiency(stored: Efficiency) -> Efficiency:
    if stored.shape is None or not stored.shape.startswith(_CUT):
        return stored
    return replace(stored, shape=stored.shape.removeprefix(_CUT), cut=True)
