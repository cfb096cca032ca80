"""Copy a job's finished rows from the store to files in another folder, also while the job runs."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from dray.errors import ConfigError
from dray.job.beginning.opening import is_output_of, owner_of_job
from dray.job.rows.spooling import kept_of
from dray.requests.outputs.files import Pages, Written, write_outputs
from dray.storage import check_writable, folders
from dray.storage.draft import Stage
from dray.storage.files import join
from dray.storage.layout import whole_names
from dray.storage.objects import ObjectStoreOptions
from dray.storage.s3_uploads import end_unfinished, unfinished_outputs
from dray.store import Job, Store


def export(
    store: Store,
    job: Job,
    directory: str,
    form: Any,
    *,
    kept: bool,
    part_bytes: int,
    overwrite: bool,
    options: ObjectStoreOptions | None = None,
) -> Written:
    """Write the finished rows to files of ``part_bytes`` at most, in a folder that is no job's own.

    The columns that the job ``kept`` stand beside them. ``options`` are for all object stores, None for what
    the environment says.

    Raises:
        ConfigError: the folder holds files of others, and may not be given to the export.
        JobFailedError: the kept columns are gone.
    """
    owner = owner_of_job(job).of_export
    if not overwrite:
        _refuse_own_folder(job, directory)
        folders.refuse_foreign(directory, owner, whole_names(), options=options)
    check_writable(directory, options=options)  # which makes the folder: not for an export that is refused
    replace_all = overwrite and folders.owner_of(directory, options) != owner
    folders.take(directory, owner, overwrite=overwrite, options=options)
    others = unfinished_outputs(directory, options)  # of exports that were killed
    if others:
        folders.confirm(directory, owner, options)
        end_unfinished(others, options)
    beside = kept_of(job, options) if kept else None
    work = join(join(directory, folders.WORK), job.job_id)
    return write_outputs(
        Pages(lambda: store.outcomes(job.job_id)),
        directory=directory,
        format=form,
        kept=None if beside is None else replace(beside, uri=store.now_at(beside.uri)),
        part_bytes=part_bytes,
        stage=Stage(folder=work, tag=f"x{secrets.token_hex(4)}"),
        confirm=lambda _infos: folders.confirm(directory, owner, options),
        replace_all=replace_all,
        options=options,
    )


def _refuse_own_folder(job: Job, directory: str) -> None:
    """Whether the job has marked its folder or not: an earlier version of dray did not."""
    if is_output_of(job, directory):
        raise ConfigError(
            f"{directory}: the folder belongs to job {job.job_id}, whose files come there when it is done; "
            "name another one with --output, or replace its files with --overwrite"
        )
