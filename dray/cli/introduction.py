"""The first line of a run: what is about to be done. Said before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dray.storage.addresses import is_of_files, without_secret

if TYPE_CHECKING:
    from dray.job.options.request import JobRequest


def introduction(request: JobRequest) -> str:
    """The job, its input, its model and where its output goes, each by the end of its name."""
    job = f"job {request.job_id}: " if request.job_id else ""
    return f"{job}{_inputs(request.input)} through {shown(request.model)}, into {shown(request.output)}"


def starting(cluster: str, prefect: str | None, *, flows: bool) -> str:
    """What is started or joined.

    ``prefect`` is the address of the API that is configured, if any; without ``flows`` there is no Prefect.
    """
    ray = "starting Ray" if cluster == "local" else f"joining the Ray cluster {shown(cluster)}"
    if not flows:
        return f"{ray}; without Prefect, whose flows are in the project's checkout"
    return f"{ray}; {'starting Prefect' if prefect is None else f'Prefect is at {shown(prefect)}'}"


def _inputs(given: str | Sequence[str]) -> str:
    names = [given] if isinstance(given, str) else list(given)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{shown(names[0])}{more}"


def shown(name: str) -> str:
    """The last two parts of a path; a URL without what may be secret in it."""
    scheme, separator, rest = name.partition("://")
    if not separator:
        return "/".join(part for part in name.split("/")[-2:] if part)
    if is_of_files(name):
        return without_secret(name).partition("?")[0]
    login, _, place = rest.rpartition("@")  # a "?" before it: a password has one, or options have the "@"
    return f"{scheme}://{'' if '?' in login else place.partition('?')[0]}"
