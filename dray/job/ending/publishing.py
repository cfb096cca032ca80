"""Publish a job's files: under drafts with the driver's epoch, recorded by the store, then by their names.

Why a driver that stood still cannot replace the files of its successor: see :mod:`dray.storage.drafts`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dray.job.open_job import OpenJob
from dray.storage import folders
from dray.storage.draft import DraftGoneError, Stage
from dray.storage.drafts import Drafts, withdraw
from dray.storage.files import FileInfo, writing
from dray.storage.s3_uploads import abort, end_unfinished, unfinished_outputs
from dray.storage.same_place import same_place
from dray.store import Store
from dray.store.lasting_info import OF_OTHERS, UPLOADS, uploads_of

_logger = logging.getLogger(__name__)

PUBLISHED = "published"
"""Where the job's ``info`` has the files that are the job's: ``epoch``, and size and SHA-256 by name."""


@contextmanager
def job_drafts(store: Store, job: OpenJob) -> Iterator[Drafts]:
    """Drafts of the job's files, when those of all earlier drivers are gone.

    Raises:
        FencedError: another driver has the job; nothing more is published.
    """
    settings = job.settings
    withdraw(job.work, older_than=job.lease.epoch, options=settings.objects)
    others = unfinished_outputs(settings.output, settings.objects)
    # As of one moment: those of a successor, or of a newer job of this name, are not to be ended.
    _end_noted(job, store.driven_job(job.lease).info)
    if others:  # of drivers that were killed before the store knew, and of earlier owners of the folder
        folders.confirm(settings.output, job.owner, settings.objects)
        end_unfinished(others, settings.objects)
    stage = Stage(folder=job.work, tag=str(job.lease.epoch), note=_Uploads(store, job).note)
    with Drafts(settings.output, stage=stage, options=settings.objects) as drafts:
        if _was_of_others(store, job):
            drafts.replace_all()
        yield drafts


def _end_noted(job: OpenJob, info: Mapping[str, Any]) -> None:
    """End the uploads that earlier drivers have noted: one that stands still may go on with them.

    Those to an output that the job has left replace nothing here. Their bucket may be gone, or closed to us.
    """
    given_up = set()
    for uri, upload in uploads_of(info).items():
        folder = uri.rpartition("/")[0]
        if folder in given_up:
            continue
        try:
            abort(uri, upload, job.settings.objects)
        except OSError as error:
            if same_place(folder, job.settings.output):
                with writing(uri):
                    raise
            given_up.add(folder)
            _logger.warning(
                "job %s: uploads that an earlier run began in %s cannot be ended (%s), and their parts may "
                "cost money: a lifecycle rule of the bucket that aborts incomplete uploads removes them",
                job.job_id,
                folder,
                error,
            )


def _was_of_others(store: Store, job: OpenJob) -> bool:
    """Whether the folder was taken from another, and the job has not published there since."""
    taken = store.get_job(job.job_id).info.get(OF_OTHERS)
    return taken is not None and same_place(taken, job.settings.output)


class _Uploads:
    """What this driver uploads, told to the store before the first byte: its successor ends it."""

    def __init__(self, store: Store, job: OpenJob) -> None:
        self._store = store
        self._job = job
        self._known: dict[str, str] = {}

    def note(self, uri: str, upload: str) -> None:
        """One more; those of earlier drivers are over by now."""
        self._known[uri] = upload
        begun = {"epoch": self._job.lease.epoch, "ids": dict(self._known)}
        self._store.merge_job_info(self._job.lease, {UPLOADS: begun})


def publish(store: Store, job: OpenJob, drafts: Drafts, summary: Mapping[str, Any] | None) -> None:
    """Record the drafts as the job's files, with its ``summary`` where there is a new one, and name them.

    Raises:
        FencedError: another driver has the job.
        JobFailedError: another job was given the folder, or another process removed a draft.
    """

    def record(infos: Mapping[str, FileInfo]) -> None:
        folders.confirm(job.settings.output, job.owner, job.settings.objects)
        files = {name: {"size": info.size, "sha256": info.sha256} for name, info in infos.items()}
        published = {"epoch": job.lease.epoch, "files": files}
        store.merge_job_info(job.lease, {PUBLISHED: published}, summary=summary)

    try:
        drafts.publish(record)
    except DraftGoneError:
        store.renew_job(job.lease)  # says so where another driver has the job
        raise
    done: dict[str, None] = {}
    if _was_of_others(store, job):
        done[OF_OTHERS] = None
    if uploads_of(store.get_job(job.job_id).info):  # all are over: no later run has to reach their place
        done[UPLOADS] = None
    if done:
        store.merge_job_info(job.lease, done)
