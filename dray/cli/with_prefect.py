"""A run of the command line as Prefect's flow, with Prefect's own server where none is configured.

The one module of dray that imports `flows`: the command line is a caller of the flow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dray.cli import output
from dray.cli.prestarted import join_prestarted, prestarted_cluster
from dray.cli.results import stored_result, unforeseen
from dray.cli.server import ADVICE, PrefectServer, configured, configured_url, has_flows, silence_of
from dray.cli.warming import warm_server
from dray.errors import CancelledError, ConfigError, DrayError
from dray.imports import lasting_imports, without
from dray.job import current_job
from dray.job.options.request import JobRequest
from dray.job.options.resolving import Blocks, NoBlocks
from dray.job.options.spelling import called_by_options
from dray.storage.addresses import without_secret
from dray.storage.home import home_folder
from dray.temporary import TemporaryFolder

_OF_SHARD_TASKS = ("tasks.ray_runner", "tasks.infer_shard")  # Prefect among them, for a second or two


def run_flow(request: JobRequest) -> dict[str, Any]:
    """The job's result, of a run of the flow in this process.

    Raises:
        DrayError: the job did not come to its end.
    """
    with _server() as server, prestarted_cluster(request.cluster):
        return _run_flow(request.model_dump(), server)


@contextmanager
def prefect_blocks() -> Iterator[Blocks]:
    """The blocks that Prefect keeps, for a command that runs no flow."""
    if not has_flows():
        yield NoBlocks()
        return
    with _server() as server:
        _, _, blocks = _the_flow()
        if server is not None:
            server.wait()
        yield blocks()


def _the_flow() -> tuple[Any, Any, Any]:
    """The flow, what flushes Prefect's queues after it, and the class of Prefect's blocks.

    Raises:
        ConfigError: Prefect, or something that it needs, is not installed or too old; or this user has no
            home, which Prefect's import asks for.
    """
    home_folder()
    try:
        with lasting_imports(), without("pandas"):
            from flows.batch_inference import batch_inference, flush_prefect  # noqa: TID251  see above
            from flows.resolving import PrefectBlocks  # noqa: TID251
    except ImportError as error:
        raise ConfigError(
            f"Prefect's flow cannot be imported ({error}): install dray's requirements again (make install), "
            "or run dray from its wheel, which needs no flow"
        ) from error
    return batch_inference, flush_prefect, PrefectBlocks


@contextmanager
def _server() -> Iterator[PrefectServer | None]:
    """Prefect's own server where none is configured; it boots while everything else is imported.

    Prefect writes each exception that ends a flow or a task to a file, whatever they say of results. Those
    files go with the server: all later readers have the reason from dray's store.
    """
    if configured():
        yield None
        return
    server = warm_server() or PrefectServer()
    server.start()
    if server.remark is not None:
        output.say(f"dray: {server.remark}")
    with TemporaryFolder("dray-prefect-") as results:
        told = {**server.told, "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(results)}
        before = {name: os.environ.get(name) for name in told}
        os.environ.update(told)
        try:
            yield server
        finally:
            server.stop()
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


def _run_flow(parameters: dict[str, Any], server: PrefectServer | None) -> dict[str, Any]:
    batch_inference, flush_prefect, _ = _the_flow()
    if server is not None:
        join_prestarted(_OF_SHARD_TASKS)
        server.wait()
    try:
        with called_by_options():
            state = batch_inference(**parameters, return_state=True)
    except DrayError:  # refused before there was a run
        raise
    except Exception as error:  # noqa: BLE001  Prefect's own: the flow's errors are in its state
        return _despite(error)
    finally:
        flush_prefect()
    if state.is_cancelled():
        if current_job.latest() is None:  # cancelled before: repeating its command does not revive it
            raise CancelledError(state.message or "the run was cancelled before there was a job")
        return stored_result()
    outcome: Any = state.result(raise_on_failure=False)
    if state.is_completed():
        return dict(outcome.as_dict())  # of this run; the store keeps that of the run that did the work
    if isinstance(outcome, DrayError):
        raise outcome
    if isinstance(outcome, BaseException):
        raise unforeseen(outcome) from outcome
    raise DrayError(f"the flow ended as {state.name}")


def _despite(error: Exception) -> dict[str, Any]:
    """The result of a job that was done when Prefect failed.

    Raises:
        DrayError: it was not done; says whether there is anything to go on with.
    """
    from dray.job.open_job import reopen
    from dray.store import JobState

    failure = f"Prefect failed: {type(error).__name__}: {str(error)[:300]}"
    job = current_job.latest()
    if job is None:
        raise DrayError(f"{failure}{_advice()}") from error
    with reopen(job) as store:
        done = store.get_job(job.job_id).state is JobState.COMPLETED
    if not done:
        raise DrayError(f"{failure}; `{job.command('resume')}` goes on") from error
    output.say(f"dray: the job is done; Prefect was not told so ({type(error).__name__})")
    return stored_result()


def _advice() -> str:
    """What to do where the server that is configured does not answer."""
    url = configured_url()
    return f"; {without_secret(url)} does not answer: {ADVICE}" if url and silence_of(url) else ""
