"""Delete jobs: their rows, what was charged, and their requests. The files that the user keeps stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dray.errors import ConfigError, UnknownJobError
from dray.job.driver import is_gone
from dray.job.opening import owner_of_job
from dray.requests import folders, objects
from dray.requests.files import local_path
from dray.requests.objects import is_object
from dray.store import Job, Store
from dray.store.deletion import SPOOLS, name_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """What the deletion of one job freed: rows of the store, and bytes of the requests that it kept.

    ``left`` names what could not be removed, with the reason.
    """

    job_id: str
    rows: int
    spool_bytes: int
    output: str
    left: str | None = None


def delete_job(store: Store, job_id: str) -> Deleted:
    """Delete a job, or go on with its deletion where that was interrupted.

    Raises:
        UnknownJobError: no such job.
        JobBusyError: it runs.
    """
    try:
        buried = store.bury_job(job_id, is_gone=is_gone)
    except UnknownJobError:
        begun = [job for job in store.buried_jobs() if name_of(job) == job_id]
        if not begun:
            raise
        buried = begun[-1]
    return _remove(store, buried)


def finish_deletions(store: Store) -> Iterator[Deleted]:
    """Go on with all deletions that were interrupted."""
    for job in store.buried_jobs():
        yield _remove(store, job)


def _remove(store: Store, job: Job) -> Deleted:
    freed, left = 0, None
    for spool in job.info.get(SPOOLS) or _likely_spool(job):
        try:
            freed += _remove_work(job, spool)
        except (OSError, ConfigError) as error:  # its rows go all the same
            left = f"{spool} ({type(error).__name__})"
    return Deleted(
        job_id=name_of(job),
        rows=store.remove_job(job),
        spool_bytes=freed,
        output=str(job.settings.get("output", "")),
        left=left,
    )


def _likely_spool(job: Job) -> list[str]:
    """Where that of a job without shards would lie: its ingest was not over, or no row was valid."""
    output = job.settings.get("output")
    return [f"{output}/{folders.WORK}/{name_of(job)}/requests-{job.epoch}.jsonl"] if output else []


def _remove_work(job: Job, spool: str) -> int:
    """Remove the job's own folder, in which its spool lies; bytes freed.

    A folder that belongs to another job by now is left alone: its files may have the same names.
    """
    work = spool.rpartition("/")[0]
    directory = work.rpartition("/")[0].rpartition("/")[0]  # OUTPUT/.dray/JOB/requests-EPOCH.jsonl
    mine = owner_of_job(job, name_of(job))
    owner = folders.owner_of(directory)
    if owner not in (mine, None):
        return 0
    if is_object(work):
        freed = _remove_objects(work, spool, whole=owner == mine)
    else:
        freed = _remove_files(work, spool, whole=owner == mine)
    folders.give_up(directory, mine)
    if not is_object(work):
        for folder in (work, local_path(work).parent):
            with suppress(OSError):  # it holds something else, or is gone
                local_path(str(folder)).rmdir()
    return freed


def _remove_files(work: str, spool: str, *, whole: bool) -> int:
    folder = local_path(work)
    named = [local_path(spool), local_path(f"{spool}.rejects")]
    found = [path for path in (folder.rglob("*") if whole else named) if path.is_file()]
    freed = sum(path.stat().st_size for path in found)
    for path in found:
        path.unlink()
    if whole:
        shutil.rmtree(folder, ignore_errors=True)
    return freed


def _remove_objects(work: str, spool: str, *, whole: bool) -> int:
    freed = 0
    for info in objects.list_under(f"{work}/"):
        if whole or info.uri in (spool, f"{spool}.rejects"):
            objects.delete(info.uri)
            freed += info.size
    return freed
