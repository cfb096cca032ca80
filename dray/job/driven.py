"""The jobs that this process drives: what a signal handler or a crash handler needs to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.job.opening import OpenJob

_driven: list[OpenJob] = []  # process-wide on purpose: signals have no arguments
_calls: list[Callable[[], None]] = []


def note(job: OpenJob) -> None:
    """This process drives ``job`` from now on."""
    _driven.append(job)
    for call in _calls:
        call()


@contextmanager
def calling(call: Callable[[], None]) -> Iterator[None]:
    """Whenever a job is opened in the block, ``call`` is called, in the thread that opened it."""
    _calls.append(call)
    try:
        yield
    finally:
        _calls.remove(call)


def latest() -> OpenJob | None:
    """The job opened last, if any."""
    return _driven[-1] if _driven else None
