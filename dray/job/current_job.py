"""The job that this process drives, and how far it is: for signal handlers and the command line."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.job.open_job import OpenJob
    from dray.report import Pulse

PULSE_RECORD = "dray_pulse"
"""Attribute of log records: true for those that repeat what listeners (``listening``) were given."""

_driven: deque[OpenJob] = deque(maxlen=1)  # process-wide on purpose: signals have no arguments
_calls: list[Callable[[OpenJob], None]] = []
_begun: list[str] = []
_heard_by: list[Callable[[Pulse], None]] = []


def note(job: OpenJob) -> None:
    """This process drives ``job`` from now on."""
    _driven.append(job)
    for call in _calls:
        call(job)


@contextmanager
def calling(call: Callable[[OpenJob], None]) -> Iterator[None]:
    """Whenever a job is opened in the block, ``call`` is given it, in the thread that opened it."""
    _calls.append(call)
    try:
        yield
    finally:
        _calls.remove(call)


def latest() -> OpenJob | None:
    """The job opened last, if any."""
    return _driven[-1] if _driven else None


def tell(pulse: Pulse) -> None:
    """How far the job is by now, to those who listen in this process."""
    for hear in _heard_by:
        hear(pulse)


@contextmanager
def begun_before(job_id: str) -> Iterator[None]:
    """In the block, the job must be in its store already, and its settings are from there.

    Its run never creates it, and goes on with the input that it took in, whatever the files are by now.
    """
    _begun.append(job_id)
    try:
        yield
    finally:
        _begun.remove(job_id)


def is_begun(job_id: str) -> bool:
    """Whether a run of this job may only go on with one that was begun before."""
    return job_id in _begun


@contextmanager
def listening(hear: Callable[[Pulse], None]) -> Iterator[None]:
    """In the block, ``hear`` gets the job's progress about once per second, in the thread that looked."""
    _heard_by.append(hear)
    try:
        yield
    finally:
        _heard_by.remove(hear)
