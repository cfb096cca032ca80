"""The first line of a run: what is about to be done. Said before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def introduction(parameters: Mapping[str, Any]) -> str:
    """The job, its input, its model and where its output goes, each by the end of its name."""
    job = f"job {parameters['job_id']}: " if parameters["job_id"] else ""
    return (
        f"{job}{_inputs(parameters['input'])} through {_short(parameters['model'])}, "
        f"into {_short(parameters['output'])}"
    )


def starting(parameters: Mapping[str, Any], prefect: str | None) -> str:
    """What is started or joined; ``prefect`` is the address of the API that is configured, if any."""
    cluster = parameters["cluster"]
    ray = "starting Ray" if cluster == "local" else f"joining the Ray cluster {_short(cluster)}"
    return f"{ray}; {'starting Prefect' if prefect is None else f'Prefect is at {_short(prefect)}'}"


def _inputs(given: str | Sequence[str]) -> str:
    names = [given] if isinstance(given, str) else list(given)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{_short(names[0])}{more}"


def _short(name: str) -> str:
    """The last two parts of a path; a URL without what may be secret in it."""
    scheme, separator, rest = name.partition("://")
    if not separator:
        return "/".join(part for part in name.split("/")[-2:] if part)
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
