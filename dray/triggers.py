"""Named places in the code at which a chaos test makes the process die, stop, fail or wait.

Off unless the environment says otherwise when this module is imported::

    DRAY_TRIGGER="NAME[:COUNT][=ACTION][;...]"

At the COUNT-th time (1 by default) that a process reaches NAME it does ACTION: ``kill`` (the default: SIGKILL
to itself), ``stop`` (SIGSTOP to itself), ``raise`` (:class:`TriggeredError`) or ``sleep SECONDS``, once. With
``DRAY_TRIGGER_DIR``, a folder that outlives the processes, times are counted over all of them. A trigger then
acts once per job, not once per restarted process. ``NAME.fired`` there holds the pid of the process it hit.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dray.errors import ConfigError

TRIGGER_VARIABLE = "DRAY_TRIGGER"
FOLDER_VARIABLE = "DRAY_TRIGGER_DIR"

_FORM = re.compile(
    r"(?P<name>[a-z.]+)(?::(?P<count>[1-9]\d*))?"
    r"(?:=(?P<action>kill|raise|stop|sleep (?P<seconds>\d+(?:\.\d+)?)))?"
)


class Point(StrEnum):
    """Every place that can be named. Each is reached from one line of dray."""

    JOB_CLAIMED = "job.claimed"
    """The driver has the job's lease; nothing else is done yet."""
    INGEST_PART_FULL = "ingest.part.full"
    """A part of the spool is full, and has no name yet; the next one is not begun."""
    INGEST_PART_NAMED = "ingest.part.named"
    """A part of the spool has its name; the next one, if there is one, is being written."""
    INGEST_ARRANGED = "ingest.arranged"
    """Some rows have their order; the spool does not hold them yet. Reached once per window of the input."""
    INGEST_SPOOLED = "ingest.spooled"
    """The spool is complete under its name; the store knows of no shard."""
    INGEST_PUBLISHED = "ingest.published"
    """The store has the shards and the job's total."""
    CLAIM_BEFORE = "claim.before"
    """A shard task is about to claim a shard."""
    CLAIM_AFTER = "claim.after"
    """It has the lease, and has fed nothing."""
    FEED = "feed"
    """A chunk of rows is about to go to the replica."""
    REPLICA_ADMIT = "replica.admit"
    """The replica is about to put a row into its engine."""
    REPLICA_DELIVER = "replica.deliver"
    """Rows are finished in the engine, and not yet handed out."""
    RESULTS_RECEIVED = "results.received"
    """A micro-batch is with the shard task, and not committed."""
    COMMIT_BEFORE = "commit.before"
    """A commit is about to begin."""
    COMMIT_AFTER = "commit.after"
    """A commit has returned: its rows are acknowledged."""
    FINISH_BEFORE = "finish.before"
    """All rows of a shard are committed; it is not marked done."""
    FINISH_AFTER = "finish.after"
    """A shard is marked done; the shard task has not reported it yet."""
    RELEASE_BEFORE = "release.before"
    """A shard is about to be given back."""
    RELEASE_AFTER = "release.after"
    """It is given back; the shard task has not reported it yet."""
    SPLIT_BEFORE = "split.before"
    """A shard is about to be split."""
    SPLIT_AFTER = "split.after"
    """Its splits are in the store; the shard task has not reported them yet."""
    VERDICT_BEFORE = "verdict.before"
    """The driver knows what a replica was lost of; nothing is charged."""
    VERDICT_AFTER = "verdict.after"
    """The loss is charged, and shard tasks can read what it was; the observers have not heard of it."""
    FOLLOW_BEFORE = "follow.before"
    """Rows that follow others are about to get their outcome, a page of them."""
    FOLLOW_AFTER = "follow.after"
    """Those of the page that are ready have it."""
    FINALISE_BEFORE = "finalise.before"
    """All rows have an outcome; no output is begun."""
    FINALISE_WRITTEN = "finalise.written"
    """Outputs and report are complete as drafts; none has its name, and the store knows of none."""
    FINALISE_RECORDED = "finalise.recorded"
    """The store has recorded the drafts as the job's files; none has its name."""
    FINALISE_RENAMED = "finalise.renamed"
    """One file has its name; reached once per file: errors first, then answers, then the report."""
    FINALISE_AFTER = "finalise.after"
    """The job is in its final state; the driver has not reported it yet."""


class TriggeredError(RuntimeError):
    """What a trigger with the action ``raise`` raises. No error of dray's: nothing may expect it."""


@dataclass(kw_only=True)
class _Trigger:
    point: Point
    count: int
    action: str
    seconds: float
    folder: Path | None
    _reached: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self) -> None:
        with self._lock:
            due = self._is_due()
        if due:
            self._act()

    def _is_due(self) -> bool:
        if self.folder is None:
            self._reached += 1
            return self._reached == self.count
        if self._count_with_others(self.folder) < self.count:
            return False
        # At the count or any time after it: the process that reached it may have been killed otherwise.
        with suppress(FileExistsError):
            fired = os.open(self.folder / f"{self.point}.fired", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(fired, b"%d\n" % os.getpid())
            os.close(fired)
            return True
        return False

    def _count_with_others(self, folder: Path) -> int:
        # A byte each time. The kernel appends under the file's lock and moves this descriptor to the end of
        # its own byte, so no two processes see one number.
        file = os.open(folder / f"{self.point}.count", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, b".")
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)

    def _act(self) -> None:
        if self.action == "raise":
            raise TriggeredError(f"trigger at {self.point}")
        if self.action == "sleep":
            time.sleep(self.seconds)
            return
        number = signal.SIGSTOP if self.action == "stop" else signal.SIGKILL
        # To this thread: sent to the process, it may stop another first, and this one goes on for a while.
        signal.pthread_kill(threading.get_ident(), number)


def parse(environment: Mapping[str, str]) -> dict[str, _Trigger] | None:
    """The triggers that an environment asks for, by name; None when it asks for none.

    Raises:
        ConfigError: it asks for what there is not. A test whose trigger never acts would prove nothing.
    """
    text = environment.get(TRIGGER_VARIABLE)
    if not text:
        return None
    folder = environment.get(FOLDER_VARIABLE)
    if folder and not Path(folder).is_dir():
        raise ConfigError(f"{FOLDER_VARIABLE}: no such folder: {folder}")
    found: dict[str, _Trigger] = {}
    for part in text.split(";"):
        match = _FORM.fullmatch(part.strip())
        if match is None or match["name"] not in set(Point):
            raise ConfigError(f"{TRIGGER_VARIABLE}: {part!r} is not NAME[:COUNT][=ACTION] with a known NAME")
        found[match["name"]] = _Trigger(
            point=Point(match["name"]),
            count=int(match["count"] or 1),
            action=(match["action"] or "kill").split()[0],
            seconds=float(match["seconds"] or 0),
            folder=Path(folder) if folder else None,
        )
    return found


_armed = parse(os.environ)  # None in production


def reach(point: Point) -> None:
    """Act, if a trigger is set for this place and its time has come; else return at once."""
    if _armed is None:
        return
    trigger = _armed.get(point)
    if trigger is not None:
        trigger.reach()
