"""The spool of a job: every driver writes one of its own, and the store says which one is read.

So a driver that was frozen while it took the input in, and finds itself replaced, overwrites nothing. A large
spool is in parts; shards say which part they are in, and a part that is lost, or cut short, has the whole
written again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, takewhile

from dray.errors import JobChangedError
from dray.job.open_job import OpenJob
from dray.requests.ingest import BESIDE, Ingested
from dray.requests.outputs.kept import KEPT_COLUMNS, Kept
from dray.requests.sources import SqlQuery
from dray.requests.spool.parts import part_uri
from dray.storage.files import exists, join, local_path, remove, size_of
from dray.storage.listings import list_under
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.storage.s3_uploads import end_unfinished, unfinished
from dray.storage.same_place import same_place
from dray.store import Job, JobState, Shard

PART_BYTES = 8 << 30
"""Bytes of a part of a spool: 583 parts for 5 TB. For an object store two of them lie in ``TMPDIR``."""

DIGEST = "spool_sha256"
"""Where the job's ``info`` has the SHA-256 of the spool that its shards were cut from, in hex.

Of several parts it is that of their digests, and ends in their bound: ``… in parts of 8589934592``.
"""

REUSED_AT = "reused_at"
"""Where it has the file that names the rows with an answer of an earlier job; None where there are none."""

FOLLOWERS_AT = "followers_at"
"""Where it has the file that names the rows which follow another, likewise: a spool may move away from it."""

_IN_PARTS = re.compile(r" in parts of (\d+)")
_ENDINGS = "|".join(map(re.escape, BESIDE))
_NAME = re.compile(
    rf"\.?(?P<name>requests-(?P<epoch>\d+)(?:-(?P<number>\d{{5,}}))?\.jsonl(?:{_ENDINGS})?)"
    r"(?:\.[0-9a-f]{8}\.part)?"
)
"""The files of a spool, also those that are still being written."""


def missed(job: OpenJob, shards: Iterable[Shard]) -> str | None:
    """A part of the spool that is lost, or cut short before the end of one of these shards; None for none."""
    ends: dict[str, int] = {}
    for shard in shards:
        ends[shard.uri] = max(ends.get(shard.uri, 0), shard.offset + shard.length)
    return next((uri for uri, end in ends.items() if (_size(job, uri) or 0) < end), None)


def missed_kept(job: OpenJob, recorded: Job) -> str | None:
    """The kept columns of a job whose input was taken in, where they are gone.

    None for a query, which may give other rows by now: what is left of the job can be run all the same. Nor
    is anything taken in for a job whose time is over.
    """
    kept = kept_of(recorded, job.settings.objects)
    asked = isinstance(job.settings.source, SqlQuery)
    if kept is None or recorded.total is None or asked or recorded.state is JobState.EXPIRED:
        return None
    return None if _size(job, kept.uri) is not None else kept.uri


def spool_of(job: OpenJob) -> str:
    """Where this driver writes the job's spool."""
    return job.spool(job.lease.epoch)


def bound_of(recorded: Job) -> int | None:
    """Bytes of a part. A spool that is written again is cut where it was; None is for one file."""
    if recorded.total is None:
        return PART_BYTES
    found = _IN_PARTS.search(recorded.info.get(DIGEST, ""))
    return int(found[1]) if found else None


def digest_of(ingested: Ingested) -> str:
    """What is noted of a spool: two of one digest hold the same rows in the same parts."""
    several = f" in parts of {ingested.part_bytes}" if len(ingested.parts) > 1 else ""
    return f"{ingested.spool_sha256}{several}"


def kept_of(job: Job, options: ObjectStoreOptions | None = None) -> Kept | None:
    """The columns that stand beside the answers; None where the user named none."""
    found = job.info.get(KEPT_COLUMNS)
    return None if found is None else Kept.from_dict(found, options)


def moved(shards: Iterable[Shard], ingested: Ingested) -> dict[str, str]:
    """Where each part lies now that the spool was written again, by where it lay."""
    ordered = sorted(shards, key=lambda shard: shard.first_position)
    before = dict.fromkeys(shard.uri for shard in ordered)
    return dict(zip(before, (part.uri for part in ingested.parts), strict=True))


def remove_older(job: OpenJob, recorded: Job, shards: Sequence[Shard], kept: Kept | None = None) -> None:
    """Remove what earlier drivers have written, but the spool that ``shards`` were cut from, and ``kept``.

    Files that the job's ``info`` names stay, too: a spool that is written again has no reused rows, and later
    jobs read them.
    """
    read = [shard.uri for shard in shards] + ([] if kept is None else [kept.uri])
    noted = [uri for key in (REUSED_AT, FOLLOWERS_AT) if (uri := recorded.info.get(key)) is not None]
    _remove(job, set(range(1, job.lease.epoch)) - _epochs(job, read), but=_names_of(job, noted))


def remove_own(job: OpenJob, shards: Sequence[Shard] = ()) -> None:
    """Remove this driver's spool, which nobody reads. One that ``shards`` were cut from stays."""
    _remove(job, {job.lease.epoch} - _epochs(job, [shard.uri for shard in shards]))


def refuse_other(job: OpenJob, recorded: Job, lost: str, ingested: Ingested) -> None:
    """Make sure that a spool that was written again is the one that the shards were cut from.

    Raises:
        JobChangedError: the input gives other rows by now, as a query may.
    """
    if (ingested.rows, digest_of(ingested)) == (recorded.total, recorded.info.get(DIGEST)):
        return
    remove_own(job)
    raise JobChangedError(
        f"job {job.job_id}: its requests ({lost}) are gone, cut short, or closed to dray, and its input "
        "gives other rows now, as a query may. Give another --job-id to start anew; what is finished stays "
        "in the store, and "
        f"`{job.command('export', ' --output FOLDER')}` writes it to files"
    )


def _epochs(job: OpenJob, uris: Iterable[str]) -> set[int]:
    """Epochs of the drivers that wrote these files."""
    names = (_NAME.fullmatch(name) for name in _names_of(job, uris))
    return {int(found["epoch"]) for found in names if found is not None}


def _names_of(job: OpenJob, uris: Iterable[str]) -> set[str]:
    """The names of those files that lie in the job's own folder, however an earlier run spelled that."""
    found = {(_folder(uri), _name(uri)) for uri in uris}
    own = {folder for folder in {folder for folder, _ in found} if same_place(folder, job.work)}
    return {name for folder, name in found if folder in own}


def _remove(job: OpenJob, epochs: Collection[int], but: Collection[str] = ()) -> None:
    """Remove all that the drivers of these epochs have written, and end what they were uploading.

    Files of the names in ``but`` stay.
    """
    if not epochs:
        return
    for name in _found(job, epochs):
        with suppress(OSError):  # it is not there, or may not be removed: no shard task reads it
            if name not in but:
                remove(join(job.work, name), options=job.settings.objects)
    uploads = unfinished(f"{job.work}/", job.settings.objects)
    end_unfinished([one for one in uploads if _is_of(epochs, one[0])], job.settings.objects)


def _found(job: OpenJob, epochs: Collection[int]) -> list[str]:
    """Names of files of their spools, the last part first. A part without a name is told by the one to be."""
    try:
        names = list(_names_in(job))
    except OSError:  # an account that writes to a bucket need not be allowed to list it
        names = [name for epoch in epochs for name in _asked_for(job, epoch)]
    found = [one for one in map(_NAME.fullmatch, names) if one is not None and int(one["epoch"]) in epochs]
    numbers = {one["name"]: int(one["number"] or 0) for one in found}
    return sorted(numbers, key=numbers.__getitem__, reverse=True)


def _names_in(job: OpenJob) -> Iterator[str]:
    if is_object(job.work):
        yield from (_name(info.uri) for info in list_under(f"{job.work}/", job.settings.objects))
    else:
        yield from (path.name for path in local_path(job.work).glob("*"))


def _asked_for(job: OpenJob, epoch: int) -> list[str]:
    """The parts that have names, from the first on, and what lies beside them."""
    spool = job.spool(epoch)
    parts = (part_uri(spool, number) for number in count())
    there = takewhile(lambda uri: _is_there(job, uri), parts)
    return [*map(_name, there), *(_name(f"{spool}{ending}") for ending in BESIDE)]


def _is_there(job: OpenJob, uri: str) -> bool:
    try:
        return exists(uri, options=job.settings.objects)
    except OSError:  # S3 says 403 for a missing object, to an account that may not list
        return False


def _size(job: OpenJob, uri: str) -> int | None:
    """Bytes of a file; None where it is gone, or at a place that the job has left, which refuses us."""
    try:
        return size_of(uri, options=job.settings.objects)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        if same_place(_folder(uri), job.work):
            raise
        return None


def _is_of(epochs: Collection[int], uri: str) -> bool:
    found = _NAME.fullmatch(_name(uri))
    return found is not None and int(found["epoch"]) in epochs


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0]
