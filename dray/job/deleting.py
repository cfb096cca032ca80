"""Delete jobs: their rows, what was charged, and their requests. The files that the user keeps stay."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from dray.errors import ConfigError, UnknownJobError
from dray.job.beginning.opening import outputs_of, owner_of_job
from dray.owner import is_gone
from dray.requests.ingest import BESIDE
from dray.storage import folders, objects
from dray.storage.files import join, local_path
from dray.storage.folders import Owner, work_of
from dray.storage.listings import list_under
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.storage.s3_uploads import abort, end_unfinished, unfinished, unfinished_outputs
from dray.store import Job, Store
from dray.store.deletion import SPOOLS, name_of
from dray.store.lasting_info import uploads_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """What the deletion of one job freed: rows of the store, and bytes of the requests that it kept.

    ``left`` names what could not be removed, with the reason: the next deletion tries it again.
    """

    job_id: str
    rows: int
    spool_bytes: int
    output: str
    left: str | None


def delete_job(store: Store, job_id: str, options: ObjectStoreOptions | None = None) -> Deleted:
    """Delete a job, or go on with its deletion where that was interrupted.

    ``options`` reach its files in an object store.

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
    return _remove(store, buried, options)


def finish_deletions(
    store: Store, options: ObjectStoreOptions | None = None, *, tried: Collection[str] = ()
) -> Iterator[Deleted]:
    """Go on with all deletions that are not over, except of the jobs that were just ``tried``."""
    for job in store.buried_jobs():
        if name_of(job) not in tried:
            yield _remove(store, job, options)


def _remove(store: Store, job: Job, options: ObjectStoreOptions | None) -> Deleted:
    """First the files, which are found by what the store has of the job; then its rows.

    Where files are left, the store keeps the buried job, by which the next deletion finds them.
    """
    freed, left = 0, []
    for uri, upload in uploads_of(job.info).items():
        try:
            abort(uri, upload, options)
        except OSError as error:
            left.append(f"an upload of {uri} ({type(error).__name__})")
    found = _folders(job)
    for folder in found:
        try:
            freed += _remove_folder(job, folder, options)
        except (OSError, ConfigError) as error:
            left.append(f"{folder.work} ({type(error).__name__})")
    for output in dict.fromkeys(folder.output for folder in found):
        try:
            _give_up(job, output, options)
        except (OSError, ConfigError) as error:
            left.append(f"{output}/{folders.WORK} ({type(error).__name__})")
    return Deleted(
        job_id=name_of(job),
        rows=store.remove_job(job, keep=bool(left)),
        spool_bytes=freed,
        output=str(job.settings.get("output", "")),
        left=", ".join(left) or None,
    )


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder in which files of the job may lie, ``OUTPUT/.dray/NAME``, and those of its spools there."""

    work: str
    spools: tuple[str, ...]

    @property
    def output(self) -> str:
        return self.work.rpartition("/")[0].rpartition("/")[0]


def _folders(job: Job) -> list[_Folder]:
    """The folders of its spools; and those of a job without shards, whose ingest was not over."""
    spools: list[str] = list(job.info.get(SPOOLS) or [])
    name = name_of(job)
    works = []
    for output in outputs_of(job):
        works += [work_of(output, owner_of_job(job, name)), join(join(output, folders.WORK), name)]
    works += [work for work in (spool.rpartition("/")[0] for spool in spools) if _is_work(work)]
    return [
        _Folder(work, tuple(spool for spool in spools if spool.startswith(f"{work}/")))
        for work in dict.fromkeys(works)
    ]


def _is_work(folder: str) -> bool:
    """Whether a folder is named as jobs' own are: in no other does a deletion look for files."""
    return folder.rpartition("/")[0].endswith(f"/{folders.WORK}")


def _remove_folder(job: Job, folder: _Folder, options: ObjectStoreOptions | None) -> int:
    """Remove what is the job's; bytes freed. What a newer job of this name has there has other names."""
    mine = owner_of_job(job, name_of(job))
    if folder.work == work_of(folder.output, mine):
        freed = _remove_all(folder.work, options)
    else:
        freed = _remove_old_files(folder, mine, options)
    if not is_object(folder.work):
        with suppress(OSError):  # it holds something else, or is gone
            local_path(folder.work).rmdir()
    return freed


def _give_up(job: Job, output: str, options: ObjectStoreOptions | None) -> None:
    """Leave an output folder to others: what killed drivers were uploading is ended, the marker goes."""
    mine = owner_of_job(job, name_of(job))
    others = unfinished_outputs(output, options)
    if others and folders.owner_of(output, options) == mine:  # asked after the look: no other job's then
        end_unfinished(others, options)
    folders.give_up(output, mine, options)
    if not is_object(output):
        with suppress(OSError):
            (local_path(output) / folders.WORK).rmdir()


def _remove_all(work: str, options: ObjectStoreOptions | None) -> int:
    """The folder has the job's identity in its name, so all in it is the job's, whatever the marker says."""
    freed = sum(_remove_file(uri, size, options) for uri, size in _files_in(work, options))
    end_unfinished(unfinished(f"{work}/", options), options)
    if not is_object(work):
        shutil.rmtree(local_path(work), ignore_errors=True)
        if local_path(work).exists():
            raise OSError("it is still there")
    return freed


def _remove_old_files(folder: _Folder, mine: Owner, options: ObjectStoreOptions | None) -> int:
    """An earlier version of dray named folders after the job alone, so they may be another job's by now.

    All in it is the job's while the marker says so. Without a marker, only what the store knows of is.
    """
    named = {uri for spool in folder.spools for uri in (spool, *(f"{spool}{end}" for end in BESIDE))}
    freed = 0
    for uri, size in _files_in(folder.work, options):
        owner = folders.owner_of(folder.output, options)  # of each file: another job may take the folder
        if owner not in (mine, None):
            break
        if owner == mine or uri in named:
            freed += _remove_file(uri, size, options)
    return freed


def _files_in(work: str, options: ObjectStoreOptions | None) -> list[tuple[str, int]]:
    """URIs and sizes in bytes."""
    if is_object(work):
        return [(info.uri, info.size) for info in list_under(f"{work}/", options)]
    found = []
    for path in local_path(work).rglob("*"):
        with suppress(FileNotFoundError):  # another deletion of the job is at work
            if path.is_file():
                found.append((str(path), path.stat().st_size))
    return found


def _remove_file(uri: str, size: int, options: ObjectStoreOptions | None) -> int:
    """The bytes it had; none where another deletion was faster."""
    try:
        objects.delete(uri, options) if is_object(uri) else local_path(uri).unlink()
    except FileNotFoundError:
        return 0
    return size
