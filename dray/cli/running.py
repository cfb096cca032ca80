"""``dray run``: what stands around a run, from the checks before it to the words after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dray.cli import output, terminal
from dray.cli.introduction import starting
from dray.cli.jobs import HIDDEN_INPUT
from dray.cli.preflight import preflight
from dray.cli.results import summarise
from dray.cli.server import configured_url, has_flows
from dray.cli.stopping import signals_stop
from dray.cli.warming import quieten
from dray.cli.with_prefect import run_flow
from dray.cli.without_prefect import run_plain
from dray.errors import FencedError, JobPausedError, StoreError
from dray.job import current_job
from dray.job.options.request import JobRequest
from dray.storage.addresses import VARIABLE, names_login

_HIDDEN = {"store": "DRAY_STORE_URL", "input": HIDDEN_INPUT}


def run_job(request: JobRequest, *, json: bool) -> int:
    """Run ``request`` and return the exit code: as the flow where that is installed, by itself elsewhere."""
    quieten()
    output.stage("checking input, model, output and store")
    preflight(request)
    request = _without_logins(request)
    run = run_flow if (flows := has_flows()) else run_plain
    output.stage(starting(request.cluster, configured_url(), flows=flows))
    with _bar(json=json), signals_stop(), _pauses_noted():
        result = run(request)
    code = {"completed": 0, "cancelled": 130}.get(result["state"], 1)
    if json:
        output.print_result(result)
    else:
        summarise(result)
    return code


@contextmanager
def _pauses_noted() -> Iterator[None]:
    """Errors that pause the job say which command goes on with it, or :func:`output.explain` says it last."""
    try:
        yield
    except (JobPausedError, StoreError) as error:
        job = current_job.latest()
        if job is not None and not isinstance(error, FencedError):
            resume = f"`{job.command('resume')}`"
            error.args = (str(error).replace("`dray resume JOB`", resume),)
            if f"`dray resume {job.job_id} " not in str(error):  # it may name options that going on needs
                error.add_note(f"{resume} goes on; finished rows are kept")
        raise


@contextmanager
def _bar(*, json: bool) -> Iterator[None]:
    """Show a bar below the run's lines, on a terminal."""
    with terminal.bar(plain=terminal.is_plain(json=json)) as shown:
        if shown is None:
            yield
            return
        with current_job.listening(shown.hear):
            yield


def _without_logins(request: JobRequest) -> JobRequest:
    """Prefect keeps the parameters of every run: a URL with a login goes by way of the environment."""
    hidden: dict[str, str] = {}
    for name, variable in _HIDDEN.items():
        value = getattr(request, name)
        if isinstance(value, list) and len(value) == 1 and request.rows.query is not None:
            value = value[0]  # as a plan's file names its input
        if isinstance(value, str) and names_login(value):
            os.environ[variable] = value
            hidden[name] = f"{VARIABLE}{variable}"
    return request.model_copy(update=hidden)
