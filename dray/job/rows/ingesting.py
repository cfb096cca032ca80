"""Ingest: read the input once, spool its requests, cut them into shards, publish all of it at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dray.cluster.placing import USUAL_SEQS
from dray.errors import ConfigError, FencedError, InputError
from dray.job.beginning.query_jobs import ASKED
from dray.job.ending.timeline import Timeline
from dray.job.heeding import run_until_stopped
from dray.job.open_job import OpenJob
from dray.job.rows.moving import brought_along, found_there, left_behind, respelled
from dray.job.rows.ordering import ORDER, Ordering
from dray.job.rows.shard_sizes import ShardSizes
from dray.job.rows.sharing import record_of, sharing_of
from dray.job.rows.spooling import (
    DIGEST,
    FOLLOWERS_AT,
    bound_of,
    digest_of,
    missed,
    missed_kept,
    moved,
    refuse_other,
    remove_older,
    remove_own,
    spool_of,
)
from dray.kinds import Kind, all_kinds, kind_named
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.outputs.kept import KEPT_COLUMNS
from dray.requests.pulse import ReadingPulse
from dray.requests.reading.inputs import refuse_changed
from dray.requests.reading.readers import files_of
from dray.requests.rules import note_on_fields, note_on_names
from dray.requests.sharing import Sharing
from dray.store import JobState, Shard, ShardSpec, Store, open_store
from dray.store.states import OPEN_STATES
from dray.triggers import Point, reach
from dray.wording import plural

_SECONDS_BETWEEN_LINES = 5.0


def ingest_job(
    job: OpenJob,
    *,
    replicas: int,
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Shard]:
    """The job's shards: from the store when an earlier run made them, else from the input.

    ``progress`` and ``say`` hear of the rows read so far, and of what was found out about the input.

    Raises:
        CancelledError, ExpiredError: the job is to stop; nothing is published then. A job whose requests were
            lost does not expire here: the rows that are left get their error rows from them.
        InputError: rows that cannot be requests, or no row for ``READ_SECONDS``; likewise.
        JobChangedError: the requests that an earlier run took in are gone, and the input gives others.
    """
    settings = job.settings
    with open_store(settings.store_url) as store:
        known, recorded = found_there(store, job)
        lost = missed(job, open_shards(known)) or missed_kept(job, recorded)
        if recorded.total is not None and lost is None:
            return _brought_along(store, job, known, say)
        if recorded.state is JobState.COMPLETED:  # which says to a driver that there is nothing to do
            store.set_job_state(job.lease, JobState.IN_PROGRESS)
        remove_older(job, recorded, known)
        ordering = Ordering.of(recorded, job.settings, replicas)
        sharing = sharing_of(store, job, recorded, say)
        # Rows of a job whose time is over get their error rows from these requests, which are to be there.
        expires = recorded.total is None
        ingested = _taken_in(job, bound_of(recorded), ordering, sharing, progress, say, expires=expires)
        notes = (
            note_on_names(settings.defaults, ingested.model_name),
            note_on_fields(settings.defaults, ingested.kinds),
            ordering.line(),
        )
        for told in notes:
            if told is not None and say is not None:
                say(told)
        reach(Point.INGEST_SPOOLED)
        try:
            if lost is None:
                _refuse_changed(store, job)
                noted = {ORDER: ordering.noted(), **record_of(job, ingested, sharing), **_beside(ingested)}
                _publish(store, job, ingested, noted, replicas)
            else:
                refuse_other(job, recorded, lost, ingested)
                store.merge_job_info(job.lease, _beside(ingested))
                store.move_shards(job.lease, moved(known, ingested))
        except FencedError:
            remove_own(job, store.shards(job.job_id))
            raise
        reach(Point.INGEST_PUBLISHED)
        shards = store.shards(job.job_id)
        if lost is not None:
            remove_older(job, recorded, shards)  # the other parts of the spool that it was lost of
        return shards


def _beside(ingested: Ingested) -> dict[str, Any]:
    """Where files beside the spool lie.

    All of them, always: a run with others may have died after it wrote these keys.
    """
    return {
        KEPT_COLUMNS: None if ingested.kept is None else ingested.kept.as_dict(),
        FOLLOWERS_AT: ingested.shared.followers_uri,
    }


def _brought_along(
    store: Store, job: OpenJob, known: list[Shard], say: Callable[[str], None] | None
) -> list[Shard]:
    """The shards of an earlier run, whose requests lie where the output is by now."""
    left = left_behind(job, open_shards(known))
    if left and say is not None:
        say(f"copying the requests of the earlier run from {left[0].rpartition('/')[0]}")
    places = respelled(job, known) | brought_along(job, left)
    if not places:
        return known
    store.move_shards(job.lease, places)
    return store.shards(job.job_id)


def ingest_told(job: OpenJob, timeline: Timeline, replicas: int, say: Callable[[str], None]) -> list[Shard]:
    """Ingest a job as a phase of the ``timeline``; ``say`` hears how far it is and what it found."""
    last = time.monotonic()

    def progress(rows: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"ingest: {rows:,} rows read")

    with timeline.phase("ingest"):
        shards = ingest_job(
            job, replicas=replicas, progress=progress, say=lambda found: say(f"ingest: {found}")
        )
    say(f"ingest: {sum(shard.rows for shard in shards):,} requests in {plural(len(shards), 'shard')}")
    return shards


def _taken_in(
    job: OpenJob,
    part_bytes: int | None,
    ordering: Ordering,
    sharing: Sharing,
    progress: Callable[[int], None] | None,
    say: Callable[[str], None] | None,
    *,
    expires: bool,
) -> Ingested:
    """Read the input, in a thread: it may hang, and an order to stop is heard all the same."""
    settings, pulse = job.settings, ReadingPulse()

    def work() -> Ingested:
        return ingest(
            settings.source,
            spool_uri=spool_of(job),
            defaults=settings.defaults,
            skip_invalid=settings.skip_invalid,
            limits=settings.limits,
            progress=progress,
            say=say,
            options=settings.objects,
            pulse=pulse,
            part_bytes=part_bytes,
            arrange=ordering.arrange,
            sharing=sharing,
        )

    try:
        return run_until_stopped(job, work, stop=pulse.stop, look=pulse.refuse_silence, expires=expires)
    except BaseException:
        remove_own(job)  # parts, and the upload of one: what hangs in the thread may not come to it
        raise


def _refuse_changed(store: Store, job: OpenJob) -> None:
    """Refuse files that have changed since the job was opened: its fingerprint is of what they were then.

    Raises:
        InputError: they have.
        FencedError: they have, but another driver has the job: what is there may be that one's.
    """
    settings = job.settings
    try:
        refuse_changed(job.inputs, files_of(settings.source, options=settings.objects))
    except InputError:
        store.merge_job_info(job.lease, {})
        remove_own(job)
        raise


def _publish(store: Store, job: OpenJob, ingested: Ingested, noted: Mapping[str, Any], replicas: int) -> None:
    store.merge_job_info(
        job.lease,
        {
            "kinds": sorted(map(str, ingested.kinds)),
            "model_name": ingested.model_name,
            "rows": ingested.rows,
            DIGEST: digest_of(ingested),
            **({} if ingested.asked is None else {ASKED: ingested.asked}),
            "files": list(ingested.files)[:20],
            **noted,
        },
    )
    sizes = ShardSizes(replicas=replicas, batch=_batch(job), rows=job.settings.shard_rows)
    ranges = cut(
        ingested,
        target_rows=sizes.target_rows,
        max_shards=sizes.most,
        min_shards=sizes.least(ingested.requests),
        taper=sizes.taper,
    )
    shards = [
        ShardSpec(
            number=part.number,
            uri=part.uri,
            offset=part.offset,
            length=part.length,
            rows=part.rows,
            first_position=part.first_position,
            family=part.family,
        )
        for part in ranges
    ]
    store.add_shards(
        job.lease,
        shards,
        total_rows=ingested.rows,
        rejects=ingested.rejects(),
        reused=ingested.reused(),
        followers=ingested.followers(),
    )
    ingested.shared.forget_answers(ingested.options)


def _batch(job: OpenJob) -> int:
    """Sequences that an engine runs at once, as far as that is known before there is one."""
    given = job.settings.engine_arguments.get("max_num_seqs")
    return given if isinstance(given, int) else USUAL_SEQS


def engine_kind(store: Store, job: OpenJob) -> tuple[Kind, str | None]:
    """The kind of the job's rows, the first of several, and the one model name they may carry."""
    info = store.get_job(job.job_id).info
    named = {kind_named(name) for name in info.get("kinds", [])}
    kinds = [kind for kind in all_kinds() if kind in named] or [Kind.CHAT]
    first, *others = dict.fromkeys(kind.engine.name for kind in kinds)
    if others:
        raise ConfigError(f"one job runs one kind of engine: {first} cannot be mixed with {others[0]}")
    return kinds[0], job.settings.defaults.model_name or info.get("model_name")


def open_shards(shards: Iterable[Shard]) -> list[Shard]:
    """The shards that still have rows to run."""
    return [shard for shard in shards if shard.state in OPEN_STATES]


__all__ = ["engine_kind", "ingest_job", "ingest_told", "open_shards"]
