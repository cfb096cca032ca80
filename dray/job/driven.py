"""The jobs that this process drives: what a signal handler or a crash handler needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.job.opening import OpenJob

_driven: list[OpenJob] = []  # process-wide on purpose: signals have no arguments


def note(job: OpenJob) -> None:
    """This process drives ``job`` from now on."""
    _driven.append(job)


def latest() -> OpenJob | None:
    """The job opened last, if any."""
    return _driven[-1] if _driven else None
