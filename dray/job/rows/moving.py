"""The requests of a job whose output was moved go along: nodes that share the new folder are to read them.

They lie in the new folder already where the user has moved the old one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from dray.errors import JobFailedError
from dray.job.open_job import OpenJob
from dray.job.rows.spooling import FOLLOWERS_AT, REUSED_AT, spool_of
from dray.requests.outputs.kept import KEPT_COLUMNS
from dray.requests.spool.parts import part_uri
from dray.storage.files import join, stream_range, write_atomic
from dray.storage.moved_folder import moved_along
from dray.storage.objects import is_object
from dray.storage.same_place import name_in
from dray.store import Job, Shard, Store


def found_there(store: Store, job: OpenJob) -> tuple[list[Shard], Job]:
    """The job's shards and the job, with its files where the user has moved their folder to.

    The store has these places from then on.
    """
    known, recorded = store.shards(job.job_id), store.get_job(job.job_id)
    output = job.settings.output
    places = {uri: moved_along(uri, output) for uri in dict.fromkeys(shard.uri for shard in known)}
    places = {uri: now for uri, now in places.items() if uri != now}
    noted: dict[str, Any] = {
        key: moved_along(uri, output)
        for key in (FOLLOWERS_AT, REUSED_AT)
        if (uri := recorded.info.get(key)) is not None
    }
    kept = recorded.info.get(KEPT_COLUMNS)
    if kept is not None:
        noted[KEPT_COLUMNS] = {**kept, "uri": moved_along(kept["uri"], output)}
    if places:
        store.move_shards(job.lease, places)
        known = store.shards(job.job_id)
    if any(recorded.info[key] != value for key, value in noted.items()):
        store.merge_job_info(job.lease, noted)
        recorded = store.get_job(job.job_id)
    return known, recorded


def left_behind(job: OpenJob, shards: Iterable[Shard]) -> list[str]:
    """The parts of the spool that lie in a folder of this machine which is not the run's output.

    Those in an object store are none of them: every node reaches it.
    """
    return [uri for uri, name in _local_parts(job, shards).items() if name is None]


def respelled(job: OpenJob, shards: Iterable[Shard]) -> dict[str, str]:
    """Parts that lie in the run's output, which an earlier run spelled otherwise: their new URIs, by the old.

    Nodes may know the folder by the new spelling alone.
    """
    names = _local_parts(job, shards).items()
    found = {uri: join(job.settings.output, name) for uri, name in names if name is not None}
    return {uri: now for uri, now in found.items() if uri != now}


def _local_parts(job: OpenJob, shards: Iterable[Shard]) -> dict[str, str | None]:
    """The parts of the spool on this machine, each with its name in the output, or None for elsewhere."""
    parts = dict.fromkeys(shard.uri for shard in shards)
    return {uri: name_in(job.settings.output, uri) for uri in parts if not is_object(uri)}


def brought_along(job: OpenJob, left: Iterable[str]) -> dict[str, str]:
    """Copy these parts to the run's output. Returns where each of them lies now, by where it lay.

    Raises:
        JobFailedError: the output takes no more, or a part cannot be read.
    """
    moved = {uri: part_uri(spool_of(job), number) for number, uri in enumerate(left)}
    for before, now in moved.items():
        with write_atomic(now, hashed=False, options=job.settings.objects) as file:
            for block in _blocks(before):
                file.write(block)
    return moved


def _blocks(uri: str) -> Iterator[bytes]:
    try:
        yield from stream_range(uri, 0, sys.maxsize)
    except OSError as error:
        told = (
            f"{uri}: the job's requests cannot be read, to copy them to the output: {error.strerror or error}"
        )
        raise JobFailedError(told) from error
