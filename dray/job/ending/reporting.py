"""What the report says of a job: from the store, the tally of its outcomes, and the facts of its run."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata

from dray import __version__
from dray.account import Account
from dray.engine.protocol import EngineInfo
from dray.engine.tuning import Tuned
from dray.job.beginning.opening import describe
from dray.job.ending.billing import bill_job, with_prediction
from dray.job.ending.capacity_notes import decisions_of
from dray.job.ending.learning import FinishedRun, learn
from dray.job.ending.retried import retries
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.rows.job_shape import job_sequences, job_shape
from dray.machine import cores
from dray.places import first_of, short_name
from dray.report import (
    Attempt,
    Counts,
    Decision,
    Measures,
    Moments,
    OutputFile,
    ReplicaLine,
    ReportData,
)
from dray.requests.outputs.files import Written
from dray.storage.files import join
from dray.storage.layout import manifest_name
from dray.store import INTERRUPTIONS, JobState, Store
from dray.store import Attempt as StoredAttempt


@dataclass(frozen=True, kw_only=True)
class ReplicaAccount:
    """What is left of a replica: its start, and its counters when the driver last looked.

    ``busy_seconds`` is None where it died before that. ``info`` is what its engine said of itself, ``tuned``
    the limits that it found.
    """

    name: str
    node: str = ""
    engine: str = ""
    version: str = ""
    startup: dict[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    busy_seconds: float | None = None
    rows: int = 0
    tokens: int = 0
    info: EngineInfo | None = None
    tuned: Tuned | None = None

    @property
    def ran_as(self) -> EngineInfo | None:
        """The engine with the limits that it ran under for most of the time."""
        if self.info is None or self.tuned is None:
            return self.info
        limits = self.tuned.limits
        return replace(self.info, max_num_seqs=limits.seqs, max_num_batched_tokens=limits.tokens)


def report_data(
    store: Store,
    job: OpenJob,
    measures: Measures,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount],
    files: tuple[OutputFile, ...],
    state: JobState,
) -> ReportData:
    """All that the report says of a job that is about to be in ``state``."""
    known = store.get_job(job.job_id)
    attempts = store.attempts(job.job_id)  # once: a long job has very many
    causes = retries(store, job.job_id)
    total = store.counts(job.job_id).total
    done = measures.rows - measures.failed
    return ReportData(
        job_id=job.job_id,
        state=str(state),
        generated_at=time.time(),
        created=known.created_at,
        started=timeline.began(),
        ended=timeline.clock(),
        model=job.settings.model,
        kind=", ".join(known.info.get("kinds", ())),
        engine=job.settings.engine,
        counts=Counts(
            total=total, done=done, failed=measures.failed, skipped=job.skipped,
            pending=total - measures.rows, skipped_failed=job.skipped_failed,
        ),
        tokens=measures.tokens,
        seconds=timeline.seconds(),
        measures=measures,
        phases=timeline.phases(),
        attempts=_attempts(attempts),
        replicas=_replicas(attempts, replicas),
        interruptions=sum(causes.get(cause, 0) for cause in INTERRUPTIONS),
        retries=causes,
        unused=_unused(store, job.job_id, attempts),
        decisions=tuple(Decision(at=one["at"], line=one["line"]) for one in decisions_of(known)),
        files=files,
        environment=_environment(replicas),
        settings={k: v if isinstance(v, str | int | float | bool) or v is None else str(v)
                  for k, v in describe(job.settings, job.weights).items()},
        account=_bill(store, job, measures, timeline, replicas),
    )  # fmt: skip


def _bill(
    store: Store, job: OpenJob, measures: Measures, timeline: Timeline, replicas: Sequence[ReplicaAccount]
) -> Account | None:
    """The bill, with what was to be expected; this run's efficiency is kept for later ones.

    A run on several devices tells of the one that was busy longest, and has no prediction beside its bill:
    rows and seconds of different devices together are those of none.
    """
    account = bill_job(store, job, measures.tokens)
    last = max((phase.end for phase in timeline.phases() if phase.name == "inference"), default=None)
    by_device = _by_device(replicas)
    if account is None or last is None or not by_device:
        return account
    info, alike = by_device[0]
    run = FinishedRun(
        identity=job.identity or job.job_id,
        epoch=job.lease.epoch,
        arguments=job.settings.engine_arguments,
        info=info,
        work=_work(alike),
        nodes=_nodes(alike),
        replicas=_at_work(alike, last),
        gpus=job.settings.replica_gpus,
        began=timeline.began(),
        ready=min(map(_ready, alike)),
        ended=last,
        shape=lambda: job_shape(job, store.shards(job.job_id)),
        sequences=lambda: job_sequences(job, store.shards(job.job_id)),
    )
    predicted = learn(store, run, measures)
    return with_prediction(account, predicted if len(by_device) == 1 else None, nodes=run.mean_nodes)


def _work(replicas: Sequence[ReplicaAccount]) -> dict[str, tuple[int, float]]:
    """Rows and busy seconds by lane: a replica that was lost, and its successors, are one."""
    found: dict[str, tuple[int, float]] = {}
    for one in replicas:
        rows, busy = found.get(first_of(one.name), (0, 0.0))
        found[first_of(one.name)] = rows + one.rows, busy + (one.busy_seconds or 0.0)
    return found


def _nodes(replicas: Sequence[ReplicaAccount]) -> frozenset[str]:
    """The nodes on which lanes were at last."""
    return frozenset({first_of(one.name): one.node for one in replicas if one.node}.values())


def _at_work(replicas: Sequence[ReplicaAccount], ended: float) -> float:
    """Replicas at a time in the mean: one that joined late counts from there, one that left until the end."""
    since = {first_of(one.name): _ready(one) for one in sorted(replicas, key=_ready, reverse=True)}
    whole = ended - min(since.values())
    return sum(ended - ready for ready in since.values()) / whole if whole > 0 else len(since)


def _ready(replica: ReplicaAccount) -> float:
    assert replica.moments is not None
    return replica.moments.ready


def _by_device(replicas: Sequence[ReplicaAccount]) -> list[tuple[EngineInfo, list[ReplicaAccount]]]:
    """Replicas that became ready, with the engine of the first, by device; the one busy longest first."""
    found: dict[str, tuple[EngineInfo, list[ReplicaAccount]]] = {}
    for one in replicas:
        if (info := one.ran_as) is not None and one.moments is not None:
            found.setdefault(info.device, (info, []))[1].append(one)
    return sorted(found.values(), key=lambda pair: -sum(one.busy_seconds or 0.0 for one in pair[1]))


def _unused(store: Store, job_id: str, attempts: Sequence[StoredAttempt]) -> dict[str, str]:
    """Replicas of this run that no shard was finished on, by the reason that they had at the end."""
    finished = [attempt for attempt in attempts if attempt.done + attempt.failed]
    worked = {first_of(attempt.replica or "") for attempt in finished}
    noted = {first_of(row.name): row.note for row in store.replicas(job_id) if row.note is not None}
    return {short_name(first): note for first, note in noted.items() if first not in worked}


def _attempts(attempts: Sequence[StoredAttempt]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            shard=attempt.shard,
            epoch=attempt.epoch,
            replica=short_name(attempt.replica or ""),
            cause=(attempt.cause or "running").lower(),
            seconds=(attempt.ended_at or attempt.started_at) - attempt.started_at,
            rows=attempt.done + attempt.failed,
            started=attempt.started_at,
        )
        for attempt in attempts
    )


def _replicas(
    attempts: Sequence[StoredAttempt], accounts: Sequence[ReplicaAccount]
) -> tuple[ReplicaLine, ...]:
    """Rows are those that were committed: what a replica counted is lost with it."""
    rows: Counter[str | None] = Counter()
    for attempt in attempts:
        rows[attempt.replica] += attempt.done + attempt.failed
    return tuple(
        ReplicaLine(
            name=short_name(one.name),
            node=one.node,
            startup=one.startup,
            moments=one.moments,
            busy_seconds=one.busy_seconds or None,
            rows=rows[one.name],
            tokens_per_second=one.tokens / one.busy_seconds if one.busy_seconds else None,
            tuned=one.tuned.as_dict() if one.tuned is not None and one.tuned.candidates else {},
        )
        for one in accounts
    )


def file_line(written: Written, stem: str, form: str) -> OutputFile:
    """One line of the report. Parts are one line, which leads to their manifest."""
    info, parts = written.whole(stem), written.parts(stem)
    folder, _, name = info.uri.rpartition("/")
    uri = join(folder, manifest_name(stem, form)) if parts else info.uri
    told = f"{name}, {len(parts)} files" if parts else name
    return OutputFile(name=told, uri=uri, size=info.size, sha256=info.sha256, rows=info.rows)


def _environment(replicas: Sequence[ReplicaAccount]) -> dict[str, str]:
    versions: dict[str, set[str]] = {}  # as the replicas say: the driver need not have an engine
    for replica in replicas:
        if replica.engine and replica.version != __version__:
            versions.setdefault(replica.engine, set()).add(replica.version)
    return {
        "dray": __version__,
        **{engine: ", ".join(sorted(found)) for engine, found in versions.items()},
        "python": platform.python_version(),
        "ray": metadata.version("ray"),  # the import would take half a second
        "platform": f"{platform.system()} {platform.machine()}, {cores()} cores",
        "implementation": sys.implementation.name,
    }
