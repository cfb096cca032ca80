"""The requests of a job's error rows, for another job to answer: a batch file of OpenAI's format."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from dray.codes import STATUS
from dray.errors import ConfigError, JobFailedError
from dray.job.rows.sharing import has_followers
from dray.job.rows.spooling import FOLLOWERS_AT
from dray.requests.model import Request
from dray.requests.sharing import FOLLOWERS, Shared
from dray.requests.spool.spool import decode, index_of, read_shard
from dray.storage.files import exists, write_atomic
from dray.storage.objects import ObjectStoreOptions
from dray.store import Job, Shard, ShardState, Store

_ROWS = 1000
"""Rows that are looked up in the store at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRequests:
    """What was written: ``rows`` requests. ``others`` are error rows of other codes than were asked for, and
    ``unread`` those that never were requests: dray could not read them.
    """

    rows: int
    others: int
    unread: int


def write_failed(
    store: Store,
    job: Job,
    path: str,
    *,
    codes: Collection[str] = (),
    overwrite: bool = False,
    options: ObjectStoreOptions | None = None,
) -> FailedRequests:
    """Write the requests of error rows to a file, all of them or those of some ``codes``.

    They come in the order in which the job read them, each with its own custom_id, and with the fields that
    the job set for all rows. Where there is none, no file is written. Memory holds the error rows that repeat
    another row (``--dedupe``), and no others. ``options`` are for all object stores, None for what the
    environment says.

    Raises:
        ConfigError: the file exists and ``overwrite`` is false, a code is not one of ``dray.codes``, or the
            job's input was not read to its end.
        JobFailedError: the requests that the job kept are not there.
    """
    for code in codes:
        _check_code(code)
    if not overwrite and exists(path, options=options):
        raise ConfigError(f"{path}: the file exists; name another one, or replace it with --overwrite")
    shards = [shard for shard in store.shards(job.job_id) if shard.state is not ShardState.SPLIT]
    if job.total is None:
        raise ConfigError(f"job {job.job_id}: its input was not read to its end, so it has no error rows")
    failed = store.counts(job.job_id).failed
    wanted = _Wanted(store, job.job_id, codes)
    at = {uri: store.now_at(uri) for uri in dict.fromkeys(shard.uri for shard in shards)}
    here = [replace(shard, uri=at[shard.uri]) for shard in shards]
    lines = _lines(store, job, here, wanted, options)
    first = next(lines, None)
    rows = 0
    if first is not None:
        with write_atomic(path, options=options) as file:
            file.write(first)
            rows = 1
            for line in lines:
                file.write(line)
                rows += 1
    return FailedRequests(rows=rows, others=wanted.others, unread=max(0, failed - rows - wanted.others))


def _check_code(code: str) -> None:
    if code in STATUS:
        return
    near = difflib.get_close_matches(code, STATUS, n=1)
    hint = f"do you mean {near[0]}?" if near else "docs/error-rows.md has all codes"
    raise ConfigError(f"--code {code}: this version of dray has no such code of error rows; {hint}")


class _Wanted:
    """Which rows are error rows of the codes asked for; counts those of ``others``."""

    def __init__(self, store: Store, job_id: str, codes: Collection[str]) -> None:
        self.others = 0
        self._store = store
        self._job_id = job_id
        self._codes = frozenset(codes)

    def among(self, indexes: Sequence[int]) -> set[int]:
        found = self._store.error_codes(self._job_id, indexes)
        wanted = {index for index, code in found.items() if not self._codes or code in self._codes}
        self.others += len(found) - len(wanted)
        return wanted


def _lines(
    store: Store, job: Job, shards: Sequence[Shard], wanted: _Wanted, options: ObjectStoreOptions | None
) -> Iterator[bytes]:
    ordered = sorted(shards, key=lambda shard: shard.first_position)
    for uri in dict.fromkeys(shard.uri for shard in ordered):
        if not _is_there(uri, options):
            raise JobFailedError(
                f"{uri}: the requests that job {job.job_id} kept are gone, or not on this machine, so those "
                "of its error rows cannot be written; bring them back, or run its input again, with another "
                "--output"
            )
    followers = _failed_followers(store, job, ordered, wanted, options)
    for shard in ordered:
        if not (followers or shard.failed or shard.inherited):
            continue  # all of its rows have answers, or none yet
        for chunk in read_shard(shard.uri, shard.offset, shard.length, chunk_rows=_ROWS, options=options):
            indexes = [index_of(line) for line in chunk]
            failed = wanted.among(indexes)
            for index, line in zip(indexes, chunk, strict=True):
                repeats = followers.get(index, ())
                if index in failed or repeats:
                    request = decode(line)
                    ids = [request.custom_id] if index in failed else []
                    yield from (_line(request, one) for one in (*ids, *repeats))


def _is_there(uri: str, options: ObjectStoreOptions | None) -> bool:
    try:
        return exists(uri, options=options)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise JobFailedError(f"{uri}: the requests that the job kept cannot be read: {reason}") from error


def _failed_followers(
    store: Store, job: Job, ordered: Sequence[Shard], wanted: _Wanted, options: ObjectStoreOptions | None
) -> Mapping[int, list[str]]:
    """Error rows that repeat another row, whose request left the spool: their custom_ids, by that row."""
    found: dict[int, list[str]] = defaultdict(list)
    if not (ordered and has_followers(job)):
        return found
    noted = job.info.get(FOLLOWERS_AT)
    uri = store.now_at(noted) if noted else f"{ordered[0].uri}{FOLLOWERS}"  # an earlier version noted none
    if not _is_there(uri, options):
        raise JobFailedError(
            f"{uri}: the file that names the rows of job {job.job_id} which repeat another row is gone, or "
            "not on this machine, so not all requests of its error rows can be written; bring it back, or "
            "run the job's input again, with another --output"
        )
    for page in Shared(followers_uri=uri).read_followers(_ROWS, options):
        failed = wanted.among([row.index for row in page])
        for row in page:
            if row.index in failed:
                found[row.leader].append(row.custom_id)
    return found


def _line(request: Request, custom_id: str) -> bytes:
    row = {"custom_id": custom_id, "method": "POST", "url": request.url, "body": request.body}
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
