"""``dray status`` and ``dray jobs``: how far jobs are, read from the store alone, once or until the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

from dray.cli import output, terminal
from dray.cli.facts import Facts, facts_of
from dray.cli.jobs import store_at
from dray.cli.wording import job_table, next_step, status_lines
from dray.errors import ConfigError, StoreError, UnknownJobError
from dray.report.progress import progress_line
from dray.store import Job, JobState, Store
from dray.wording import duration

REFRESH_SECONDS = 2.0
LINE_SECONDS = 10.0  # between two lines where the output is no terminal
AWAY_SECONDS = 1800.0
"""How long ``--watch`` waits for a store that does not answer."""
UNDRIVEN_SECONDS = 30.0
"""How long ``--watch`` waits for a driver once the lease is over: one that lives renews it every 15 s."""
_PATIENCE = 2.0  # seconds for one look: the next one follows anyway
_EXIT_CODES = {"completed": 0, "cancelled": 130}


def show_status(job_id: str | None, reference: str | None, *, json: bool) -> int:
    """Say how far one job is; the latest one where none is named."""
    with store_at(reference) as store:
        facts = facts_of(store, _job(store, job_id))
    if json:
        output.print_json(facts)
    else:
        output.tell(*status_lines(facts, now=time.time(), store=reference))
    return 0


def watch_status(job_id: str | None, reference: str | None, *, json: bool) -> int:
    """Follow a job until no driver works on it any more; returns the exit code that its run has.

    A job that is at rest has none. Neither has one whose lease has been over for ``UNDRIVEN_SECONDS``.

    Raises:
        StoreUnreachableError: the store does not answer at all, or has not for ``AWAY_SECONDS``.
    """
    with terminal.screen(plain=terminal.is_plain(json=json)) as screen:
        facts: dict[str, Any] = {}
        line_at = 0.0
        for found, away in _looks(job_id, reference):
            facts = found
            if screen is not None:
                lines = status_lines(facts, now=time.time(), store=reference) + ([away] if away else [])
                screen([output.visible(one) for one in lines])
            elif away or time.monotonic() - line_at > LINE_SECONDS:
                line_at = time.monotonic()
                output.say(away or f"{facts['job_id']}  {facts['state']}  {_line(facts)}", needed=True)
    if facts["undriven"]:
        output.say(f"job {facts['job_id']} has {facts['no_driver']}; {next_step(facts, reference)}")
    if json:
        output.print_json(facts)
    else:
        output.tell(*status_lines(facts, now=time.time(), store=reference))
    return _EXIT_CODES.get(facts["state"], 1)


def show_jobs(reference: str | None, limit: int, *, json: bool) -> int:
    """The latest jobs."""
    with store_at(reference) as store:
        found = []
        for job in store.list_jobs(limit):
            with suppress(UnknownJobError):  # another process has just deleted it
                found.append(facts_of(store, job))
    if json:
        output.print_json({"jobs": found})
    elif found:
        output.tell(*job_table(found))
    else:
        output.say("this store holds no job yet")
    return 0


def _looks(job_id: str | None, reference: str | None) -> Iterator[tuple[dict[str, Any], str]]:
    """The job's facts until no driver works on it, and what is to be said of a store that is away."""
    away_since: float | None = None
    undriven_since: float | None = None
    away = ""
    with _Window(reference) as window:
        facts = window.look(job_id)
        while True:
            yield facts, away
            if JobState(facts["state"]).at_rest:
                return
            if not facts["undriven"] or away:  # a driver cannot renew its lease in a store that is away
                undriven_since = None
            else:
                undriven_since = undriven_since or time.monotonic()
                if time.monotonic() - undriven_since > UNDRIVEN_SECONDS:
                    return
            time.sleep(REFRESH_SECONDS)
            try:
                facts, away, away_since = window.look(facts["job_id"]), "", None
            except (StoreError, ConfigError) as error:
                away_since = away_since or time.monotonic()
                seconds = time.monotonic() - away_since
                if seconds > AWAY_SECONDS:
                    raise
                away = f"the store has not answered for {duration(round(seconds))}: {error}"


class _Window:
    """A store that is kept open from look to look, and opened again after an error."""

    def __init__(self, reference: str | None) -> None:
        self._reference = reference
        self._store: Store | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def look(self, job_id: str | None) -> dict[str, Any]:
        try:
            self._store = self._store or store_at(self._reference, patience=_PATIENCE)
            return facts_of(self._store, _job(self._store, job_id))
        except StoreError:
            self.__exit__()
            raise


def _job(store: Store, job_id: str | None) -> Job:
    if job_id is not None:
        return store.get_job(job_id)
    found = store.list_jobs(1)
    if not found:
        raise UnknownJobError("this store holds no job yet")
    return found[0]


def _line(facts: Facts) -> str:
    counts = facts["counts"]
    return progress_line(
        finished=counts["done"] + counts["failed"],
        total=counts["total"],
        failed=counts["failed"],
        rows_per_second=facts["rows_per_second"],
        tokens_per_second=facts["tokens_per_second"],
    )
