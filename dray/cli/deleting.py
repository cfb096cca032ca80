"""``dray jobs``: the jobs of a store, and their deletion."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from dray.cli import output
from dray.cli.flags import Json, ObjectsOption, StoreOption
from dray.durations import seconds_of
from dray.errors import ConfigError, UnknownJobError

if TYPE_CHECKING:
    from dray.job.deleting import Deleted
    from dray.store import Job, Store

jobs = App(name="jobs", help="List the latest jobs of a store, or delete jobs.")

Limit = Annotated[int, Parameter(validator=validators.Number(gte=1), help="Most jobs to list.")]


@jobs.default
def show(*, store: StoreOption = None, limit: Limit = 20, json: Json = False) -> int:
    """List the latest jobs of a store."""
    from dray.cli.status import show_jobs

    return show_jobs(store, limit, json=json)


@jobs.command
def delete(
    job_id: str | None = None,
    /,
    *,
    older_than: Annotated[
        str | None, Parameter(help="Only jobs that ended so long ago: 30d, 12h. Without JOB_ID: all of them.")
    ] = None,
    yes: Annotated[bool, Parameter(name="--yes", negative=(), help="Do not ask.")] = False,
    store: StoreOption = None,
    objects: ObjectsOption = None,
    json: Json = False,
) -> int:
    """Delete jobs from the store: rows, charges and kept requests. Output files stay where they are.

    The command refuses a job that runs. It finishes deletions that were interrupted, or that left files.
    """
    from dray.cli.jobs import objects_named, store_at
    from dray.job.deleting import delete_job, finish_deletions

    if job_id is None and older_than is None:
        raise ConfigError("dray jobs delete: name a job, or say --older-than 30d for all that ended")
    seconds = None if older_than is None else _seconds(older_than)
    deleted: list[Deleted] = []
    options = objects_named(objects)
    with store_at(store, upgrade=True) as opened:
        chosen = _chosen(opened, job_id, seconds)
        if chosen and not yes:
            _ask(chosen)
        for name in chosen:
            try:
                deleted.append(delete_job(opened, name, options))
            except UnknownJobError:  # another command deletes old jobs too, and was faster
                if job_id is not None:
                    raise
                continue
            _tell(deleted[-1])
        for finished in finish_deletions(opened, options, tried={one.job_id for one in deleted if one.left}):
            deleted.append(finished)
            _tell(finished)
    if json:
        output.print_json({"deleted": [asdict(one) for one in deleted]})
    elif not deleted:
        output.say("no job ended that long ago")
    return 1 if any(one.left for one in deleted) else 0


def _chosen(store: Store, job_id: str | None, seconds: float | None) -> list[str]:
    from dray.store.deletion import name_of

    if job_id is None:
        return [job.job_id for job in store.ended_jobs(older_than=seconds or 0.0)]
    if any(name_of(job) == job_id for job in store.buried_jobs()) and store.find_job(job_id) is None:
        return []  # it is finished with all others that were interrupted
    job = store.get_job(job_id)
    if seconds is not None and not _ended(store, job, seconds):
        return []
    return [job_id]


def _ended(store: Store, job: Job, seconds: float) -> bool:
    return any(one.key == job.key for one in store.ended_jobs(older_than=seconds))


def _ask(names: list[str]) -> None:
    """Have a person say yes.

    Raises:
        ConfigError: there is none to ask, or the answer was another.
    """
    some = ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
    what = f"{len(names):,} job{'s' if len(names) > 1 else ''} ({some}) with all rows in the store"
    if not sys.stdin.isatty():
        raise ConfigError(f"dray jobs delete would delete {what}; say --yes")
    sys.stderr.write(output.visible(f"Delete {what}? [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was deleted")


def _tell(deleted: Deleted) -> None:
    freed = f"{deleted.rows:,} rows and {deleted.spool_bytes / 1e6:,.1f} MB of requests"
    output.say(
        f"job {deleted.job_id}: deleted {freed}"
        + (f"; files in {deleted.output} stay" if deleted.output else "")
    )
    if deleted.left:
        again = "the next `dray jobs delete` tries again"
        output.say(f"job {deleted.job_id}: could not be removed: {deleted.left}; {again}")


def _seconds(given: str) -> float:
    seconds = seconds_of(given)
    if seconds is None:
        raise ConfigError(f"--older-than {given}: write a time such as 30d, 12h or 90m")
    return seconds
